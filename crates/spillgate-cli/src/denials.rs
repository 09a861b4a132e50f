//! `spillgate denials`: shows when subjects were denied, and by which limits.

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;

use hyper::Request;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use spillgate_tools::{Failure, counted, printable, say};
use tokio::runtime::Runtime;

use crate::ERROR;
use crate::cli::DenialsArgs;
use crate::client;

pub(crate) fn run(args: &DenialsArgs) -> Result<ExitCode, Failure> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("since", &args.since);
    let named = [("rule", &args.rule), ("like", &args.like)];
    for (name, value) in named.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)))
    {
        query.append_pair(name, value);
    }
    for (name, value) in &args.attributes {
        query.append_pair(&format!("attr.{name}"), value);
    }
    let request = Request::get(format!("/admin/v1/denials?{}", query.finish()));
    let ask = client::ask_admin_api(&args.api, request, Vec::new());
    let reply = Runtime::new()?.block_on(ask)?;
    let answer: Answer = client::read(&reply)?;
    match args.json {
        true => say(&String::from_utf8_lossy(&reply))?,
        false => say(&answer.to_string())?,
    }
    Ok(match (answer.entries.is_empty(), answer.unread_hours) {
        (false, _) => ExitCode::SUCCESS,
        (true, 0) => ExitCode::from(NOT_RECORDED),
        (true, _) => ExitCode::from(ERROR),
    })
}

#[derive(Deserialize)]
struct Answer {
    since: String,
    recording: bool,
    entries: Vec<Entry>,
    left_out: u64,
    others: u64,
    unread_hours: usize,
}

#[derive(Deserialize)]
struct Entry {
    rule: String,
    limit: String,
    subject: BTreeMap<String, String>,
    whole: bool,
    reason: String,
    denied: u64,
    minutes: Vec<Minute>,
}

/// The beginning of a minute.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Minute(Timestamp);

impl TryFrom<String> for Minute {
    type Error = jiff::Error;

    fn try_from(text: String) -> Result<Minute, jiff::Error> {
        text.parse().map(Minute)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entries.is_empty() {
            true if self.unread_hours > 0 => {
                write!(f, "Nothing found yet since {}", printable(&self.since))?
            }
            true => write!(f, "Not recorded: no such denial since {}", printable(&self.since))?,
            false => write!(f, "Denials since {}", printable(&self.since))?,
        }
        for entry in &self.entries {
            write!(f, "\n\n{entry}")?;
        }
        let notes = [
            (!self.recording).then(|| {
                "The server records no denials: see store.denials and store.key_secret_file"
                    .to_owned()
            }),
            (self.left_out > 0).then(|| format!("Not listed: {} more", self.left_out)),
            (self.others > 0).then(|| {
                format!(
                    "Not recorded by subject: {} of these hours",
                    counted(self.others as usize, "denial")
                )
            }),
            (self.unread_hours > 0).then(|| {
                format!("Not searched yet: {}; ask again", counted(self.unread_hours, "hour"))
            }),
        ];
        let notes: Vec<String> = notes.into_iter().flatten().collect();
        match notes.is_empty() {
            true => Ok(()),
            false => write!(f, "\n\n{}", notes.join("\n")),
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { rule, limit, subject, whole, reason, denied, minutes } = self;
        let named: Vec<String> = subject
            .iter()
            .map(|(name, value)| format!("{}={}", printable(name), printable(value)))
            .collect();
        let named = if named.is_empty() { "all requests".to_owned() } else { named.join(" ") };
        write!(f, "{named}{}", if *whole { "" } else { "…" })?;
        write!(
            f,
            "\n  {denied} denied by rule {}, limit {}: {}",
            printable(rule),
            printable(limit),
            printable(reason)
        )?;
        let follows = |one: &Minute, next: &Minute| next.0.duration_since(one.0) == MINUTE;
        for minutes in minutes.chunk_by(follows) {
            let begin = minutes[0].0.strftime("%Y-%m-%d %H:%M UTC");
            write!(f, "\n  {begin}  {}", counted(minutes.len(), "minute"))?;
        }
        Ok(())
    }
}

/// The exit code if nothing was found.
const NOT_RECORDED: u8 = 1;
const MINUTE: SignedDuration = SignedDuration::from_mins(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(reply: &str) -> String {
        serde_json::from_str::<Answer>(reply).unwrap().to_string()
    }

    #[test]
    fn minutes_in_a_row_are_one_line_and_values_cannot_steer_the_terminal() {
        let reply = r#"{"since": "2026-11-28T00:00:00Z", "recording": true, "left_out": 0, "others": 57,
            "complete": false, "unread_hours": 3, "entries": [{
            "rule": "api", "limit": "daily", "subject": {"tenant": "ac\u001bme"}, "whole": true,
            "reason": "limit-exceeded", "denied": 1204, "minutes": [
                "2026-11-28T02:10:00Z", "2026-11-28T02:11:00Z", "2026-11-28T04:00:00Z"]}]}"#;
        assert_eq!(
            shown(reply),
            "Denials since 2026-11-28T00:00:00Z

tenant=ac\u{FFFD}me
  1204 denied by rule api, limit daily: limit-exceeded
  2026-11-28 02:10 UTC  2 minutes
  2026-11-28 04:00 UTC  1 minute

Not recorded by subject: 57 denials of these hours
Not searched yet: 3 hours; ask again"
        );
    }

    #[test]
    fn without_a_record_a_subject_is_not_called_allowed() {
        let reply = r#"{"since": "2026-11-28T00:00:00Z", "recording": false, "left_out": 0, "others": 0,
            "complete": true, "unread_hours": 0, "entries": []}"#;
        let text = shown(reply);
        assert!(
            text.starts_with("Not recorded: no such denial since 2026-11-28T00:00:00Z\n\n"),
            "{text}"
        );
        assert!(text.contains("The server records no denials"), "{text}");
    }
}
