//! The history of this instance or of the fleet: `?range=15m&until=2026-11-25T02:10:00Z&rule=api&of=fleet`. Columns of equal
//! length, an item for each point.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::response::Response;
use hyper::Uri;
use serde::Serialize;
use spillgate::metrics::{Decisions, RESULTS};

use super::Problem;
use super::instant::Instant;
use super::subject::{once, parameters};
use crate::app::App;
use crate::history::{Column, Event, Range, RuleSum, SOURCES, Series, fleet};
use crate::listener::http::answer;

#[derive(Serialize)]
struct HistoryAnswer<'h> {
    of: &'static str,
    range: &'static str,
    step_ms: u64,
    rule: Option<&'h str>,
    /// Whether the answer has points of the rule. Rules beyond the busiest are only in the sums.
    kept: bool,
    /// Earlier points of the rule are only in the sums; null if none are missing.
    kept_since_ms: Option<u64>,
    #[serde(flatten)]
    points: Points,
    /// The sums over all points by rule, those with most denials first.
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<Vec<RuleAnswer<'h>>>,
    events: Vec<EventAnswer<'h>>,
}

#[derive(Serialize)]
struct RuleAnswer<'h> {
    /// Null for all rules beyond the busiest.
    rule: Option<&'h str>,
    allowed: u64,
    denied: u64,
    /// What a shadow rule would have denied.
    would_deny: u64,
}

/// The parameters of a query.
#[derive(Default)]
pub struct Asked {
    pub(crate) range: Range,
    until: Option<Instant>,
    pub(crate) rule: Option<String>,
    of: Option<Whose>,
}

/// Whose decisions an answer has.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Whose {
    #[default]
    Instance,
    Fleet,
}

/// Points by field, the oldest first. Each count belongs to the interval of `lasted_ms` that ends at `at_ms`.
#[derive(Serialize)]
pub struct Points {
    at_ms: Vec<u64>,
    lasted_ms: Vec<u32>,
    /// Decisions of rules: allowed, and by reason of denial.
    decisions: BTreeMap<&'static str, Vec<u32>>,
    near_limit: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    totals: Option<Totals>,
}

/// The figures that no rule has of its own.
#[derive(Serialize)]
struct Totals {
    /// Requests, each counted once.
    requests: Requests,
    sources: BTreeMap<&'static str, Vec<u32>>,
    p50_ns: Vec<Option<u64>>,
    p99_ns: Vec<Option<u64>>,
    /// Absent for the fleet.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<OfStore>,
}

#[derive(Serialize)]
struct Requests {
    allowed: Vec<u32>,
    denied: Vec<u32>,
    unmatched: Vec<u32>,
}

#[derive(Serialize)]
struct OfStore {
    calls: Vec<u32>,
    failed: Vec<u32>,
    unsent: Vec<u32>,
    p99_ns: Vec<Option<u64>>,
    degraded_shards: Vec<u32>,
}

#[derive(Serialize)]
struct EventAnswer<'h> {
    at: Instant,
    at_ms: u64,
    kind: &'static str,
    rule: Option<&'h str>,
    text: &'h str,
}

pub async fn show(State(app): State<App>, uri: Uri) -> Result<Response, Problem> {
    let Asked { range, until, rule, of } = asked_in(&uri)?;
    let until_ms = until.map(|Instant(until)| ms_of(until));
    let of_fleet = match of.unwrap_or_default() {
        Whose::Fleet => fleet::extract(app.limiter(), range, until_ms, rule.as_deref()).await?,
        Whose::Instance => None,
    };
    // With state in memory this instance is its whole fleet.
    let whose = if of_fleet.is_some() { Whose::Fleet } else { Whose::Instance };
    let extract = of_fleet
        .unwrap_or_else(|| app.history.extract(app.limiter(), range, until_ms, rule.as_deref()));
    let (kept, kept_since_ms) = match extract.series {
        Series::Sums => (true, None),
        Series::Own { since_ms } => (true, since_ms),
        Series::Absent => (false, None),
    };
    if let Some(rule) = &rule
        && !kept
        && app.limiter().policy().rule(rule).is_none()
    {
        return Err(Problem::no_such_rule(rule));
    }
    let answer = HistoryAnswer {
        of: if whose == Whose::Fleet { "fleet" } else { "instance" },
        range: range.name,
        step_ms: if whose == Whose::Fleet { 60_000 } else { range.step_ms() },
        rule: rule.as_deref(),
        kept,
        kept_since_ms,
        points: Points::new(&extract.columns, &extract.decisions, rule.is_none().then_some(whose)),
        rules: rule.is_none().then(|| extract.rules.iter().map(RuleAnswer::new).collect()),
        events: extract.events.iter().map(EventAnswer::new).collect(),
    };
    Ok(answer::json(&answer, POINT_BYTES * extract.columns.len() + answer::ANSWER_BYTES))
}

/// Reads the range, its end and the rule of a query.
pub fn asked_in(uri: &Uri) -> Result<Asked, Problem> {
    let (mut range, mut until, mut rule, mut of) = (None, None, None, None);
    for (name, value) in parameters(uri) {
        match name.as_ref() {
            "range" => {
                let named = Range::named(&value);
                let named = named.ok_or_else(|| Problem::in_field("range", NO_SUCH_RANGE))?;
                once(&mut range, &name, named)?;
            }
            "until" => {
                let instant = value.parse().map_err(|e: String| Problem::in_field("until", &e))?;
                once(&mut until, &name, instant)?;
            }
            "rule" => once(&mut rule, &name, value.into_owned())?,
            "of" => {
                let whose = match value.as_ref() {
                    "fleet" => Whose::Fleet,
                    "instance" => Whose::Instance,
                    other => {
                        let expected = format!("expected fleet or instance, got {other:?}");
                        return Err(Problem::in_field("of", &expected));
                    }
                };
                once(&mut of, &name, whose)?;
            }
            _ => return Err(Problem::in_field(&name, NO_SUCH_PARAMETER)),
        }
    }
    Ok(Asked { range: range.unwrap_or_default(), until, rule, of })
}

/// Returns the milliseconds from 1970 to an instant; 0 for an earlier one.
fn ms_of(instant: SystemTime) -> u64 {
    let since = instant.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl<'h> RuleAnswer<'h> {
    fn new(sum: &'h RuleSum) -> RuleAnswer<'h> {
        let RuleSum { rule, allowed, denied, would_deny } = sum;
        let (allowed, denied, would_deny) = (*allowed, *denied, *would_deny);
        RuleAnswer { rule: rule.as_deref(), allowed, denied, would_deny }
    }
}

impl Points {
    /// Makes the points of some columns, with the totals of an instance or a fleet unless they are of one rule.
    pub fn new(columns: &[Column], decisions: &[Decisions], totals: Option<Whose>) -> Points {
        let each = |of: fn(&Column) -> u32| columns.iter().map(of).collect::<Vec<u32>>();
        let times = |of: fn(&Column) -> Option<Duration>| {
            let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            columns.iter().map(|column| of(column).map(ns)).collect::<Vec<Option<u64>>>()
        };
        let by_result = RESULTS.into_iter().enumerate().map(|(index, name)| {
            (name, decisions.iter().map(|decisions| decisions.results[index]).collect())
        });
        let by_source = SOURCES.into_iter().enumerate().map(|(index, name)| {
            (name, columns.iter().map(|column| column.sources[index]).collect())
        });
        Points {
            at_ms: columns.iter().map(|column| column.at_ms).collect(),
            lasted_ms: each(|column| column.lasted_ms),
            decisions: by_result.collect(),
            near_limit: decisions.iter().map(|decisions| decisions.near_limit).collect(),
            totals: totals.map(|whose| Totals {
                requests: Requests {
                    allowed: each(|column| column.allowed),
                    denied: each(|column| column.denied),
                    unmatched: each(|column| column.unmatched),
                },
                sources: by_source.collect(),
                p50_ns: times(|column| column.times.p50),
                p99_ns: times(|column| column.times.p99),
                store: (whose == Whose::Instance).then(|| OfStore {
                    calls: each(|column| column.calls),
                    failed: each(|column| column.failed),
                    unsent: each(|column| column.unsent),
                    p99_ns: times(|column| column.times.store_p99),
                    degraded_shards: each(|column| column.degraded),
                }),
            }),
        }
    }
}

impl<'h> EventAnswer<'h> {
    fn new(event: &'h Event) -> EventAnswer<'h> {
        let Event { at_ms, kind, rule, text } = event;
        EventAnswer {
            at: Instant(UNIX_EPOCH + Duration::from_millis(*at_ms)),
            at_ms: *at_ms,
            kind: kind.name(),
            rule: rule.as_deref(),
            text,
        }
    }
}

/// The estimated bytes of a point in all columns.
const POINT_BYTES: usize = 160;
const NO_SUCH_RANGE: &str = "no such range; write 3m, 15m, 1h, 24h or 48h";
const NO_SUCH_PARAMETER: &str = "no such parameter; there are range, until, rule and of";
