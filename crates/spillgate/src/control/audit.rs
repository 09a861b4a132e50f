//! The audit: the last changes of operators, each with its actor, reason and time.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::time::SystemTime;

use jiff::Timestamp;

use super::note::ChangeNote;
use super::system_time;
use super::table::{Effect, Entry, Stamp};
use crate::limit::LimitSpec;
use crate::policy::{Mode, RuntimeEntry, Subject};
use crate::request::Cost;

/// A change in the audit.
///
/// [`Limiter::audit_log`](crate::Limiter::audit_log) lists them.
#[derive(Clone, Debug)]
pub struct AuditRecord {
    pub(crate) at_us: u64,
    pub(crate) note: ChangeNote,
    pub(crate) rule: Box<str>,
    pub(crate) subject: Subject,
    pub(crate) action: AuditedAction,
    pub(crate) expires_at_us: Option<u64>,
}

/// The action of a change in the audit.
///
/// `Limiter::audit_log` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuditedAction {
    /// Set the mode of a rule.
    SetMode(Mode),
    /// Removed a mode: the policy file's applies again.
    ClearMode,
    /// Set other limits for a subject; `"block"` blocks it.
    SetOverride(Vec<LimitSpec>),
    /// Removed an override.
    RemoveOverride,
    /// Reset the counters of a rule for all subjects.
    ResetRule,
    /// Reset the counters of a rule for one subject.
    ResetSubject,
    /// Charged the counters of a subject.
    Charge(Cost<'static>),
    /// Refunded to the counters of a subject.
    Refund(Cost<'static>),
}

/// The audit of the fleet.
///
/// `Limiter::audit_log` returns it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct AuditLog {
    /// The changes, the newest first.
    pub records: Vec<AuditRecord>,
    /// How many changes on the store cannot be opened, because an instance with another key secret sealed them.
    pub sealed_with_another_secret: usize,
    /// Why the store's part is missing: the changes are then only those that this instance knows. `None` if it is
    /// there, or state is in memory.
    pub incomplete: Option<String>,
    /// The time back to which the changes on the store were read, if fewer than asked for were among those read and
    /// older ones were not. `None` if nothing is missing.
    pub searched_until: Option<SystemTime>,
}

/// The parts of a subject that the log has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SubjectsInLog {
    /// The names of attributes.
    #[default]
    Names,
    /// Names and values.
    Values,
}

/// The last changes that this instance made or learned of, by their time.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    records: BTreeMap<Stamp, AuditRecord>,
    /// Those that were made here, and that the fleet's record does not have yet.
    unsaved: BTreeSet<Stamp>,
    /// How many of those had to go since the last report.
    lost: usize,
}

impl AuditRecord {
    pub(crate) fn of_entry(entry: &Entry) -> AuditRecord {
        let is_set = entry.effect == Effect::Set;
        let (subject, action) = match &entry.what {
            RuntimeEntry::Mode { mode, .. } if is_set => {
                (Subject::default(), AuditedAction::SetMode(*mode))
            }
            RuntimeEntry::Mode { .. } => (Subject::default(), AuditedAction::ClearMode),
            RuntimeEntry::Override { subject, limits, .. } if is_set => {
                (subject.clone(), AuditedAction::SetOverride(limits.clone()))
            }
            RuntimeEntry::Override { subject, .. } => {
                (subject.clone(), AuditedAction::RemoveOverride)
            }
            RuntimeEntry::Generation { .. } => (Subject::default(), AuditedAction::ResetRule),
        };
        AuditRecord {
            at_us: entry.stamp.time_us,
            note: entry.note.clone(),
            rule: entry.what.rule().into(),
            subject,
            action,
            expires_at_us: entry.expires_at_us,
        }
    }

    /// Returns the time of the change.
    pub fn at(&self) -> SystemTime {
        system_time(self.at_us)
    }

    /// Returns the actor, if the change has one.
    pub fn actor(&self) -> Option<&str> {
        self.note.actor()
    }

    /// Returns the reason, if one was given.
    pub fn reason(&self) -> Option<&str> {
        self.note.reason()
    }

    /// Returns the rule that was changed.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Returns whether the change is one of this rule. Without a rule each is.
    pub(crate) fn is_of(&self, rule: Option<&str>) -> bool {
        rule.is_none_or(|rule| rule == self.rule())
    }

    /// Returns the attributes of the subject, sorted by name; none if the change is about the rule.
    pub fn subject(&self) -> impl ExactSizeIterator<Item = (&str, &[u8])> {
        self.subject.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Returns the action.
    pub fn action(&self) -> &AuditedAction {
        &self.action
    }

    /// Returns the time at which the change expires, if it does.
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.expires_at_us.map(system_time)
    }

    /// Logs the change with its time, since an instance learns of earlier changes when it starts.
    pub(crate) fn log(&self, subjects: SubjectsInLog) {
        let (rule, actor, reason) = (self.rule(), self.actor(), self.reason());
        let of: Vec<&str> = self.subject().map(|(name, _)| name).collect();
        let of = of.join(",");
        let subject = (subjects == SubjectsInLog::Values).then(|| self.values());
        let subject = subject.as_deref();
        let at = text_of_time(self.at());
        let expires_at = self.expires_at().map(text_of_time);
        match &self.action {
            AuditedAction::SetMode(mode) => {
                let mode = mode.name();
                tracing::warn!(target: "spillgate", rule, mode, expires_at, actor, reason, at, "an operator set the rule's mode");
            }
            AuditedAction::ClearMode => {
                tracing::info!(target: "spillgate", rule, actor, reason, at, "the rule's runtime mode was removed");
            }
            AuditedAction::SetOverride(limits) => {
                let limits: Vec<String> = limits.iter().map(text_of_limit).collect();
                let limits = limits.join(", ");
                tracing::info!(target: "spillgate", rule, of, subject, limits, expires_at, actor, reason, at, "an operator set an override");
            }
            AuditedAction::RemoveOverride => {
                tracing::info!(target: "spillgate", rule, of, subject, actor, reason, at, "an override was removed");
            }
            AuditedAction::ResetRule => {
                tracing::warn!(target: "spillgate", rule, actor, reason, at, "an operator reset all counters of the rule");
            }
            AuditedAction::ResetSubject => {
                tracing::info!(target: "spillgate", rule, of, subject, actor, reason, at, "an operator reset a subject");
            }
            AuditedAction::Charge(cost) => {
                let cost = text_of(cost);
                tracing::info!(target: "spillgate", rule, of, subject, cost, actor, reason, at, "an operator charged a subject");
            }
            AuditedAction::Refund(cost) => {
                let cost = text_of(cost);
                tracing::info!(target: "spillgate", rule, of, subject, cost, actor, reason, at, "an operator refunded a subject");
            }
        }
    }

    /// Returns a text of the change, for an operator whose own change it refuses.
    pub(crate) fn text(&self) -> String {
        let what = match &self.action {
            AuditedAction::SetMode(mode) => format!("mode {}", mode.name()),
            AuditedAction::SetOverride(limits) => {
                limits.iter().map(text_of_limit).collect::<Vec<_>>().join(", ")
            }
            _ => "a removal".to_owned(),
        };
        let by = self.actor().map_or(String::new(), |actor| format!(" by {actor}"));
        format!("{what}{by} at {}", text_of_time(self.at()))
    }

    fn values(&self) -> String {
        let pair =
            |(name, value): (&str, &[u8])| format!("{name}={}", String::from_utf8_lossy(value));
        self.subject().map(pair).collect::<Vec<_>>().join(",")
    }
}

impl AuditedAction {
    /// Returns the name of the action, as the admin API has it.
    pub fn name(&self) -> &'static str {
        match self {
            AuditedAction::SetMode(_) => "set-mode",
            AuditedAction::ClearMode => "clear-mode",
            AuditedAction::SetOverride(_) => "set-override",
            AuditedAction::RemoveOverride => "remove-override",
            AuditedAction::ResetRule => "reset-rule",
            AuditedAction::ResetSubject => "reset-subject",
            AuditedAction::Charge(_) => "charge",
            AuditedAction::Refund(_) => "refund",
        }
    }
}

impl Audit {
    /// Adds a change. Beyond the largest number the oldest goes.
    pub(crate) fn add(&mut self, stamp: Stamp, record: AuditRecord) {
        self.records.insert(stamp, record);
        if self.records.len() > RECORDS_MAX
            && let Some((oldest, _)) = self.records.pop_first()
        {
            self.lost += usize::from(self.unsaved.remove(&oldest));
        }
    }

    pub(crate) fn remove(&mut self, stamp: Stamp) {
        self.records.remove(&stamp);
        self.unsaved.remove(&stamp);
    }

    /// Corrects all times by the time by which the clock that made them was ahead.
    pub(crate) fn set_back(&mut self, by_us: u64) {
        let records = std::mem::take(&mut self.records).into_iter();
        let earlier = records.map(|(stamp, record)| {
            let stamp = stamp.earlier(by_us);
            (stamp, AuditRecord { at_us: stamp.time_us, ..record })
        });
        self.records = earlier.collect();
        let unsaved = std::mem::take(&mut self.unsaved).into_iter();
        self.unsaved = unsaved.map(|stamp| stamp.earlier(by_us)).collect();
    }

    /// Notes that a change was made here, so that the fleet's record must get it.
    pub(crate) fn note_unsaved(&mut self, stamp: Stamp) {
        if self.records.contains_key(&stamp) {
            self.unsaved.insert(stamp);
        }
    }

    pub(crate) fn note_saved(&mut self, stamp: Stamp) {
        self.unsaved.remove(&stamp);
    }

    /// Returns the oldest change that the fleet's record does not have yet.
    pub(crate) fn next_unsaved(&self) -> Option<(Stamp, AuditRecord)> {
        let stamp = self.unsaved.first()?;
        Some((*stamp, self.records.get(stamp)?.clone()))
    }

    /// Returns how many unsaved changes had to go since the last call.
    pub(crate) fn take_lost(&mut self) -> usize {
        std::mem::take(&mut self.lost)
    }

    pub(crate) fn newest_first(&self) -> Vec<AuditRecord> {
        self.records.values().rev().cloned().collect()
    }

    /// Returns the newest `n` of these and of other changes together, the newest first; only those of a rule, if one is
    /// given.
    pub(crate) fn joined(
        &self,
        mut others: BTreeMap<Stamp, AuditRecord>,
        rule: Option<&str>,
        n: usize,
    ) -> Vec<AuditRecord> {
        let known = self.records.iter().filter(|(_, record)| record.is_of(rule));
        others.extend(known.map(|(stamp, record)| (*stamp, record.clone())));
        others.into_values().rev().take(n).collect()
    }
}

fn text_of(cost: &Cost<'_>) -> String {
    let amounts = cost.amounts().map(|(unit, amount)| format!("{unit}={amount}"));
    amounts.collect::<Vec<_>>().join(",")
}

/// Returns a limit as text, such as `1000/minute burst=2000`.
fn text_of_limit(limit: &LimitSpec) -> String {
    let LimitSpec { quota, burst, algorithm, name, unit, time_zone, max_hold } = limit;
    let burst = burst.map(|burst| burst.to_string());
    let fields = [
        ("burst", &burst),
        ("algorithm", algorithm),
        ("name", name),
        ("unit", unit),
        ("time_zone", time_zone),
        ("max_hold", max_hold),
    ];
    let given = fields
        .into_iter()
        .filter_map(|(field, value)| Some(format!("{field}={}", value.as_ref()?)));
    iter::once(quota.clone()).chain(given).collect::<Vec<_>>().join(" ")
}

/// Returns a time in the form of RFC 3339. One after the year 9999 becomes the last that has a text.
fn text_of_time(time: SystemTime) -> String {
    Timestamp::try_from(time).unwrap_or(Timestamp::MAX).to_string()
}

/// The most changes that are kept: 9 MB at most, and a few hundred kilobytes in practice.
const RECORDS_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn record(at_us: u64) -> AuditRecord {
        AuditRecord {
            at_us,
            note: ChangeNote::by("ann"),
            rule: "api".into(),
            subject: Subject::default(),
            action: AuditedAction::ResetRule,
            expires_at_us: None,
        }
    }

    #[test]
    fn unsaved_changes_are_bounded_and_those_that_had_to_go_are_counted() {
        let mut audit = Audit::default();
        for time_us in 0..1_007 {
            let stamp = Stamp { time_us, random: 0 };
            audit.add(stamp, record(time_us));
            audit.note_unsaved(stamp);
        }
        assert_eq!((audit.take_lost(), audit.take_lost()), (7, 0));
        let mut saved = Vec::new();
        while let Some((stamp, record)) = audit.next_unsaved() {
            audit.note_saved(stamp);
            saved.push(record.at_us);
        }
        assert_eq!(saved, (7..1_007).collect::<Vec<u64>>());
    }

    #[test]
    fn a_change_that_the_store_has_twice_is_listed_once_by_its_time() {
        let mut audit = Audit::default();
        let stamped = |time_us| (Stamp { time_us, random: 0 }, record(time_us));
        audit.add(stamped(3).0, record(3));
        // The store has them in the order in which they were saved.
        let saved = BTreeMap::from([2, 4, 1, 2, 3].map(stamped));
        let listed = |n| -> Vec<u64> {
            audit.joined(saved.clone(), None, n).iter().map(|record| record.at_us).collect()
        };
        assert_eq!((listed(9), listed(2)), (vec![4, 3, 2, 1], vec![4, 3]));
    }

    #[test]
    fn the_last_thousand_are_kept_in_whatever_order_they_come() {
        let mut audit = Audit::default();
        // An instance that starts learns earlier changes in any order.
        for time_us in (0..1_500).map(|at| at * 7 % 1_500) {
            audit.add(Stamp { time_us, random: 0 }, record(time_us));
        }
        let times: Vec<u64> = audit.newest_first().iter().map(|record| record.at_us).collect();
        assert_eq!(times, (500..1_500).rev().collect::<Vec<u64>>());
    }
}
