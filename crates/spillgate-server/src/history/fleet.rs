//! The history of the whole fleet, in the form of that of an instance. It has a point each minute.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use spillgate::Limiter;
use spillgate::control::ControlError;
use spillgate::history::{FleetEvent, FleetMinute};

use super::changes::{self, ms_of};
use super::event::{Event, EventKind};
use super::window::{Column, Times};
use super::{Extract, Range, RuleSum, Series, now_ms};

/// Returns the points and events of a range that ends at `until_ms`, or now: of one rule, or of all. `None` if state is in
/// memory, where there is no fleet.
pub(crate) async fn extract(
    limiter: &Limiter,
    range: Range,
    until_ms: Option<u64>,
    rule: Option<&str>,
) -> Result<Option<Extract>, ControlError> {
    let until_ms = until_ms.unwrap_or_else(now_ms);
    let from_ms = until_ms.saturating_sub(range.span_ms());
    let at = |ms| UNIX_EPOCH + Duration::from_millis(ms);
    let read = limiter.fleet_history(at(from_ms), at(until_ms), rule).await?;
    let Some(history) = read else { return Ok(None) };
    let sums = history
        .rules
        .into_iter()
        .map(|(rule, decisions)| RuleSum { rule: rule.map(Arc::from), decisions });
    let sums = RuleSum::ranked(sums.collect());
    let is_kept = |rule: &str| {
        let is_own = sums.iter().any(|sum| sum.rule.as_deref() == Some(rule));
        // With other rules counted together, those of this one may be among them.
        is_own || sums.iter().all(|sum| sum.rule.is_some())
    };
    let (series, rules) = match rule {
        None => (Series::Sums, sums),
        Some(rule) if is_kept(rule) => (Series::Own { since_ms: None }, Vec::new()),
        Some(_) => (Series::Absent, Vec::new()),
    };
    let audit = limiter.audit_log(None, CHANGES_MAX).await;
    let mut events = changes::of_audit(&audit.records, now_ms());
    events.extend(joined(&history.events));
    events.retain(|event| (from_ms..=until_ms).contains(&event.at_ms) && event.concerns(rule));
    events.sort_by_key(|event| event.at_ms);
    Ok(Some(Extract {
        columns: history.minutes.iter().map(column).collect(),
        decisions: history.minutes.iter().map(|minute| minute.decisions).collect(),
        series,
        rules,
        events,
    }))
}

/// Returns the events of instances, one for all instances that had an equal one at about the same time.
fn joined(events: &[FleetEvent]) -> Vec<Event> {
    let mut joined: Vec<(&FleetEvent, Vec<&str>)> = Vec::new();
    for event in events {
        let is_equal = |(first, _): &&mut (&FleetEvent, _)| {
            let later = event.at.duration_since(first.at).unwrap_or_default();
            (&first.kind, &first.text) == (&event.kind, &event.text) && later < ABOUT
        };
        match joined.iter_mut().rev().find(is_equal) {
            Some((_, instances)) if !instances.contains(&&*event.instance) => {
                instances.push(&event.instance)
            }
            Some(_) => {}
            None => joined.push((event, vec![&event.instance])),
        }
    }
    let event = |(first, instances): (&FleetEvent, Vec<&str>)| {
        let kind = EventKind::named(&first.kind)?;
        let named = instances.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
        let more = match instances.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let text = format!("{named}{more}: {}", first.text);
        Some(Event::new(ms_of(first.at), kind, None, &text))
    };
    joined.into_iter().filter_map(event).collect()
}

fn column(minute: &FleetMinute) -> Column {
    Column {
        at_ms: ms_of(minute.begin) + MINUTE_MS,
        lasted_ms: MINUTE_MS as u32,
        allowed: minute.allowed,
        denied: minute.denied,
        unmatched: minute.unmatched,
        sources: minute.sources,
        times: Times {
            p50: minute.times.percentile(50),
            p99: minute.times.percentile(99),
            store_p99: None,
        },
        ..Column::default()
    }
}

const MINUTE_MS: u64 = 60_000;
/// The newest changes that become events.
const CHANGES_MAX: usize = 1_000;
/// Equal events of several instances within this time are one.
const ABOUT: Duration = Duration::from_secs(60);
/// The most instances that a joined event names.
const NAMED_MAX: usize = 3;
