//! The history of the whole fleet, in the form of that of an instance. It has a point each minute.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use spillgate::Limiter;
use spillgate::control::ControlError;
use spillgate::history::{FleetEvent, FleetMinute, RuleHistory, recorded_until};

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
    let at = |ms| UNIX_EPOCH + Duration::from_millis(ms);
    let last_ms = until_ms.unwrap_or_else(|| ms_of(recorded_until(at(now_ms()))));
    let from_ms = last_ms.saturating_sub(range.span_ms());
    // The last events are younger than the last minute.
    let end_ms = until_ms.unwrap_or_else(now_ms);
    let read = limiter.fleet_history(at(from_ms), at(end_ms), rule).await?;
    let Some(history) = read else { return Ok(None) };
    let sums = history.rules.into_iter().map(RuleSum::from).collect();
    let sums = RuleSum::ranked(sums);
    let series_of = |name: &str| {
        let is_known = sums.iter().any(|sum| sum.rule.as_deref() == Some(name));
        let since_ms = history.rule_since.map(ms_of);
        // Beyond its first thousand rules, an instance counts all others as one.
        let may_be_elsewhere = sums.iter().any(|sum| sum.rule.as_deref() == Some("other"));
        let is_none = !is_known && (may_be_elsewhere || limiter.policy().rule(name).is_none());
        match is_none || since_ms.is_some_and(|since_ms| since_ms >= last_ms) {
            true => Series::Absent,
            false => Series::Own { since_ms },
        }
    };
    let (series, rules) = match rule {
        None => (Series::Sums, sums),
        Some(rule) => (series_of(rule), Vec::new()),
    };
    let audit = limiter.audit_log(None, CHANGES_MAX).await;
    let mut events = changes::of_audit(&audit.records, now_ms());
    events.extend(joined(&history.events));
    let shown = from_ms..=end_ms;
    events.retain(|event| shown.contains(&event.at_ms) && event.concerns(rule));
    events.sort_by_key(|event| event.at_ms);
    Ok(Some(Extract {
        columns: history.minutes.iter().map(column).collect(),
        decisions: history.minutes.iter().map(|minute| minute.decisions).collect(),
        series,
        rules,
        events,
    }))
}

impl From<RuleHistory> for RuleSum {
    fn from(history: RuleHistory) -> RuleSum {
        let RuleHistory { rule, allowed, denied, would_deny, .. } = history;
        RuleSum { rule: rule.map(Arc::from), allowed, denied, would_deny }
    }
}

/// Returns the events of instances, one for all instances that had an equal one at about the same time.
fn joined(events: &[FleetEvent]) -> Vec<Event> {
    let mut joined: Vec<(&FleetEvent, Vec<&str>)> = Vec::new();
    for event in events {
        // A second one of the same instance is another event.
        let is_equal = |(first, instances): &&mut (&FleetEvent, Vec<&str>)| {
            let later = event.at.duration_since(first.at).unwrap_or_default();
            let is_new = !instances.contains(&&*event.instance);
            (&first.kind, &first.text) == (&event.kind, &event.text) && later < ABOUT && is_new
        };
        match joined.iter_mut().rev().find(is_equal) {
            Some((_, instances)) => instances.push(&event.instance),
            None => joined.push((event, vec![&event.instance])),
        }
    }
    let event = |(first, mut instances): (&FleetEvent, Vec<&str>)| {
        let kind = EventKind::named(&first.kind)?;
        instances.sort_unstable();
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
