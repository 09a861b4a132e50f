//! Changes by operators as events. The limiter's audit keeps them, also those made at other instances, so the history
//! stores nothing.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use spillgate::Cost;
use spillgate::control::{AuditRecord, AuditedAction};

use super::event::{Event, EventKind};

/// The mode or override that a change sets or removes. A later change of the same target replaces it.
#[derive(PartialEq, Eq, Hash)]
enum Target<'a> {
    Mode { rule: &'a str },
    Override { rule: &'a str, subject: String },
}

/// Returns an event for each change of an audit, and one for each change that has expired by now. The audit lists the
/// newest change first, the events are in the order of the changes.
pub fn of_audit(audit: &[AuditRecord], now_ms: u64) -> Vec<Event> {
    let mut events = Vec::new();
    let mut replaced_at_ms: HashMap<Target<'_>, u64> = HashMap::new();
    for record in audit {
        let event =
            |at_ms, text: &str| Event::new(at_ms, EventKind::Change, Some(record.rule()), text);
        let at_ms = ms_of(record.at());
        events.push(event(at_ms, &text_of(record)));
        let Some(target) = Target::from_record(record) else { continue };
        let expired = target.expired();
        let replaced_ms = replaced_at_ms.insert(target, at_ms).unwrap_or(u64::MAX);
        if let Some(end_ms) = record.expires_at().map(ms_of)
            && end_ms <= now_ms.min(replaced_ms)
        {
            events.push(event(end_ms, &expired));
        }
    }
    events.reverse();
    events
}

/// Returns a time in milliseconds since 1970-01-01 00:00 UTC.
pub fn ms_of(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Target<'_> {
    /// Returns the target of a change; `None` for one that cannot expire.
    fn from_record(record: &AuditRecord) -> Option<Target<'_>> {
        let rule = record.rule();
        match record.action() {
            AuditedAction::SetMode(_) | AuditedAction::ClearMode => Some(Target::Mode { rule }),
            AuditedAction::SetOverride(_) | AuditedAction::RemoveOverride => {
                Some(Target::Override { rule, subject: subject_of(record) })
            }
            _ => None,
        }
    }

    /// Returns the end of a change as a sentence.
    fn expired(&self) -> String {
        match self {
            Target::Mode { rule } => format!("the mode that was set for {rule} has expired"),
            Target::Override { rule, subject } => {
                format!("the override of {rule} for {subject} has expired")
            }
        }
    }
}

/// Returns a change as a sentence, such as `ann set api to off (incident 4711)`.
fn text_of(record: &AuditRecord) -> String {
    let (rule, subject) = (record.rule(), subject_of(record));
    let done = match record.action() {
        AuditedAction::SetMode(mode) => format!("set {rule} to {}", mode.name()),
        AuditedAction::ClearMode => format!("set {rule} back to the mode of the policy file"),
        AuditedAction::SetOverride(limits) => {
            let quotas: Vec<&str> = limits.iter().map(|limit| &*limit.quota).collect();
            match quotas.as_slice() {
                ["block"] => format!("blocked {subject} in {rule}"),
                quotas => format!("limited {subject} in {rule} to {}", quotas.join(", ")),
            }
        }
        AuditedAction::RemoveOverride => format!("removed the override of {rule} for {subject}"),
        AuditedAction::ResetRule => format!("reset every subject of {rule}"),
        AuditedAction::ResetSubject => format!("reset {subject} in {rule}"),
        AuditedAction::Charge(cost) => format!("charged {} to {subject} in {rule}", amounts(cost)),
        AuditedAction::Refund(cost) => format!("refunded {} to {subject} in {rule}", amounts(cost)),
        other => format!("changed {rule}: {}", other.name()),
    };
    let reason = record.reason().map_or(String::new(), |reason| format!(" ({reason})"));
    format!("{} {done}{reason}", record.actor().unwrap_or("an operator"))
}

/// Returns a subject as text, such as `tenant=acme user=ann`.
fn subject_of(record: &AuditRecord) -> String {
    let pair = |(name, value): (&str, &[u8])| format!("{name}={}", String::from_utf8_lossy(value));
    let pairs: Vec<String> = record.subject().map(pair).collect();
    match pairs.as_slice() {
        [] => "every subject".to_owned(),
        pairs => pairs.join(" "),
    }
}

/// Returns a cost as text, such as `5 requests, 900 tokens`.
fn amounts(cost: &Cost<'_>) -> String {
    let each = cost.amounts().map(|(unit, amount)| format!("{amount} {unit}"));
    each.collect::<Vec<_>>().join(", ")
}
