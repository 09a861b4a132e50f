//! Finds when subjects were denied, and by which limits: `?attr.tenant=acme&since=2h`, or `?like=acme`. Without either
//! it lists the most denied subjects.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::SystemTime;

use axum::extract::State;
use axum::response::Response;
use hyper::Uri;
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};
use serde::Serialize;
use spillgate::Request;
use spillgate::denials::{Denials, DeniedHour, DeniedSubject};

use super::Problem;
use super::instant::Instant;
use super::subject::{attribute, once, parameters, shown};
use crate::app::App;
use crate::bounds::VALUE_MAX;
use crate::listener::http::answer;

#[derive(Serialize)]
struct DenialsAnswer<'d> {
    since: Instant,
    /// Whether this instance records denials.
    recording: bool,
    /// The most denied first. Subjects that are missing were not recorded.
    entries: Vec<EntryAnswer<'d>>,
    /// How many more were found than are listed.
    left_out: usize,
    /// Denials of these hours that were not recorded by subject.
    others: u64,
    /// Whether the whole record was searched; if not, the next question goes on.
    complete: bool,
    unread_hours: u64,
}

#[derive(Serialize)]
struct EntryAnswer<'d> {
    rule: &'d str,
    limit: &'d str,
    subject: BTreeMap<&'d str, Cow<'d, str>>,
    /// Whether the values are whole; long ones are cut.
    whole: bool,
    reason: &'static str,
    denied: u64,
    /// About how many were allowed in the minutes with a denial; null if unknown.
    allowed: Option<u64>,
    hours: Vec<HourAnswer>,
}

#[derive(Serialize)]
struct HourAnswer {
    at: Instant,
    denied: u64,
    allowed: Option<u64>,
    minutes: Vec<Instant>,
}

/// The parameters of a question.
struct Asked<'u> {
    since: Timestamp,
    rule: Option<Cow<'u, str>>,
    like: Option<Cow<'u, str>>,
    subject: Request<'u>,
}

pub async fn find(State(app): State<App>, uri: Uri) -> Result<Response, Problem> {
    let asked = Asked::parse(&uri, Timestamp::now())?;
    let since = asked.since.max(Timestamp::now() - KEPT);
    // Whole seconds are easier to read.
    let since = SystemTime::from(Timestamp::from_second(since.as_second()).unwrap_or(since));
    let (limiter, rule) = (app.limiter(), asked.rule.as_deref());
    let found = match &asked.like {
        Some(part) => limiter.denials_like(part, since).await?,
        None if asked.subject.attributes().count() == 0 => limiter.most_denied(rule, since).await?,
        None => limiter.denials_of(rule, &asked.subject, since).await?,
    };
    let answer = DenialsAnswer::new(Instant(since), &found);
    Ok(answer::json(&answer, answer::ANSWER_BYTES * (1 + answer.entries.len())))
}

impl<'u> Asked<'u> {
    fn parse(uri: &'u Uri, now: Timestamp) -> Result<Asked<'u>, Problem> {
        let (mut since, mut rule, mut like, mut subject) = (None, None, None, Request::new());
        for (name, value) in parameters(uri) {
            match name.as_ref() {
                _ if name.starts_with("attr.") => subject = attribute(subject, &name, value)?,
                "rule" => once(&mut rule, &name, value)?,
                "since" => {
                    let at = instant(&value, now);
                    let at = at.ok_or_else(|| Problem::in_field("since", NOT_A_TIME))?;
                    once(&mut since, &name, at)?;
                }
                "like" if !(2..=VALUE_MAX).contains(&value.len()) => {
                    return Err(Problem::in_field("like", TOO_SHORT));
                }
                "like" => once(&mut like, &name, value)?,
                _ => return Err(Problem::in_field(&name, NO_SUCH_PARAMETER)),
            }
        }
        if like.is_some() && (rule.is_some() || subject.attributes().count() > 0) {
            return Err(Problem::in_field("like", ONE_OF_BOTH));
        }
        let since = since.or_else(|| instant("48h", now)).unwrap_or(now);
        Ok(Asked { since, rule, like, subject })
    }
}

impl<'d> DenialsAnswer<'d> {
    fn new(since: Instant, found: &'d Denials) -> DenialsAnswer<'d> {
        DenialsAnswer {
            since,
            recording: found.is_recording,
            entries: found.subjects.iter().map(EntryAnswer::new).collect(),
            left_out: found.left_out,
            others: found.others,
            complete: found.unread_hours == 0,
            unread_hours: found.unread_hours,
        }
    }
}

impl<'d> EntryAnswer<'d> {
    fn new(entry: &'d DeniedSubject) -> EntryAnswer<'d> {
        let attributes = entry.attributes.iter();
        EntryAnswer {
            rule: &entry.rule,
            limit: &entry.limit,
            subject: shown(attributes.map(|(name, value)| (name.as_str(), value.as_slice()))),
            whole: entry.is_whole,
            reason: entry.reason.as_str(),
            denied: entry.denied,
            allowed: entry.allowed,
            hours: entry.hours.iter().map(HourAnswer::new).collect(),
        }
    }
}

impl HourAnswer {
    fn new(hour: &DeniedHour) -> HourAnswer {
        HourAnswer {
            at: Instant(hour.begin),
            denied: hour.denied,
            allowed: hour.allowed,
            minutes: hour.minutes.iter().map(|at| Instant(*at)).collect(),
        }
    }
}

/// Reads an instant, or the time that has passed since then.
fn instant(text: &str, now: Timestamp) -> Option<Timestamp> {
    let ago = text.parse::<Span>().ok().and_then(|span| {
        let ago = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
        now.checked_sub(ago.abs()).ok()
    });
    ago.or_else(|| text.parse().ok()).filter(|at| *at <= now)
}

/// Earlier denials are not kept.
const KEPT: SignedDuration = SignedDuration::from_hours(48);

const NOT_A_TIME: &str =
    "not a valid time; write one such as since=2h, or an instant such as 2027-01-31T18:00:00Z";
const TOO_SHORT: &str = "must have 2 to 4096 bytes; write a part of a value, such as like=acme";
const ONE_OF_BOTH: &str = "searches all rules and attributes; leave rule and attr.NAME out";
const NO_SUCH_PARAMETER: &str =
    "no such parameter; there are since, rule and attr.NAME for each attribute, or since and like";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_an_instant_or_has_passed_since() {
        let now: Timestamp = "2027-01-02T00:00:00Z".parse().unwrap();
        for (text, at) in [
            ("2h", Some("2027-01-01T22:00:00Z")),
            ("1d", Some("2027-01-01T00:00:00Z")),
            ("2026-12-31T23:10:00Z", Some("2026-12-31T23:10:00Z")),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(instant(text, now), at.map(|at| at.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn a_part_of_a_value_excludes_rule_and_attributes() {
        let parsed = |query: &str| {
            let uri: Uri = format!("/admin/v1/denials?{query}").parse().unwrap();
            Asked::parse(&uri, Timestamp::UNIX_EPOCH).is_ok()
        };
        for right in
            ["", "since=15m", "rule=api", "like=acme&since=3h", "rule=api&attr.tenant=acme"]
        {
            assert!(parsed(right), "{right}");
        }
        for wrong in
            ["like=a", "like=acme&rule=api", "like=acme&attr.a=b", "n=3", "since=1h&since=2h"]
        {
            assert!(!parsed(wrong), "{wrong}");
        }
    }
}
