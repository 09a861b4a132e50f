//! Writes runtime changes: stamps an entry, puts it in force with the policy, records it in the
//! audit, and passes it on to the fleet's record.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::super::{InForce, Inner, Published};
use super::watch::Watch;
use crate::control::{
    Audit, AuditRecord, ChangeNote, ControlError, Effect, Entry, EntryId, Stamp, SubjectsInLog,
    Table, WriteReport, id_of, random, system_time,
};
#[cfg(feature = "redis")]
use crate::control::{AuditSeal, Record};
use crate::policy::RuntimeEntry;
use crate::subject::Secret;
use crate::time::Clock;
use crate::time::boottime_us;

/// The runtime changes and their clock.
#[derive(Debug)]
pub(crate) struct Control {
    /// Held while entries are put in force, and never across an await.
    pub(crate) table: Mutex<Table>,
    /// Locked after the table, if both are.
    pub(crate) audit: Mutex<Audit>,
    /// Held while changes are appended to the audit on the store. Whether it refused the last one.
    #[cfg(feature = "redis")]
    pub(crate) saving_audit: tokio::sync::Mutex<bool>,
    #[cfg(feature = "redis")]
    pub(crate) audit_seal: AuditSeal,
    subjects_in_log: SubjectsInLog,
    pub(crate) watch: Watch,
    #[cfg(feature = "redis")]
    pub(crate) record: Record,
    /// When the policy was put in force, by the wall clock.
    policy_loaded_us: AtomicU64,
    /// The clock of an instance that never saw the store, and of state in memory.
    clock: Clock,
    /// The store's clock by the last beat or exchange, less a clock of this machine that is never set and goes on while it
    /// sleeps; [`NEVER_SEEN`] before the first exchange.
    store_offset_us: AtomicI64,
}

impl Inner {
    /// Writes a change. `what` gets the time of writing, which becomes the generation of a reset.
    pub async fn set(
        self: &Arc<Self>,
        what: impl Fn(u64) -> RuntimeEntry,
        expires_at: Option<SystemTime>,
        note: &ChangeNote,
    ) -> Result<WriteReport, ControlError> {
        let expires_at_us = expires_at.map(us_since_epoch);
        if expires_at_us.is_some_and(|end| end <= self.control.now_us()) {
            return Err(ControlError::Expired);
        }
        let id = id_of(&what(0), &self.secret);
        let entry = |stamp: Stamp| Entry {
            stamp,
            expires_at_us,
            what: what(stamp.time_us),
            effect: Effect::Set,
            note: note.kept(),
        };
        self.write(id, entry, note.replaces()).await
    }

    /// Removes the change to the same rule and subject. Returns `None` if there is none.
    pub async fn take_back(
        self: &Arc<Self>,
        about: RuntimeEntry,
        note: &ChangeNote,
    ) -> Result<Option<WriteReport>, ControlError> {
        let id = id_of(&about, &self.secret);
        let control = &self.control;
        // Another instance may have made the change a moment ago. If the store does not answer, this
        // cannot be known, so the change is removed all the same.
        if !control.has_live(id) && self.follow().await && !control.has_live(id) {
            return Ok(None);
        }
        let entry = |stamp| Entry {
            stamp,
            expires_at_us: None,
            what: about.clone(),
            effect: Effect::Removed,
            note: note.kept(),
        };
        self.write(id, entry, note.replaces()).await.map(Some)
    }

    /// Puts an entry in force here at once, then saves it in the record. If the store is down, the task
    /// that watches the record saves it later.
    async fn write(
        self: &Arc<Self>,
        id: EntryId,
        entry: impl Fn(Stamp) -> Entry,
        replaces: Option<SystemTime>,
    ) -> Result<WriteReport, ControlError> {
        if replaces.is_some() {
            // Another instance may have made a change a moment ago.
            self.follow().await;
        }
        let (mut report, mut earlier) = (WriteReport::default(), None);
        for _ in 0..STAMPS {
            let entry = self.control.stamped(id, &entry, replaces)?;
            if let Some(earlier) = earlier.replace(entry.stamp) {
                // It is one change, so the audit has it once.
                self.control.audit.lock().remove(earlier);
            }
            self.learn([(id, entry.clone())]);
            self.note_unsaved(entry.stamp);
            self.watch();
            let why_unsaved = self.save(id, &entry).await.err();
            let table = self.control.table.lock();
            // It is earlier if the store's time has corrected it meanwhile.
            let stamp = table.entry(id).map_or(entry.stamp, |known| known.stamp.min(entry.stamp));
            report = WriteReport { why_unsaved, written_at_us: stamp.time_us };
            if !table.has_newer(id, &entry) {
                break;
            }
        }
        // Else the task that watches the record does it when the store is back.
        if report.is_saved() {
            self.save_audit().await;
        }
        Ok(report)
    }

    /// Notes that the audit on the store lacks a change. In memory there is none.
    fn note_unsaved(&self, stamp: Stamp) {
        if !self.engine.is_memory() {
            self.control.audit.lock().note_unsaved(stamp);
        }
    }

    /// Logs a change that is no entry, and adds it to the audit. `record` gets its time.
    pub async fn record(&self, record: impl FnOnce(u64) -> AuditRecord) {
        let stamp = self.control.record(record);
        self.note_unsaved(stamp);
        self.save_audit().await;
    }

    /// Puts entries in force. Waiting callers try again if that changes the policy.
    pub fn learn(&self, entries: impl IntoIterator<Item = (EntryId, Entry)>) {
        if self.control.learn(entries, &self.in_force) {
            self.note_new_limits();
        }
    }
}

impl Control {
    pub(crate) fn new(clock: Clock, secret: &Secret, subjects_in_log: SubjectsInLog) -> Control {
        Control {
            table: Mutex::default(),
            audit: Mutex::default(),
            #[cfg(feature = "redis")]
            saving_audit: tokio::sync::Mutex::default(),
            #[cfg(feature = "redis")]
            audit_seal: AuditSeal::new(secret),
            subjects_in_log,
            watch: Watch::default(),
            #[cfg(feature = "redis")]
            record: Record::new(secret),
            policy_loaded_us: AtomicU64::new(clock.now_us()),
            clock,
            store_offset_us: AtomicI64::new(NEVER_SEEN),
        }
    }

    /// Puts a policy in force, joined with the runtime changes.
    pub(crate) fn set_policy(&self, new: &InForce, in_force: &Published) {
        self.policy_loaded_us.store(self.clock.now_us(), Ordering::Relaxed);
        self.publish(&mut self.table.lock(), new, in_force);
    }

    /// Returns when the policy was put in force, in microseconds since the epoch.
    pub fn policy_loaded_us(&self) -> u64 {
        self.policy_loaded_us.load(Ordering::Relaxed)
    }

    /// Stamps an entry that is written now. It is refused unless it replaces the version that it must.
    fn stamped(
        &self,
        id: EntryId,
        entry: &impl Fn(Stamp) -> Entry,
        replaces: Option<SystemTime>,
    ) -> Result<Entry, ControlError> {
        let now_us = self.now_us();
        let mut table = self.table.lock();
        let known = table.entry(id);
        if replaces.is_some_and(|replaces| {
            known.is_none_or(|known| system_time(known.stamp.time_us) != replaces)
        }) {
            let there =
                known.map_or("nothing".to_owned(), |known| AuditRecord::of_entry(known).text());
            let message =
                format!("another change came first, so nothing was done: there is {there}");
            return Err(ControlError::Changed { message });
        }
        let entry = entry(table.stamp(now_us, random()));
        match table.has_room_for(id, &entry.what, now_us) {
            true => Ok(entry),
            false => Err(ControlError::Full),
        }
    }

    /// Returns whether an entry has an effect now.
    fn has_live(&self, id: EntryId) -> bool {
        let now_us = self.now_us();
        self.table.lock().entry(id).is_some_and(|entry| entry.is_live(now_us))
    }

    /// Adds entries to the table, records those that are new in the audit, and puts them in force.
    /// Logs the new ones, except those that have expired. Returns whether it published a policy.
    fn learn(
        &self,
        entries: impl IntoIterator<Item = (EntryId, Entry)>,
        in_force: &Published,
    ) -> bool {
        let mut table = self.table.lock();
        let now_us = self.now_us();
        let (mut merged, mut news) = (Vec::new(), 0);
        for (id, entry) in entries {
            let (stamp, record) = (entry.stamp, AuditRecord::of_entry(&entry));
            let is_current = !entry.is_expired(now_us);
            if table.merge(id, entry) {
                merged.push(id);
                news += usize::from(is_current);
                if is_current && news <= LOGGED_MAX {
                    record.log(self.subjects_in_log);
                }
                self.audit.lock().add(stamp, record);
            }
        }
        if news > LOGGED_MAX {
            let more = news - LOGGED_MAX;
            tracing::info!(target: "spillgate", more, "further runtime changes");
        }
        match (table.is_outdated(now_us), &merged[..]) {
            (false, []) => return false,
            (false, [id]) if self.publish_newest(*id, &mut table, in_force) => {}
            _ => self.publish(&mut table, &in_force.load(), in_force),
        }
        true
    }

    fn record(&self, record: impl FnOnce(u64) -> AuditRecord) -> Stamp {
        let stamp = self.table.lock().stamp(self.now_us(), random());
        let record = record(stamp.time_us);
        record.log(self.subjects_in_log);
        self.audit.lock().add(stamp, record);
        stamp
    }

    /// Returns the time in microseconds since the epoch, by the clock that stamps and expiry use:
    /// the last known time of the store and the time that has passed since. An instance that never
    /// saw the store goes by its own wall clock.
    pub fn now_us(&self) -> u64 {
        match self.store_offset_us.load(Ordering::Relaxed) {
            NEVER_SEEN => self.clock.now_us(),
            offset_us => self.steady_us().saturating_add_signed(offset_us),
        }
    }

    /// Sets that clock by the store's. If this instance's own clock was ahead until now, its changes get the store's time
    /// before the store gets them. Otherwise all later changes of the fleet would be stamped after them, and a removal
    /// kept until its stamp has passed.
    pub fn note_time(&self, store_us: u64) {
        let offset_us = store_us.wrapping_sub(self.steady_us()).cast_signed();
        let mut table = self.table.lock();
        let ahead_us = self.now_us().saturating_sub(store_us);
        let before_us = self.store_offset_us.swap(offset_us, Ordering::Relaxed);
        if before_us == NEVER_SEEN && ahead_us > 0 {
            table.set_back(ahead_us);
            self.audit.lock().set_back(ahead_us);
        }
    }

    /// Returns whether the store's time is known.
    #[cfg(feature = "redis")]
    pub fn knows_time(&self) -> bool {
        self.store_offset_us.load(Ordering::Relaxed) != NEVER_SEEN
    }

    /// Returns the microseconds of a clock that is never set. A given clock is its own.
    fn steady_us(&self) -> u64 {
        match &self.clock {
            Clock::System => boottime_us(),
            given => given.now_us(),
        }
    }

    /// Puts an entry in force without joining all others again, if it is the newest and the policy can take it so. With
    /// 10,000 overrides a whole change then takes 1.6 ms in a debug build, in place of 61 ms.
    fn publish_newest(&self, id: EntryId, table: &mut Table, in_force: &Published) -> bool {
        let before = in_force.load();
        let newest = table.newest(id, self.now_us());
        let Some(policy) = newest.and_then(|entry| before.policy.with_newest(&entry.what)) else {
            return false;
        };
        table.published_too(id);
        in_force.store(InForce { policy: Arc::new(policy), meters: before.meters.clone() });
        true
    }

    /// Joins the policy with the live entries and puts the result in force.
    fn publish(&self, table: &mut Table, new: &InForce, in_force: &Published) {
        let now_us = self.now_us();
        let live = table.live(now_us);
        let entries = live.iter().map(|(_, entry)| &entry.what);
        let (policy, held) = new.policy.with_entries(entries);
        let ids: Vec<EntryId> = live.iter().map(|(id, _)| *id).collect();
        table.published(ids.into_iter().zip(held), now_us);
        in_force.store(InForce { policy: Arc::new(policy), meters: new.meters.clone() });
    }
}

const NEVER_SEEN: i64 = i64::MIN;
/// How often a change is stamped, at most. If the store has a newer version of the entry, the clocks of
/// two instances differ by more than the time between their changes. The second stamp is later than
/// that version's.
const STAMPS: usize = 2;
/// The most changes to log at once. An instance that starts learns all of them together.
const LOGGED_MAX: usize = 16;

fn us_since_epoch(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
