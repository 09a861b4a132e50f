//! Lists the changes of the fleet, with their actors.

use std::process::ExitCode;

use form_urlencoded::Serializer;
use jiff::Timestamp;
use serde_json::{Value, json};
use spillgate_server::complain;
use spillgate_tools::{Failure, printable, say};

use super::{fetch, items, text};
use crate::cli::{AdminArgs, AuditArgs};

pub fn list(args: &AdminArgs, asked: &AuditArgs) -> Result<ExitCode, Failure> {
    let is_all = asked.export || asked.since.is_some();
    let number = asked.number.unwrap_or(if is_all { ALL } else { SCREEN });
    let mut query = Serializer::new(String::new());
    query.append_pair("n", &number.to_string());
    if let Some(rule) = &asked.rule {
        query.append_pair("rule", rule);
    }
    let answer = fetch(args, &format!("/admin/v1/audit?{}", query.finish()))?;
    let incomplete = answer["incomplete"].as_str();
    if let Some(why) = incomplete.filter(|_| asked.export) {
        // A file to which exports are appended would lack the missing changes for good.
        return Err(format!("the store did not answer, so nothing is exported: {why}").into());
    }
    let sealed = answer["sealed_with_another_secret"].as_u64().unwrap_or(0);
    if sealed > 0 {
        complain(&format!(
            "not shown: {sealed} changes that instances with another key secret made"
        ));
    }
    if let Some(why) = incomplete {
        complain(&format!(
            "the store did not answer, so this is only what the server knows: {why}"
        ));
    }
    let searched_until = &answer["searched_until"];
    if let Some(until) = text::instant(searched_until).filter(|_| number < ALL) {
        complain(&format!(
            "only changes since {until} were searched; --number {ALL} searches all that the store keeps"
        ));
    }
    let mut changes = Vec::new();
    for change in items(&answer, "changes") {
        let at = change["at"].as_str().unwrap_or_default().parse::<Timestamp>();
        let at = at.map_err(|error| format!("the answer is not from Spillgate: {error}"))?;
        if asked.since.is_none_or(|since| at > since) {
            changes.push((at, change));
        }
    }
    match (asked.export, args.json) {
        (true, _) => changes.iter().rev().try_for_each(|(_, change)| say(change))?,
        (false, true) => {
            let changes: Vec<&Value> = changes.iter().map(|(_, change)| *change).collect();
            say(&json!({
                "changes": changes, "sealed_with_another_secret": sealed, "incomplete": incomplete,
                "searched_until": searched_until,
            }))?;
        }
        (false, false) if changes.is_empty() => say(&"no changes")?,
        (false, false) => {
            changes.iter().try_for_each(|(at, change)| say(&printable(&line(*at, change))))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the line of a change: `2030-01-31T18:00:00Z  ann  set-mode api off  (incident 4711)`.
fn line(at: Timestamp, change: &Value) -> String {
    let actor = change["actor"].as_str().unwrap_or("unknown");
    let action = change["action"].as_str().unwrap_or_default();
    format!("{}  {actor}  {action} {}", text::to_the_second(at), text::change(change))
}

/// The changes that the store keeps.
const ALL: u16 = 10_000;
const SCREEN: u16 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_audit_has_all_parts_and_cannot_steer_the_terminal() {
        let change = json!({
            "at": "2030-01-31T18:00:00.25Z", "actor": "ann", "reason": "a\u{1b}b", "action": "set-override",
            "rule": "api", "subject": {"tenant": "acme"}, "mode": null,
            "limits": [{"quota": "block"}], "cost": null, "expires_at": "2030-02-01T00:00:00.5Z",
        });
        let at = "2030-01-31T18:00:00.25Z".parse().unwrap();
        assert_eq!(
            printable(&line(at, &change)),
            "2030-01-31T18:00:00Z  ann  set-override api tenant=acme block until 2030-02-01T00:00:00Z  (a\u{FFFD}b)"
        );
    }
}
