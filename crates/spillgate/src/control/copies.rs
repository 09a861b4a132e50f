//! Tracks the copies of runtime changes, one on each shard: the entries that each has, and so those
//! that it lacks.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::random;
use super::sealed::EntrySeal;
use super::table::{COPY_MAX, Entry, EntryId, REMEMBERED_US, Stamp, Table, ended_first};
use crate::subject::Secret;
use spillgate_redis::control::{Exchange, Exchanged, StoredEntry};

/// The copies, by their shards' names.
#[derive(Debug)]
pub(crate) struct Copies {
    /// Held for a short time, and never across an await.
    by_shard: Mutex<HashMap<String, Copy>>,
    seal: EntrySeal,
}

/// One copy as last seen.
#[derive(Debug, Default)]
struct Copy {
    /// Empty if there was no copy.
    version: Vec<u8>,
    holds: HashMap<EntryId, Held>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    stamp: Stamp,
    /// 0 for never.
    forget_at_us: u64,
}

impl Copies {
    pub(crate) fn new(secret: &Secret) -> Copies {
        Copies { by_shard: Mutex::default(), seal: EntrySeal::new(secret) }
    }

    /// Returns the exchange with a shard's copy. It carries the entry to write, if there is one,
    /// else some entries that the copy lacks.
    pub(crate) fn exchange_with(
        &self,
        shard: &str,
        writing: Option<(EntryId, &Entry)>,
        table: &Table,
        now_us: u64,
    ) -> Exchange {
        let mut copies = self.by_shard.lock();
        let copy = copies.entry(shard.to_owned()).or_default();
        let lacked = table.entries().filter(|(id, entry)| copy.lacks(*id, entry, now_us));
        let entries: Vec<StoredEntry> = match writing {
            Some((id, entry)) => vec![self.seal.sealed(id, entry)],
            None => lacked
                .take(ENTRIES_PER_CALL)
                .map(|(id, entry)| self.seal.sealed(id, entry))
                .collect(),
        };
        let mut forgotten: Vec<EntryId> = copy.forgotten(now_us).take(ENTRIES_PER_CALL).collect();
        let added = entries.iter().filter(|new| !copy.holds.contains_key(&new.id)).count();
        let excess = (copy.holds.len() + added).saturating_sub(COPY_MAX);
        // Other instances may be filling the copy now, and let the same entries go.
        let let_go = if excess > 0 { excess + SPARE } else { 0 };
        forgotten.extend(ended_first(copy.ends(), let_go, now_us));
        let (seen, kept_us) = (copy.version.clone(), REMEMBERED_US);
        Exchange { seen, epoch: random(), entries_max: COPY_MAX, kept_us, entries, forgotten }
    }

    /// Notes the reply of a copy, and returns the entries that were new.
    pub(crate) fn note(
        &self,
        shard: &str,
        answer: &Exchanged,
        now_us: u64,
    ) -> Vec<(EntryId, Entry)> {
        let mut copies = self.by_shard.lock();
        let copy = copies.entry(shard.to_owned()).or_default();
        // A copy with another epoch is a new one, so its earlier entries are lost.
        if epoch(&answer.version) != epoch(&copy.version) {
            copy.holds.clear();
        }
        copy.version.clone_from(&answer.version);
        // The copy holds these entries even if they cannot be opened here.
        answer.unseen.iter().for_each(|stored| copy.hold(stored));
        copy.holds.retain(|_, held| !held.is_forgotten(now_us));
        // The copy has no more entries than that, so the others were let go by some instance.
        let excess = copy.holds.len().saturating_sub(COPY_MAX);
        for id in ended_first(copy.ends(), excess, now_us) {
            copy.holds.remove(&id);
        }
        let open = |stored: &StoredEntry| Some((stored.id, self.seal.open(stored)?));
        answer.unseen.iter().filter_map(open).collect()
    }

    /// Returns whether a copy has changed since it was last seen, or lacks or still has entries
    /// that it should not.
    pub(crate) fn wants_exchange(
        &self,
        shard: &str,
        version: &[u8],
        table: &Table,
        now_us: u64,
    ) -> bool {
        let copies = self.by_shard.lock();
        let Some(copy) = copies.get(shard) else { return true };
        copy.version != version
            || table.entries().any(|(id, entry)| copy.lacks(id, entry, now_us))
            || copy.forgotten(now_us).next().is_some()
    }

    /// Drops the copies of shards that have left. An empty list drops none: without a map of the
    /// Cluster its shards are unknown.
    pub(crate) fn keep_only(&self, shards: &[&str]) {
        if !shards.is_empty() {
            self.by_shard.lock().retain(|shard, _| shards.contains(&shard.as_str()));
        }
    }

    /// Returns the number of entries that a copy lacks.
    pub(crate) fn lacked(&self, shard: &str, table: &Table, now_us: u64) -> usize {
        let copies = self.by_shard.lock();
        let Some(copy) = copies.get(shard) else { return 0 };
        table.entries().filter(|(id, entry)| copy.lacks(*id, entry, now_us)).count()
    }

    /// Returns whether a copy has this entry or a newer one.
    pub(crate) fn has(&self, shard: &str, id: EntryId, entry: &Entry, now_us: u64) -> bool {
        self.by_shard.lock().get(shard).is_some_and(|copy| !copy.lacks(id, entry, now_us))
    }

    /// Returns whether any copy was seen or called.
    pub(crate) fn are_known(&self) -> bool {
        !self.by_shard.lock().is_empty()
    }

    /// Returns the shards that lack this entry.
    pub(crate) fn lacking(&self, id: EntryId, entry: &Entry, now_us: u64) -> Vec<String> {
        let copies = self.by_shard.lock();
        let lacking = copies.iter().filter(|(_, copy)| copy.lacks(id, entry, now_us));
        let mut names: Vec<String> = lacking.map(|(shard, _)| shard.clone()).collect();
        names.sort_unstable();
        names
    }

    /// Returns whether no shard is known to have this entry.
    pub(crate) fn all_lack(&self, id: EntryId, entry: &Entry, now_us: u64) -> bool {
        self.by_shard.lock().values().all(|copy| copy.lacks(id, entry, now_us))
    }
}

impl Copy {
    /// Returns whether the copy should get an entry. A full copy gets none that has ended: it would
    /// have to let go one that ended later.
    fn lacks(&self, id: EntryId, entry: &Entry, now_us: u64) -> bool {
        match self.holds.get(&id) {
            Some(held) => held.stamp < entry.stamp,
            None => entry.is_live(now_us) || self.holds.len() < COPY_MAX,
        }
    }

    /// Returns when each entry ends, if it does.
    fn ends(&self) -> impl Iterator<Item = (Option<u64>, EntryId)> {
        let end = |held: &Held| held.forget_at_us.checked_sub(REMEMBERED_US);
        self.holds.iter().map(move |(id, held)| (end(held), *id))
    }

    fn hold(&mut self, stored: &StoredEntry) {
        let stamp = Stamp { time_us: stored.time_us, random: stored.random };
        let held = Held { stamp, forget_at_us: stored.forget_at_us };
        let known = self.holds.entry(stored.id).or_insert(held);
        // Two replies may be noted in another order than they were made in.
        if known.stamp < stamp {
            *known = held;
        }
    }

    fn forgotten(&self, now_us: u64) -> impl Iterator<Item = EntryId> {
        self.holds.iter().filter(move |(_, held)| held.is_forgotten(now_us)).map(|(id, _)| *id)
    }
}

impl Held {
    fn is_forgotten(&self, now_us: u64) -> bool {
        self.forget_at_us > 0 && self.forget_at_us <= now_us
    }
}

fn epoch(version: &[u8]) -> &[u8] {
    version.split(|byte| *byte == b':').next().unwrap_or_default()
}

/// The most entries in one script call. They take less than 1 ms of the server's time.
const ENTRIES_PER_CALL: usize = 256;
/// How many entries more than needed leave a full copy.
const SPARE: usize = 64;
