//! Lists the overrides and blocks that operators set, as a table or in the form that import takes.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use spillgate::policy::Network;
use spillgate_tools::{Failure, printable, say, table};

use super::{OVERRIDES, fetch, items, text};
use crate::cli::{AdminArgs, OverridesArgs};

pub fn list(args: &AdminArgs, asked: &OverridesArgs) -> Result<ExitCode, Failure> {
    let answer = fetch(args, OVERRIDES)?;
    let listed = items(&answer, "overrides").iter().filter(|set| is_asked(set, asked));
    let listed: Vec<&Value> = listed.collect();
    match (asked.export, args.json) {
        (true, _) => listed.iter().try_for_each(|set| say(&importable(set)))?,
        (false, true) => say(&json!({ "overrides": listed }))?,
        (false, false) if listed.is_empty() => say(&"no overrides")?,
        (false, false) => {
            let head = ["rule", "subject", "limits", "expires", "by", "reason"].map(str::to_owned);
            let rows: Vec<_> =
                [head].into_iter().chain(listed.iter().map(|set| row(set))).collect();
            say(&table(&rows, rows[0].len()).trim_start_matches('\n'))?;
            for set in &listed {
                if let Some(why) = set["not_in_force"].as_str() {
                    say(&printable(&format!("{} is not in force: {why}", text::change(set))))?;
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn is_asked(set: &Value, asked: &OverridesArgs) -> bool {
    let has = |(name, part): &(String, String)| {
        let value = set["subject"][name].as_str();
        value.is_some_and(|value| value.contains(&**part) || covers(value, part))
    };
    asked.rule.as_ref().is_none_or(|rule| set["rule"] == **rule) && asked.attributes.iter().all(has)
}

/// Returns whether a value is a network that has the address or network asked for.
fn covers(value: &str, asked: &str) -> bool {
    let networks = Network::parse(value).zip(Network::parse(asked));
    networks.is_some_and(|(network, asked)| network.contains(asked))
}

fn row(set: &Value) -> [String; 6] {
    let text = |name: &str| set[name].as_str().unwrap_or_default().to_owned();
    let subject = set["subject"].as_object().filter(|subject| !subject.is_empty());
    let limits: Vec<String> = items(set, "limits").iter().map(text::limit).collect();
    let cells = [
        text("rule"),
        subject.map_or("every subject".to_owned(), text::subject),
        limits.join(", "),
        text::instant(&set["expires_at"]).unwrap_or_else(|| "never".to_owned()),
        text("actor"),
        text("reason"),
    ];
    cells.map(|cell| printable(&cell))
}

/// Returns the fields of an override that import takes. Equal overrides have equal fields, whichever way a file spells
/// them.
pub fn importable(set: &Value) -> Value {
    let limit = |limit: &Value| match limit {
        Value::String(quota) => json!({"quota": quota}),
        limit => limit.clone(),
    };
    let limits: Vec<Value> = items(set, "limits").iter().map(limit).collect();
    let expires_at = expires_at(set).map(|end| end.to_string());
    let fields = [
        ("rule", set["rule"].clone()),
        ("subject", set["subject"].clone()),
        ("limits", limits.into()),
        ("expires_at", expires_at.into()),
        ("reason", set["reason"].clone()),
    ];
    let given = fields.into_iter().filter(|(_, value)| !value.is_null());
    given.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>().into()
}

/// Returns the end of an override, if it has a valid one.
pub fn expires_at(set: &Value) -> Option<Timestamp> {
    set["expires_at"].as_str()?.parse().ok()
}
