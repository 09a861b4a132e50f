//! The exchange of runtime changes with the shards. A copy gets the entries it lacks, this instance
//! gets those it has not seen, until all have the same.

use super::super::Inner;
use crate::control::PendingShard;
use crate::control::{Entry, EntryId, WriteReport};
use crate::engine::RedisStore;
use crate::error::StoreError;

/// The depth of a look at the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Compares versions, and exchanges with copies whose version changed.
    Quick,
    /// Exchanges with every copy. This updates the offset to the store's clock and finds losses
    /// that a version does not show.
    Whole,
}

#[cfg(feature = "redis")]
impl Inner {
    /// Exchanges with every shard once, to write an entry or to complete the copies. Returns which
    /// shards have the entry.
    pub async fn exchange(&self, writing: Option<(EntryId, &Entry)>) -> WriteReport {
        let Some(store) = self.engine.store() else { return WriteReport::default() };
        let answers = self.exchange_with(store, writing, |_| true).await;
        if answers.is_empty() {
            // No node of the Cluster has given its map. The nodes of the settings stand for the shards.
            let nodes = store.servers.shards().into_iter().map(|node| PendingShard {
                shard: node.name,
                why: node.trouble.as_deref().unwrap_or("it does not answer").to_owned(),
            });
            let pending: Vec<PendingShard> = nodes.collect();
            return WriteReport { shards: pending.len(), pending, ..WriteReport::default() };
        }
        let mut report = WriteReport { shards: answers.len(), ..WriteReport::default() };
        for (shard, answer) in answers {
            let now_us = self.control.now_us();
            let has = |(id, entry)| self.control.copies.has(&shard, id, entry, now_us);
            let why = match answer {
                Err(error) => error.to_string(),
                Ok(()) if writing.is_none_or(has) => continue,
                Ok(()) => "its copy is full; it gets this entry when others end".into(),
            };
            report.pending.push(PendingShard { shard, why });
        }
        report
    }

    /// Returns the shards that are not known to have an entry.
    pub fn lacking(&self, id: EntryId, entry: &Entry) -> Vec<String> {
        let Some(store) = self.engine.store() else { return Vec::new() };
        match self.control.copies.are_known() {
            true => self.control.copies.lacking(id, entry, self.control.now_us()),
            false => store.servers.shards().into_iter().map(|shard| shard.name).collect(),
        }
    }

    /// Looks for new entries on the shards, and completes the copies that lack some. Returns whether
    /// every shard answered.
    pub async fn follow(&self, look: Look) -> bool {
        let Some(store) = self.engine.store() else { return true };
        let control = &self.control;
        let versions = store.servers.member().copy_versions().await;
        let shards: Vec<&str> = versions.iter().map(|(shard, _)| shard.as_str()).collect();
        control.copies.keep_only(&shards);
        let all_answered = versions.iter().all(|(_, version)| version.is_ok());
        let mut wanting: Vec<String> = {
            let mut table = control.table.lock();
            // No copy takes these any more, so each would be called for them at every look.
            table.forget(control.now_us());
            let known =
                versions.into_iter().filter_map(|(shard, version)| Some((shard, version.ok()?)));
            let wants = |(shard, version): &(String, Vec<u8>)| {
                look == Look::Whole
                    || control.copies.wants_exchange(shard, version, &table, control.now_us())
            };
            known.filter(wants).map(|(shard, _)| shard).collect()
        };
        // One exchange carries a bounded number of entries, so it is repeated until no copy lacks
        // any.
        let mut lacked_before = usize::MAX;
        while !wanting.is_empty() {
            let answers =
                self.exchange_with(store, None, |shard| wanting.iter().any(|w| w == shard)).await;
            let table = control.table.lock();
            let answered = answers.into_iter().filter(|(_, answer)| answer.is_ok());
            let now_us = control.now_us();
            let lacked =
                answered.map(|(shard, _)| (control.copies.lacked(&shard, &table, now_us), shard));
            let lacked: Vec<(usize, String)> = lacked.filter(|(lacked, _)| *lacked > 0).collect();
            // A full copy takes nothing more. The next look tries again.
            let sum = lacked.iter().map(|(lacked, _)| lacked).sum();
            if sum >= lacked_before {
                break;
            }
            lacked_before = sum;
            wanting = lacked.into_iter().map(|(_, shard)| shard).collect();
        }
        all_answered
    }

    async fn exchange_with(
        &self,
        store: &RedisStore,
        writing: Option<(EntryId, &Entry)>,
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<(String, Result<(), StoreError>)> {
        let control = &self.control;
        let answers = store
            .servers
            .member()
            .exchange(|shard| {
                let table = control.table.lock();
                let exchange =
                    || control.copies.exchange_with(shard, writing, &table, control.now_us());
                wanted(shard).then(exchange)
            })
            .await;
        // The clock that is furthest ahead counts, so that no entry seems older than one it
        // follows.
        let times = answers.iter().filter_map(|(_, answer)| Some(answer.as_ref().ok()?.now_us));
        times.max().into_iter().for_each(|now_us| control.note_time(now_us));
        let mut news = Vec::new();
        let mut answered = Vec::with_capacity(answers.len());
        for (shard, answer) in answers {
            let noted = answer.map(|answer| {
                news.extend(control.copies.note(&shard, &answer, control.now_us()));
            });
            answered.push((shard, noted));
        }
        self.learn(news);
        answered
    }
}

/// Does nothing, since without a store there are no copies.
#[cfg(not(feature = "redis"))]
impl Inner {
    pub(crate) async fn exchange(&self, _: Option<(EntryId, &Entry)>) -> WriteReport {
        WriteReport::default()
    }

    pub(crate) fn lacking(&self, _: EntryId, _: &Entry) -> Vec<String> {
        Vec::new()
    }

    pub(crate) async fn follow(&self, _: Look) -> bool {
        true
    }
}

#[cfg(test)]
#[cfg(feature = "redis")]
mod tests;
