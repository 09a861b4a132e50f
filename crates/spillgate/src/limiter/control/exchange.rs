//! The exchange of runtime changes with the fleet's record. The record gets the entries it lacks, this
//! instance gets those it has not seen, until both have the same.

use std::time::Duration;

use super::super::Inner;
use crate::control::{Entry, EntryId, random};
use crate::engine::RedisStore;
use crate::error::StoreError;

#[cfg(feature = "redis")]
impl Inner {
    /// Writes an entry to the record. If it does not have the entry afterwards, the error says why.
    pub async fn save(&self, id: EntryId, entry: &Entry) -> Result<(), String> {
        let Some(store) = self.engine.store() else { return Ok(()) };
        // The first reply may correct the entry's stamp.
        let writing = self.control.knows_time().then_some((id, entry));
        self.exchange(store, writing).await.map_err(|error| error.to_string())?;
        // The reply had only a part of the record, so a newer version of the entry may follow.
        if writing.is_none() || !self.control.record.is_whole() {
            self.follow().await;
        }
        let known = self.control.table.lock().entry(id).cloned();
        match known.is_none_or(|known| self.is_saved(id, &known)) {
            true => Ok(()),
            false => Err("the store's record is full; it gets this entry when others end".into()),
        }
    }

    /// Returns whether the record is known to have an entry, or a newer version of it.
    pub fn is_saved(&self, id: EntryId, entry: &Entry) -> bool {
        self.engine.is_memory() || self.control.record.has(id, entry, self.control.now_us())
    }

    /// Reports this instance to the fleet's record, and follows the record's changes. Returns whether the
    /// store is up.
    pub async fn report_and_follow(&self) -> bool {
        let Some(store) = self.engine.store() else { return true };
        let control = &self.control;
        // Taken before the beat: the version is that of this server.
        let origin = store.origin();
        let Ok(beat) = store.beat(self.report()).await else { return !store.record_is_down() };
        control.note_time(beat.now_us);
        for name in beat.counted.iter().flat_map(|counted| &counted.gone) {
            self.history.events.add(control.now_us(), name, "gone", GONE);
        }
        let wants = store.origin() != origin || {
            let mut table = control.table.lock();
            let now_us = control.now_us();
            // The record takes these no more, so they would be sent at every look.
            table.forget(now_us);
            control.record.wants_exchange(origin.as_ref(), &beat.version, &table, now_us)
        };
        let is_up = !wants || self.follow().await;
        if is_up {
            self.save_audit().await;
        }
        is_up
    }

    /// Exchanges changes with the record until both have the same. Returns whether the store answered.
    pub async fn follow(&self) -> bool {
        let Some(store) = self.engine.store() else { return true };
        let record = &self.control.record;
        let mut lacked_before = usize::MAX;
        loop {
            if self.exchange(store, None).await.is_err() {
                return false;
            }
            // One exchange carries a bounded number of entries. A full record takes nothing more: the next look tries
            // again.
            let lacked = record.lacked(&self.control.table.lock(), self.control.now_us());
            if record.is_whole() && (lacked == 0 || lacked >= lacked_before) {
                return true;
            }
            lacked_before = if record.is_whole() { lacked } else { usize::MAX };
            // After a failover all instances read the whole record, and decisions wait for the same server.
            tokio::time::sleep(Duration::from_millis(random() % PAGE_PAUSE_MS)).await;
        }
    }

    /// Joins the changes that the record had on another node of the ring, before another name became the first. The next
    /// look writes them to the record. Returns whether all nodes answered.
    pub async fn join_earlier_record(&self) -> bool {
        let Some(store) = self.engine.store() else { return true };
        let Ok(stored) = store.changes_elsewhere().await else { return false };
        self.learn(self.control.record.opened(&stored));
        true
    }

    async fn exchange(
        &self,
        store: &RedisStore,
        writing: Option<(EntryId, &Entry)>,
    ) -> Result<(), StoreError> {
        let control = &self.control;
        let exchange = {
            let table = control.table.lock();
            control.record.exchange(store.origin(), writing, &table, control.now_us())
        };
        let answer = store.exchange(&exchange).await?;
        control.note_time(answer.now_us);
        let news = control.record.note(&exchange, &answer, store.origin().as_ref());
        self.learn(news);
        Ok(())
    }
}

/// The event of an instance that another one misses.
#[cfg(feature = "redis")]
const GONE: &str = "sends no heartbeat any more: it has stopped, or does not reach the store";
/// The longest pause between two pages of the record.
#[cfg(feature = "redis")]
const PAGE_PAUSE_MS: u64 = 10;

/// Does nothing, since without a store there is no record.
#[cfg(not(feature = "redis"))]
impl Inner {
    pub(crate) async fn save(&self, _: EntryId, _: &Entry) -> Result<(), String> {
        Ok(())
    }

    pub(crate) fn is_saved(&self, _: EntryId, _: &Entry) -> bool {
        true
    }

    pub(crate) async fn report_and_follow(&self) -> bool {
        true
    }

    pub(crate) async fn follow(&self) -> bool {
        true
    }

    pub(crate) async fn join_earlier_record(&self) -> bool {
        true
    }
}

#[cfg(test)]
#[cfg(feature = "redis")]
mod tests;
