//! Lists the rules with their modes and limits.

use std::process::ExitCode;

use serde_json::Value;
use spillgate_tools::{Failure, printable, say, table};

use super::{fetch, items, text};
use crate::cli::AdminArgs;

pub fn list(args: &AdminArgs) -> Result<ExitCode, Failure> {
    let answer = fetch(args, "/admin/v1/rules")?;
    let rules = items(&answer, "rules").iter().map(|rule| row(&rule["mode"], &limits(rule)));
    let gone = items(&answer, "without_rule").iter();
    let gone = gone.map(|mode| row(mode, "not in the policy file"));
    let head = ["rule", "mode", "in the file", "set while running", "limits"].map(str::to_owned);
    let rows: Vec<_> = [head].into_iter().chain(rules).chain(gone).collect();
    match args.json {
        true => say(&answer)?,
        false if rows.len() == 1 => say(&"no rules")?,
        false => say(&table(&rows, rows[0].len()).trim_start_matches('\n'))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn row(mode: &Value, limits: &str) -> [String; 5] {
    let text = |name: &str| mode[name].as_str();
    let set = text("runtime").map_or("-".to_owned(), |runtime| {
        let until = text::instant(&mode["expires_at"]);
        let until = until.map_or(String::new(), |until| format!(" until {until}"));
        let reason = text("reason").map_or(String::new(), |reason| format!(" ({reason})"));
        format!("{runtime}{until} by {}{reason}", text("actor").unwrap_or("unknown"))
    });
    let or_none = |name: &str| text(name).unwrap_or("-").to_owned();
    let cells = [or_none("rule"), or_none("in_force"), or_none("written"), set, limits.to_owned()];
    cells.map(|cell| printable(&cell))
}

/// Returns the limits of a rule. One without a name of its own has its position as its name, which is left out.
fn limits(rule: &Value) -> String {
    let limits = items(rule, "limits").iter().enumerate().map(|(position, limit)| {
        let (name, quota) = (&limit["name"], limit["quota"].as_str().unwrap_or_default());
        match name.as_str() {
            Some(name) if name != position.to_string() => format!("{name}={quota}"),
            _ => quota.to_owned(),
        }
    });
    limits.collect::<Vec<_>>().join(", ")
}
