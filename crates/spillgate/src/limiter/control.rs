//! Runtime changes by operators: overrides, blocks, rule modes and resets of rules; [`state`] changes
//! the state of one subject.
//!
//! Every runtime change is an entry of a [`Table`](crate::control::Table). [`writing`] stamps it and puts
//! it in force. [`audit`] keeps a list of all changes. [`exchange`] makes the fleet's record and this table equal. [`watch`] does so
//! periodically, and removes expired entries.

use std::sync::Arc;
use std::time::SystemTime;

use super::Limiter;
use crate::control::{
    AuditRecord, ChangeNote, ControlError, Override, RuleMode, SUBJECT_BYTES_MAX, WriteReport,
    system_time,
};
use crate::control::{Entry, EntryId};
use crate::limit::LimitSpec;
use crate::policy::{Mode, RuntimeEntry, Subject};
use crate::request::Request;

mod audit;
mod denials;
mod exchange;
#[cfg(feature = "redis")]
mod history;
mod state;
mod watch;
mod writing;

pub(crate) use writing::Control;

/// Runtime changes. They stay in force when the policy is replaced.
///
/// A change is in force at this instance when the call returns, whether or not the store answers.
///
/// With state in memory changes end with the process. On a store they survive it, because the store has
/// a record of all changes, and every instance applies a change within a second. If the store loses its
/// data, any instance that knows a change writes it again. A change that was made while the store was
/// down is saved when the store is back, unless this process ended before.
///
/// Of two changes to the same mode or override, the newest wins everywhere. The time of a change is
/// the last known time of the store plus the time that has passed since. An instance that never saw
/// the store goes by its own wall clock.
impl Limiter {
    /// Returns this limiter for the changes of one actor. It shares everything with this one; its
    /// runtime changes, charges, refunds and resets carry the note in [`audit`](Self::audit) and log.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::control::ChangeNote;
    /// use spillgate::{Limiter, Mode, Policy};
    /// let policy = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"10/second\"]";
    /// let limiter = Limiter::builder().policy(Policy::from_toml(policy)?).build().await?;
    /// let ann = limiter.with_note(ChangeNote::by("ann").because("incident 4711"));
    /// ann.set_mode("api", Mode::Off, None).await?;
    /// let record = &limiter.audit()[0];
    /// assert_eq!((record.actor(), record.reason()), (Some("ann"), Some("incident 4711")));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn with_note(&self, note: ChangeNote) -> Limiter {
        Limiter { note: Some(Arc::new(note)), ..self.clone() }
    }

    /// Returns the last 1,000 changes by operators that this instance made or learned of, the newest first.
    ///
    /// It does not ask the store, so charges, refunds and resets of one subject are those made at this
    /// instance since it started. [`Limiter::audit_log`] has those of the fleet.
    pub fn audit(&self) -> Vec<AuditRecord> {
        self.inner.control.audit.lock().newest_first()
    }

    /// Returns the runtime changes that the store does not have, the oldest first: those made
    /// while the store was down. They are lost if this instance ends before the store is back.
    ///
    /// It is empty if state is in memory, where no change outlives its instance.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limit, Limiter, Mode, Policy, Rule};
    ///
    /// let api = Rule::new("api").key(["user"]).limit(Limit::per_day(2));
    /// let policy = Policy::builder().rule(api).build()?;
    /// let store = "redis://127.0.0.1:1"; // nothing listens there
    /// let limiter = Limiter::builder().policy(policy).redis(store).build().await?;
    /// limiter.set_mode("api", Mode::Off, None).await?;
    /// assert_eq!(limiter.unsaved_changes()[0].rule(), "api");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    #[cfg(feature = "redis")]
    pub fn unsaved_changes(&self) -> Vec<AuditRecord> {
        let Some(_) = self.inner.engine.store() else { return Vec::new() };
        let control = &self.inner.control;
        let now_us = control.now_us();
        let mut table = control.table.lock();
        // The record has forgotten these too, so their absence there is no loss.
        table.forget(now_us);
        let is_unsaved = |(id, entry): &(EntryId, &Entry)| {
            !entry.is_expired(now_us) && !control.record.has(*id, entry, now_us)
        };
        let mut unsaved: Vec<&Entry> =
            table.entries().filter(is_unsaved).map(|(_, entry)| entry).collect();
        unsaved.sort_unstable_by_key(|entry| entry.stamp);
        unsaved.into_iter().map(AuditRecord::of_entry).collect()
    }

    /// Sets other limits for a subject of a rule, until they are removed or expire. The quota
    /// `"block"` blocks the subject.
    ///
    /// The subject is some of the rule's key attributes, and covers every subject that has them.
    /// Without attributes it covers every subject of the rule. For one attribute of type ip it may
    /// be a network, `203.0.113.0/24`: each subject inside has the limits by itself. An address
    /// covers the subject that it belongs to, usually the /64 of an IPv6 address;
    /// [`Policy::named_subject`](crate::Policy::named_subject) returns it.
    ///
    /// If several overrides apply, the one with more attributes wins, then the smallest network of
    /// the same attribute. Else a runtime change wins over the policy file, and the newest runtime
    /// change over others.
    ///
    /// Limits pair with the rule's limits by name, else by position; unset fields are the rule's.
    /// Used quota stays used.
    ///
    /// # Errors
    /// Returns [`ControlError`] if the rule does not exist, a limit is invalid, or the change is too
    /// long or has expired.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limiter, Policy, Request, Reason};
    /// let policy = "[[rule]]\nname = \"api\"\nkey = [\"tenant\", \"user\"]\nlimits = [\"10/second\"]";
    /// let limiter = Limiter::builder().policy(Policy::from_toml(policy)?).build().await?;
    /// let acme = Request::new().with("tenant", "acme");
    /// limiter.set_override("api", &acme, ["block"], None).await?;
    /// let ann = acme.clone().with("user", "ann");
    /// assert_eq!(limiter.check(&ann).await.reason(), Some(Reason::Blocked));
    /// limiter.remove_override("api", &acme).await?;
    /// assert!(limiter.check(&ann).await.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn set_override(
        &self,
        rule: &str,
        subject: &Request<'_>,
        limits: impl IntoIterator<Item: Into<LimitSpec>>,
        expires_at: Option<SystemTime>,
    ) -> Result<WriteReport, ControlError> {
        let policy = self.policy();
        let subject = policy.named_subject(subject);
        let limits: Vec<LimitSpec> = limits.into_iter().map(Into::into).collect();
        policy.pairs(rule, &subject, &limits)?;
        if length(&subject, &limits) > SUBJECT_BYTES_MAX {
            return Err(ControlError::TooLong);
        }
        let set = |_| RuntimeEntry::Override {
            rule: rule.into(),
            subject: subject.clone(),
            limits: limits.clone(),
        };
        self.inner.set(set, expires_at, &self.note()).await
    }

    /// Removes an override that was set as a runtime change, even if its rule is gone. Any address
    /// of a subject names its override, as for [`Limiter::set_override`].
    ///
    /// # Errors
    /// Returns [`ControlError::NotSet`] if there is no override of these very subjects, and
    /// [`ControlError::Refused`] if the rule cannot have one.
    pub async fn remove_override(
        &self,
        rule: &str,
        subject: &Request<'_>,
    ) -> Result<WriteReport, ControlError> {
        let (named, written) = (self.policy().named_subject(subject), named_by(subject));
        if length(&written, &[]) > SUBJECT_BYTES_MAX {
            return Err(ControlError::TooLong);
        }
        let about =
            |subject| RuntimeEntry::Override { rule: rule.into(), subject, limits: Vec::new() };
        // It may have been set under another type of an attribute, and is listed as it was set. Both are removed,
        // since without the store this instance cannot know which of them is set.
        let is_one = named == written;
        let mut removed = self.inner.take_back(about(named.clone()), &self.note()).await?;
        if !is_one {
            let as_written = self.inner.take_back(about(written), &self.note()).await?;
            removed = removed.or(as_written);
        }
        removed.ok_or_else(|| self.no_override_of(rule, &named))
    }

    /// Returns the error that these subjects have no override: a mistake in their names, or another
    /// override that covers them.
    fn no_override_of(&self, rule: &str, subject: &Subject) -> ControlError {
        let policy = self.policy();
        if let Err(mistake) = policy.can_override(rule, subject) {
            return mistake.into();
        }
        let overrides = self.overrides();
        let covers = |set: &&Override| set.rule() == rule && policy.covers(&set.subject, subject);
        let Some(covering) = overrides.iter().rfind(covers) else {
            return ControlError::NotSet { message: NO_OVERRIDE.to_owned() };
        };
        let text =
            |(name, value): (&str, &[u8])| format!("{name}={:?}", String::from_utf8_lossy(value));
        let named: Vec<String> = covering.subject().map(text).collect();
        let named = if named.is_empty() { EVERY_SUBJECT.to_owned() } else { named.join(" ") };
        let message = format!(
            "there is no runtime override of this very subject, but one that covers it: {named}; remove that one, or set other limits for this subject"
        );
        ControlError::NotSet { message }
    }

    /// Returns the overrides set as runtime changes, in the order in which they were set. Those of
    /// the policy file are not included.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limit, Limiter, Policy, Request, Rule};
    ///
    /// let api = Rule::new("api").key(["user"]).limit(Limit::per_day(2));
    /// let policy = Policy::builder().rule(api).build()?;
    /// let limiter = Limiter::builder().policy(policy).build().await?;
    /// let ada = Request::new().with("user", "ada");
    /// limiter.set_override("api", &ada, ["5/day"], None).await?;
    ///
    /// let overrides = limiter.overrides();
    /// assert_eq!((overrides.len(), overrides[0].rule()), (1, "api"));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn overrides(&self) -> Vec<Override> {
        let control = &self.inner.control;
        let table = control.table.lock();
        let live = table.live(control.now_us()).into_iter();
        let listed = live.filter_map(|(id, entry)| {
            let RuntimeEntry::Override { rule, subject, limits } = &entry.what else {
                return None;
            };
            Some(Override {
                rule: rule.clone(),
                subject: subject.clone(),
                limits: limits.clone(),
                written_at: system_time(entry.stamp.time_us),
                expires_at: entry.expires_at_us.map(system_time),
                note: entry.note.clone(),
                not_in_force: table.why_not(id).cloned(),
                is_saved: self.inner.is_saved(id, entry),
            })
        });
        listed.collect()
    }

    /// Sets the mode of a rule, until it is removed or expires. Mode `off` is a kill switch.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limit, Limiter, Mode, Policy, Request, Rule};
    ///
    /// let broken = Rule::new("api").key(["user"]).limit(Limit::block());
    /// let policy = Policy::builder().rule(broken).build()?;
    /// let limiter = Limiter::builder().policy(policy).build().await?;
    /// let ada = Request::new().with("user", "ada");
    /// assert!(!limiter.check(&ada).await.allowed());
    ///
    /// limiter.set_mode("api", Mode::Off, None).await?;
    /// assert!(limiter.check(&ada).await.is_unmatched());
    /// assert_eq!(limiter.modes()[0].in_force(), Mode::Off);
    ///
    /// limiter.clear_mode("api").await?;
    /// assert!(!limiter.check(&ada).await.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn set_mode(
        &self,
        rule: &str,
        mode: Mode,
        expires_at: Option<SystemTime>,
    ) -> Result<WriteReport, ControlError> {
        let policy = self.policy();
        policy.rule(rule).ok_or_else(|| policy.unknown_rule(rule))?;
        let set = |_| RuntimeEntry::Mode { rule: rule.into(), mode };
        self.inner.set(set, expires_at, &self.note()).await
    }

    /// Removes a mode that was set as a runtime change. The mode of the policy file applies again.
    ///
    /// # Errors
    /// Returns [`ControlError::NotSet`] if the rule has no runtime mode, and
    /// [`ControlError::Refused`] if there is no such rule.
    pub async fn clear_mode(&self, rule: &str) -> Result<WriteReport, ControlError> {
        let about = RuntimeEntry::Mode { rule: rule.into(), mode: Mode::Off };
        if let Some(report) = self.inner.take_back(about, &self.note()).await? {
            return Ok(report);
        }
        let policy = self.policy();
        let mode = policy.written_mode(rule).ok_or_else(|| policy.unknown_rule(rule))?.name();
        let message = format!(
            "rule {rule:?} has no runtime mode; the policy file's, {mode}, is in force: edit the file to change it, or set a mode"
        );
        Err(ControlError::NotSet { message })
    }

    /// Returns the mode of each rule in file order, followed by modes set for rules that are gone.
    pub fn modes(&self) -> Vec<RuleMode> {
        let control = &self.inner.control;
        let table = control.table.lock();
        let live = table.live(control.now_us());
        RuleMode::of_all(&self.policy(), live.iter().map(|(_, entry)| *entry))
    }

    /// Resets the counters of a rule for all subjects at once. The rule starts with new counters,
    /// and the old ones expire. Overrides and modes stay.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limit, Limiter, Policy, Request, Rule};
    ///
    /// let api = Rule::new("api").key(["user"]).limit(Limit::per_day(2));
    /// let policy = Policy::builder().rule(api).build()?;
    /// let limiter = Limiter::builder().policy(policy).build().await?;
    /// let ada = Request::new().with("user", "ada");
    /// assert!(limiter.check(&ada.clone().costing(2)).await.allowed());
    ///
    /// limiter.reset_rule("api").await?;
    /// assert_eq!(limiter.peek(&ada).await.remaining(), Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn reset_rule(&self, rule: &str) -> Result<WriteReport, ControlError> {
        let policy = self.policy();
        policy.rule(rule).ok_or_else(|| policy.unknown_rule(rule))?;
        // The generation is part of the keys, so a new one makes all old state unreachable at once.
        let set = |number| RuntimeEntry::Generation { rule: rule.into(), number };
        self.inner.set(set, None, &self.note()).await
    }

    fn note(&self) -> ChangeNote {
        self.note.as_deref().cloned().unwrap_or_default()
    }
}

fn named_by(subject: &Request<'_>) -> Subject {
    let mut named: Vec<_> =
        subject.attributes().map(|(name, value)| (name.into(), value.into())).collect();
    named.sort_unstable();
    named.into()
}

/// Returns the number of bytes that the operator gave.
fn length(subject: &Subject, limits: &[LimitSpec]) -> usize {
    let subject = subject.iter().map(|(name, value)| name.len() + value.len());
    let limits = limits.iter().map(|limit| {
        let LimitSpec { quota, algorithm, burst: _, name, unit, time_zone, max_hold } = limit;
        let texts = [algorithm, name, unit, time_zone, max_hold].into_iter().flatten();
        quota.len() + texts.map(String::len).sum::<usize>()
    });
    subject.chain(limits).sum()
}

const NO_OVERRIDE: &str = "there is no such runtime override; list the overrides that are set (`spillgate admin overrides`), and edit the policy file to change its own";
const EVERY_SUBJECT: &str = "the one without attributes, of the whole rule";
