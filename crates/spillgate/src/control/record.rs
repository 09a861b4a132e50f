//! Tracks the fleet's record of runtime changes: the entries that it has, and so those that it lacks.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::random;
use super::sealed::EntrySeal;
use super::table::{Entry, EntryId, RECORD_MAX, REMEMBERED_US, Stamp, Table, ended_first};
use crate::subject::Secret;
use spillgate_redis::control::{Exchange, Exchanged, StoredEntry};
use spillgate_redis::redis_store::Origin;

/// The record as last seen.
#[derive(Debug)]
pub(crate) struct Record {
    /// Held for a short time, and never across an await.
    seen: Mutex<Seen>,
    seal: EntrySeal,
}

#[derive(Debug, Default)]
struct Seen {
    /// Empty if it had no changes, or must be read from the start.
    version: Vec<u8>,
    /// Whether all entries of the version were read. Until then nothing is known to be lacking.
    is_whole: bool,
    /// The server that had it.
    origin: Option<Origin>,
    holds: HashMap<EntryId, Held>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    stamp: Stamp,
    /// 0 for never.
    forget_at_us: u64,
}

impl Record {
    pub(crate) fn new(secret: &Secret) -> Record {
        Record { seen: Mutex::default(), seal: EntrySeal::new(secret) }
    }

    /// Returns the next exchange with the record, which `origin` has. It carries the entry to write, if there is one,
    /// else some entries that the record is known to lack.
    pub(crate) fn exchange(
        &self,
        origin: Option<Origin>,
        writing: Option<(EntryId, &Entry)>,
        table: &Table,
        now_us: u64,
    ) -> Exchange {
        let mut seen = self.seen.lock();
        // Another server, or the same after a restart, may lack what was written last.
        if seen.origin != origin {
            (seen.origin, seen.version, seen.is_whole) = (origin, Vec::new(), false);
        }
        let lacked = table.entries().filter(|(id, entry)| seen.lacks(*id, entry, now_us));
        let lacked = lacked.take(if seen.is_whole { ENTRIES_PER_CALL } else { 0 });
        let seal = |(id, entry)| self.seal.sealed(id, entry);
        let entries: Vec<StoredEntry> = match writing {
            Some(writing) => vec![seal(writing)],
            None => lacked.map(seal).collect(),
        };
        let mut forgotten: Vec<EntryId> = seen.forgotten(now_us).take(ENTRIES_PER_CALL).collect();
        let added = entries.iter().filter(|new| !seen.holds.contains_key(&new.id)).count();
        let excess = (seen.holds.len() + added).saturating_sub(RECORD_MAX);
        // Other instances may be filling the record now, and let the same entries go.
        let let_go = if excess > 0 { excess + SPARE } else { 0 };
        forgotten.extend(ended_first(seen.ends(), let_go, now_us));
        Exchange {
            seen: seen.version.clone(),
            nonce: random(),
            entries_max: RECORD_MAX,
            kept_us: REMEMBERED_US,
            entries,
            forgotten,
        }
    }

    /// Notes the reply to an exchange, and returns the entries that were new. `origin` is the server now: if it is not
    /// the one that was asked, a failover may lie between, and everything is read again.
    pub(crate) fn note(
        &self,
        exchange: &Exchange,
        answer: &Exchanged,
        origin: Option<&Origin>,
    ) -> Vec<(EntryId, Entry)> {
        let mut seen = self.seen.lock();
        if answer.is_from_start || answer.version.is_empty() {
            seen.holds.clear();
        }
        seen.version.clone_from(&answer.version);
        seen.is_whole = answer.is_whole();
        if seen.origin.as_ref() != origin {
            (seen.version, seen.is_whole) = (Vec::new(), false);
        }
        // The record has those that were sent, or newer ones, and not those that it was asked to delete.
        if answer.refused == 0 {
            exchange.entries.iter().for_each(|stored| seen.hold(stored));
        }
        exchange.forgotten.iter().for_each(|id| {
            seen.holds.remove(id);
        });
        // The record holds these entries even if they cannot be opened here.
        answer.unseen.iter().for_each(|stored| seen.hold(stored));
        self.opened(&answer.unseen)
    }

    /// Returns the entries that can be opened here.
    pub(crate) fn opened(&self, stored: &[StoredEntry]) -> Vec<(EntryId, Entry)> {
        let open = |stored: &StoredEntry| Some((stored.id, self.seal.open(stored)?));
        stored.iter().filter_map(open).collect()
    }

    /// Returns whether the record, which `origin` has, changed since it was last seen, or lacks or still has entries
    /// that it should not.
    pub(crate) fn wants_exchange(
        &self,
        origin: Option<&Origin>,
        version: &[u8],
        table: &Table,
        now_us: u64,
    ) -> bool {
        let mut seen = self.seen.lock();
        let is_same = seen.is_whole && seen.version == version;
        if is_same {
            // Equal versions have equal entries, whichever server has them.
            seen.origin = origin.cloned();
        }
        !is_same || seen.lacked(table, now_us) > 0 || seen.forgotten(now_us).next().is_some()
    }

    /// Returns whether all entries of the record were read.
    pub(crate) fn is_whole(&self) -> bool {
        self.seen.lock().is_whole
    }

    /// Returns the revision of the changes that were read.
    pub(crate) fn revision(&self) -> u64 {
        let version = String::from_utf8_lossy(&self.seen.lock().version).into_owned();
        version.split(':').nth(1).and_then(|revision| revision.parse().ok()).unwrap_or(0)
    }

    /// Returns the number of entries that the record is known to lack.
    pub(crate) fn lacked(&self, table: &Table, now_us: u64) -> usize {
        self.seen.lock().lacked(table, now_us)
    }

    /// Returns whether the record has this entry or a newer one.
    pub(crate) fn has(&self, id: EntryId, entry: &Entry, now_us: u64) -> bool {
        !self.seen.lock().lacks(id, entry, now_us)
    }
}

impl Seen {
    /// Returns whether the record should get an entry. A full one gets none that has ended: it would have to let go
    /// one that ended later.
    fn lacks(&self, id: EntryId, entry: &Entry, now_us: u64) -> bool {
        match self.holds.get(&id) {
            Some(held) => held.stamp < entry.stamp,
            None => entry.is_live(now_us) || self.holds.len() < RECORD_MAX,
        }
    }

    fn lacked(&self, table: &Table, now_us: u64) -> usize {
        if !self.is_whole {
            return 0;
        }
        table.entries().filter(|(id, entry)| self.lacks(*id, entry, now_us)).count()
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

/// The most entries in one script call. They take less than 1 ms of the server's time.
const ENTRIES_PER_CALL: usize = 128;
/// How many entries more than needed leave a full record.
const SPARE: usize = 64;
