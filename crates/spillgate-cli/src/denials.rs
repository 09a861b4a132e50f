//! `spillgate denials`: shows when subjects were denied, and by which limits.

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;

use hyper::{Request, StatusCode};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use spillgate_tools::{Failure, counted, printable, say};
use tokio::runtime::Runtime;

use crate::ERROR;
use crate::cli::DenialsArgs;
use crate::client::{self, Session};

pub(crate) fn run(args: &DenialsArgs) -> Result<ExitCode, Failure> {
    let named = [("rule", &args.rule), ("like", &args.like)];
    let named = named.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
    let path = path(&args.since, named, &args.attributes);
    let ask = client::ask_admin_api(&args.api, Request::get(path), Vec::new());
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

/// Returns the denials of a subject in the last 48 hours as text. `None` if the attributes name no subject of any rule,
/// or if the server neither records denials nor finds one.
pub(crate) async fn lately(
    session: &mut Session<'_>,
    attributes: &[(String, String)],
) -> Result<Option<String>, Failure> {
    if attributes.is_empty() {
        return Ok(None);
    }
    let request = Request::get(path("48h", [].into_iter(), attributes));
    match session.send(request, Vec::new()).await? {
        (StatusCode::OK, reply) => {
            let answer: Answer = client::read(&reply)?;
            let is_known = answer.recording || !answer.entries.is_empty();
            Ok(is_known.then(|| answer.to_string()))
        }
        // Not all attributes of a key are among them.
        (StatusCode::BAD_REQUEST, _) => Ok(None),
        (status, reply) => Err(client::problem(status, &reply).into()),
    }
}

fn path<'a>(
    since: &str,
    named: impl Iterator<Item = (&'a str, &'a str)>,
    attributes: &[(String, String)],
) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("since", since).extend_pairs(named);
    for (name, value) in attributes {
        query.append_pair(&format!("attr.{name}"), value);
    }
    format!("/admin/v1/denials?{}", query.finish())
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
    hours: Vec<Hour>,
}

#[derive(Deserialize)]
struct Hour {
    at: Minute,
    denied: u64,
    allowed: Option<u64>,
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

impl Answer {
    /// Returns whether an hour is shown whole that began before the time asked for.
    fn begins_within_an_hour(&self) -> bool {
        let Ok(since) = self.since.parse::<Timestamp>() else { return false };
        self.entries.iter().flat_map(|entry| &entry.hours).any(|hour| hour.at.0 < since)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entries.is_empty() {
            true if self.unread_hours > 0 => {
                write!(f, "Nothing found yet since {}", printable(&self.since))?
            }
            true => write!(
                f,
                "Not recorded: no such denial from {} until two minutes ago",
                printable(&self.since)
            )?,
            false => write!(f, "Denials since {}, times in UTC", printable(&self.since))?,
        }
        for entry in &self.entries {
            write!(f, "\n\n{entry}")?;
        }
        let notes = [
            (!self.recording).then(|| {
                "The server records no denials: see store.denials and store.key_secret_file"
                    .to_owned()
            }),
            (self.recording && self.entries.is_empty()).then(|| RECORDED.to_owned()),
            self.begins_within_an_hour().then(|| {
                "The first hour is counted from its beginning; only its minutes are since then"
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
        let Entry { rule, limit, subject, whole, reason, denied, hours } = self;
        let named: Vec<String> = subject
            .iter()
            .map(|(name, value)| format!("{}={}", printable(name), printable(value)))
            .collect();
        let named = if named.is_empty() { "all requests".to_owned() } else { named.join(" ") };
        write!(f, "{named}{}", if *whole { "" } else { "…" })?;
        write!(
            f,
            "\n  {denied} denied by rule {}, limit {}; last reason: {}",
            printable(rule),
            printable(limit),
            printable(reason)
        )?;
        hours.iter().try_for_each(|hour| write!(f, "\n    {hour}"))
    }
}

impl fmt::Display for Hour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hour { at, denied, allowed, minutes } = self;
        write!(f, "{}  {denied} denied", at.0.strftime("%d %b %H:%M"))?;
        match allowed {
            None => {}
            // The number is an estimate, so a few may have been allowed.
            Some(0) => f.write_str(", hardly any allowed")?,
            Some(allowed) => write!(f, ", about {allowed} allowed")?,
        }
        let follows = |one: &Minute, next: &Minute| next.0.duration_since(one.0) == MINUTE;
        let time = |minute: &Minute| minute.0.strftime("%H:%M").to_string();
        let ranges = minutes.chunk_by(follows).map(|range| match range {
            [one] => time(one),
            [first, .., last] => format!("{}–{}", time(first), time(last)),
            [] => String::new(),
        });
        match &ranges.collect::<Vec<_>>()[..] {
            [] => Ok(()),
            [one] => write!(f, ", in {one}"),
            [before @ .., last] => write!(f, ", in {} and {last}", before.join(", ")),
        }
    }
}

/// The exit code if nothing was found.
const NOT_RECORDED: u8 = 1;
const RECORDED: &str = "An instance records the 20 most denied subjects of each rule and minute, up to two minutes \
    later; it counts other denials without their subject";
const MINUTE: SignedDuration = SignedDuration::from_mins(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(reply: &str) -> String {
        serde_json::from_str::<Answer>(reply).unwrap().to_string()
    }

    #[test]
    fn an_hour_is_a_line_with_ranges_of_minutes_and_values_cannot_steer_the_terminal() {
        let reply = r#"{"since": "2026-11-28T00:00:00Z", "recording": true, "left_out": 0, "others": 57,
            "complete": false, "unread_hours": 3, "entries": [{
            "rule": "api", "limit": "daily", "subject": {"tenant": "ac\u001bme"}, "whole": true,
            "reason": "limit-exceeded", "denied": 1204, "allowed": null, "hours": [
                {"at": "2026-11-28T02:00:00Z", "denied": 1180, "allowed": 300, "minutes": [
                    "2026-11-28T02:08:00Z", "2026-11-28T02:09:00Z", "2026-11-28T02:10:00Z",
                    "2026-11-28T02:30:00Z", "2026-11-28T02:40:00Z"]},
                {"at": "2026-11-28T03:00:00Z", "denied": 20, "allowed": 0, "minutes": [
                    "2026-11-28T03:00:00Z", "2026-11-28T03:59:00Z"]},
                {"at": "2026-11-28T04:00:00Z", "denied": 4, "allowed": null, "minutes": [
                    "2026-11-28T04:00:00Z"]}]}]}"#;
        assert_eq!(
            shown(reply),
            "Denials since 2026-11-28T00:00:00Z, times in UTC

tenant=ac\u{FFFD}me
  1204 denied by rule api, limit daily; last reason: limit-exceeded
    28 Nov 02:00  1180 denied, about 300 allowed, in 02:08–02:10, 02:30 and 02:40
    28 Nov 03:00  20 denied, hardly any allowed, in 03:00 and 03:59
    28 Nov 04:00  4 denied, in 04:00

Not recorded by subject: 57 denials of these hours
Not searched yet: 3 hours; ask again"
        );
    }

    #[test]
    fn an_hour_that_began_before_the_time_asked_for_is_called_whole() {
        let since = |since: &str| {
            shown(&format!(
                r#"{{"since": "{since}", "recording": true, "left_out": 0, "others": 0, "complete": true,
                "unread_hours": 0, "entries": [{{"rule": "api", "limit": "0", "subject": {{"ip": "192.0.2.1"}},
                "whole": true, "reason": "limit-exceeded", "denied": 39, "allowed": null, "hours": [
                {{"at": "2026-11-28T03:00:00Z", "denied": 39, "allowed": null, "minutes": ["2026-11-28T03:50:00Z"]}}]}}]}}"#
            ))
        };
        let note = "The first hour is counted from its beginning";
        assert!(since("2026-11-28T03:48:00Z").contains(note));
        assert!(!since("2026-11-28T03:00:00Z").contains(note));
    }

    #[test]
    fn without_a_record_a_subject_is_not_called_allowed() {
        let reply = r#"{"since": "2026-11-28T00:00:00Z", "recording": false, "left_out": 0, "others": 0,
            "complete": true, "unread_hours": 0, "entries": []}"#;
        let text = shown(reply);
        assert!(
            text.starts_with("Not recorded: no such denial from 2026-11-28T00:00:00Z until two"),
            "{text}"
        );
        assert!(text.contains("The server records no denials"), "{text}");
    }
}
