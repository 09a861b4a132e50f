//! How an entry is written: stamped, taken in, and put in force together with the policy file.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

#[cfg(feature = "redis")]
use super::copies::Copies;
use super::table::{Entry, EntryId, Table, id_of};
use super::watch::Watch;
use super::{ControlError, Written};
use crate::limiter::Inner;
use crate::policy::{Policy, RuntimeEntry};
use crate::subject::Secret;
use crate::time::Clock;

/// What was set while running.
#[derive(Debug)]
pub(crate) struct Control {
    /// Locked for as long as it takes to put the entries in force, and never across an await.
    pub(super) table: Mutex<Table>,
    pub(super) watch: Watch,
    #[cfg(feature = "redis")]
    pub(super) copies: Copies,
    clock: Clock,
    /// The store's clock less ours, as the last exchange showed it.
    offset_us: AtomicI64,
}

impl Inner {
    /// Sets something; its generation, if it has one, is the time of the writing.
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

    /// Takes back what was set about the same.
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

    /// Now, with all known that any shard in reach knows; without any, nothing can be written.
    async fn now_us(&self) -> Result<u64, ControlError> {
        if let Some(missed) = self.exchange(None).await.missed_by_all() {
            return Err(ControlError::Unreachable(missed));
        }
        Ok(self.control.now_us())
    }

    async fn write(self: &Arc<Self>, id: EntryId, entry: Entry) -> Result<Written, ControlError> {
        let written = self.exchange(Some((id, &entry))).await;
        if let Some(missed) = written.missed_by_all() {
            return Err(ControlError::Unreachable(missed));
        }
        self.control.learn([(id, entry)], &self.policy);
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

    /// Puts a policy file in force, with all that is set.
    pub(crate) fn set_policy(&self, policy: &Policy, in_force: &ArcSwap<Policy>) {
        self.publish(&mut self.table.lock(), policy, in_force);
    }

    /// Takes entries in, and puts them in force if any is news.
    pub(super) fn learn(
        &self,
        entries: impl IntoIterator<Item = (EntryId, Entry)>,
        in_force: &ArcSwap<Policy>,
    ) {
        let mut table = self.table.lock();
        let mut news = false;
        for (id, entry) in entries {
            news |= table.merge(id, entry);
        }
        if news || table.is_outdated(self.now_us()) {
            self.publish(&mut table, &in_force.load(), in_force);
        }
    }

    /// Now, in microseconds since the epoch, by the clock that entries expire by.
    pub(super) fn now_us(&self) -> u64 {
        self.clock.now_us().saturating_add_signed(self.offset_us.load(Ordering::Relaxed))
    }

    /// Takes the store's clock for that clock.
    #[cfg(feature = "redis")]
    pub(super) fn note_time(&self, store_us: u64) {
        let offset_us = store_us.cast_signed().wrapping_sub(self.clock.now_us().cast_signed());
        self.offset_us.store(offset_us, Ordering::Relaxed);
    }

    /// The one place where file and entries become what requests see.
    fn publish(&self, table: &mut Table, policy: &Policy, in_force: &ArcSwap<Policy>) {
        let now_us = self.now_us();
        let live = table.live(now_us);
        let entries = live.iter().filter_map(|(_, entry)| entry.what.as_ref());
        let (policy, held) = policy.with_entries(entries);
        let ids: Vec<EntryId> = live.iter().map(|(id, _)| *id).collect();
        table.published(ids.into_iter().zip(held), now_us);
        in_force.store(Arc::new(policy));
    }
}

fn us_since_epoch(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Not to be guessed from the last one, nor drawn twice: the standard library's hash keys are
/// random.
pub(super) fn random() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(number) = crate::simulation::random() {
        return number >> 16;
    }
    RandomState::new().hash_one(0) >> 16
}
