//! Writes runtime changes: stamps an entry, adds it to the table, and puts it in force with the
//! policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::super::{InForce, Inner};
use super::watch::Watch;
#[cfg(feature = "redis")]
use crate::control::Copies;
use crate::control::{ControlError, Entry, EntryId, Table, Written, id_of, random};
use crate::policy::RuntimeEntry;
use crate::subject::Secret;
use crate::time::Clock;

/// The runtime changes and their clock.
#[derive(Debug)]
pub(crate) struct Control {
    /// Held while entries are put in force, and never across an await.
    pub(super) table: Mutex<Table>,
    pub(super) watch: Watch,
    #[cfg(feature = "redis")]
    pub(super) copies: Copies,
    clock: Clock,
    /// The store's clock minus ours, by the last exchange.
    offset_us: AtomicI64,
}

impl Inner {
    /// Writes a change. `what` gets the time of writing, which becomes the generation of a reset.
    pub(super) async fn set(
        self: &Arc<Self>,
        what: impl FnOnce(u64) -> RuntimeEntry,
        expires_at: Option<SystemTime>,
    ) -> Result<Written, ControlError> {
        let now_us = self.now_us().await?;
        let expires_at_us = expires_at.map(us_since_epoch);
        if expires_at_us.is_some_and(|end| end <= now_us) {
            return Err(ControlError::Expired);
        }
        let (id, entry) = {
            let mut table = self.control.table.lock();
            // Entries that can be forgotten must not count against the bound.
            table.forget(now_us);
            let stamp = table.stamp(now_us, random());
            let what = what(stamp.time_us);
            let id = id_of(&what, &self.secret);
            if !table.has_room_for(id) {
                return Err(ControlError::Full);
            }
            (id, Entry { stamp, expires_at_us, what: Some(what) })
        };
        self.write(id, entry).await
    }

    /// Removes the change to the same rule and subject.
    pub(super) async fn take_back(
        self: &Arc<Self>,
        about: &RuntimeEntry,
    ) -> Result<Written, ControlError> {
        let now_us = self.now_us().await?;
        let id = id_of(about, &self.secret);
        let entry = {
            let table = self.control.table.lock();
            if !table.entry(id).is_some_and(|entry| entry.is_live(now_us)) {
                return Err(ControlError::NotSet);
            }
            Entry { stamp: table.stamp(now_us, random()), expires_at_us: None, what: None }
        };
        self.write(id, entry).await
    }

    /// Returns the current time after an exchange with all shards. Fails if none is in reach.
    async fn now_us(&self) -> Result<u64, ControlError> {
        if let Some(missed) = self.exchange(None).await.missed_by_all() {
            return Err(ControlError::Unreachable(missed));
        }
        Ok(self.control.now_us())
    }

    async fn write(self: &Arc<Self>, id: EntryId, entry: Entry) -> Result<Written, ControlError> {
        // The store first: an entry that no shard took would vanish with this instance.
        let written = self.exchange(Some((id, &entry))).await;
        if let Some(missed) = written.missed_by_all() {
            return Err(ControlError::Unreachable(missed));
        }
        self.control.learn([(id, entry)], &self.in_force);
        self.watch();
        Ok(written)
    }
}

impl Control {
    #[cfg_attr(not(feature = "redis"), expect(unused_variables, reason = "nothing is sealed"))]
    pub(crate) fn new(clock: Clock, secret: &Secret) -> Control {
        Control {
            table: Mutex::default(),
            watch: Watch::default(),
            #[cfg(feature = "redis")]
            copies: Copies::new(secret),
            clock,
            offset_us: AtomicI64::new(0),
        }
    }

    /// Puts a policy in force, joined with the runtime changes.
    pub(crate) fn set_policy(&self, new: &InForce, in_force: &ArcSwap<InForce>) {
        self.publish(&mut self.table.lock(), new, in_force);
    }

    /// Adds entries to the table, and puts them in force if any is new.
    pub(super) fn learn(
        &self,
        entries: impl IntoIterator<Item = (EntryId, Entry)>,
        in_force: &ArcSwap<InForce>,
    ) {
        let mut table = self.table.lock();
        let mut news = 0;
        for (id, entry) in entries {
            // Copied before the merge, since the log needs the entry that it replaces.
            let reply = (news < TOLD_MAX).then(|| (table.entry(id).cloned(), entry.clone()));
            if table.merge(id, entry) {
                news += 1;
                reply.inspect(|(before, entry)| tell(before.as_ref(), entry));
            }
        }
        if news > TOLD_MAX {
            let more = news - TOLD_MAX;
            tracing::info!(target: "spillgate", more, "further runtime changes");
        }
        if news > 0 || table.is_outdated(self.now_us()) {
            self.publish(&mut table, &in_force.load(), in_force);
        }
    }

    /// Returns the time in microseconds since the epoch, by the clock that expiry uses.
    pub(super) fn now_us(&self) -> u64 {
        self.clock.now_us().saturating_add_signed(self.offset_us.load(Ordering::Relaxed))
    }

    /// Sets that clock by the store's.
    #[cfg(feature = "redis")]
    pub(super) fn note_time(&self, store_us: u64) {
        let offset_us = store_us.cast_signed().wrapping_sub(self.clock.now_us().cast_signed());
        self.offset_us.store(offset_us, Ordering::Relaxed);
    }

    /// Joins the policy with the live entries and puts the result in force. No other function does.
    fn publish(&self, table: &mut Table, new: &InForce, in_force: &ArcSwap<InForce>) {
        let now_us = self.now_us();
        let live = table.live(now_us);
        let entries = live.iter().filter_map(|(_, entry)| entry.what.as_ref());
        let (policy, held) = new.policy.with_entries(entries);
        let ids: Vec<EntryId> = live.iter().map(|(id, _)| *id).collect();
        table.published(ids.into_iter().zip(held), now_us);
        in_force.store(Arc::new(InForce { policy: Arc::new(policy), meters: new.meters.clone() }));
    }
}

/// Logs a change or its removal. Subject values are not logged, only attribute names.
fn tell(before: Option<&Entry>, entry: &Entry) {
    let Some(what) = entry.what.as_ref().or_else(|| before?.what.as_ref()) else { return };
    let (rule, taken_back) = (what.rule(), entry.what.is_none());
    match what {
        RuntimeEntry::Mode { .. } if taken_back => {
            tracing::info!(target: "spillgate", rule, "the rule's runtime mode was removed");
        }
        RuntimeEntry::Mode { mode, .. } => {
            tracing::warn!(target: "spillgate", rule, mode = mode.name(), "an operator set the rule's mode");
        }
        RuntimeEntry::Override { subject, .. } => {
            let names: Vec<&str> = subject.iter().map(|(name, _)| &**name).collect();
            let of = names.join(",");
            match taken_back {
                true => tracing::info!(target: "spillgate", rule, of, "an override was removed"),
                false => {
                    tracing::info!(target: "spillgate", rule, of, "an operator set an override")
                }
            }
        }
        RuntimeEntry::Generation { .. } => {
            tracing::warn!(target: "spillgate", rule, "an operator reset all counters of the rule");
        }
    }
}

/// The most changes to log at once. An instance that starts learns all of them together.
const TOLD_MAX: usize = 16;

fn us_since_epoch(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
