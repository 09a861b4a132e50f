//! The runtime changes that one instance knows. Every copy, here and on each shard, is a join: of
//! two versions of an entry the newer stays, in any order and with any repetition.

use std::collections::HashMap;

use super::note::ChangeNote;
use crate::policy::{InvalidChange, RuntimeEntry};
use crate::subject::{Encoding, Secret};

/// The id of an entry: a keyed hash of its rule and subject, which reveals neither.
pub(crate) type EntryId = u128;

/// The time of writing, and a random number that distinguishes entries written at the same time. No
/// two entries have the same stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp {
    pub(crate) time_us: u64,
    pub(crate) random: u64,
}

/// One version of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) stamp: Stamp,
    /// The time at which it expires, if it does.
    pub(crate) expires_at_us: Option<u64>,
    /// The change. If an override was removed, its limits are not kept.
    pub(crate) what: RuntimeEntry,
    pub(crate) effect: Effect,
    pub(crate) note: ChangeNote,
}

/// Whether an entry sets a change or removes it. A removal is kept, so that no copy brings the
/// change back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Set,
    Removed,
}

/// All entries by id.
#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: HashMap<EntryId, Entry>,
    /// For each entry last published, whether it is in force.
    held: HashMap<EntryId, Result<(), InvalidChange>>,
    /// The next expiry among the entries published.
    next_expiry_us: Option<u64>,
    /// The newest stamp that this instance used or saw, also of forgotten entries.
    newest: Stamp,
}

impl Stamp {
    /// Returns the stamp of a clock that was set back by this much.
    pub(crate) fn earlier(self, by_us: u64) -> Stamp {
        Stamp { time_us: self.time_us.saturating_sub(by_us), ..self }
    }
}

impl Entry {
    /// Returns whether the entry has an effect now: neither removed nor expired.
    pub(crate) fn is_live(&self, now_us: u64) -> bool {
        self.effect == Effect::Set && !self.is_expired(now_us)
    }

    pub(crate) fn is_expired(&self, now_us: u64) -> bool {
        self.expires_at_us.is_some_and(|end| end <= now_us)
    }

    /// Returns the time from which the entry can be forgotten. By then every copy of an older
    /// version has merged it.
    pub(crate) fn forget_at_us(&self) -> Option<u64> {
        Some(self.ends_at_us()?.saturating_add(REMEMBERED_US))
    }

    /// Returns the time from which the entry has no effect.
    fn ends_at_us(&self) -> Option<u64> {
        match self.effect {
            Effect::Set => self.expires_at_us,
            Effect::Removed => Some(self.stamp.time_us),
        }
    }

    fn is_forgotten(&self, now_us: u64) -> bool {
        self.forget_at_us().is_some_and(|end| end <= now_us)
    }
}

impl Table {
    /// Adds an entry unless a newer version is known. Returns whether it was new.
    pub(crate) fn merge(&mut self, id: EntryId, entry: Entry) -> bool {
        self.newest = self.newest.max(entry.stamp);
        if self.entries.get(&id).is_some_and(|known| known.stamp >= entry.stamp) {
            return false;
        }
        self.entries.insert(id, entry);
        true
    }

    /// Returns whether a newer version of an entry is known.
    pub(crate) fn has_newer(&self, id: EntryId, entry: &Entry) -> bool {
        self.entries.get(&id).is_some_and(|known| known.stamp > entry.stamp)
    }

    pub(crate) fn entry(&self, id: EntryId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (EntryId, &Entry)> {
        self.entries.iter().map(|(id, entry)| (*id, entry))
    }

    /// Returns the entries that have an effect now, in the order in which they were written.
    pub(crate) fn live(&self, now_us: u64) -> Vec<(EntryId, &Entry)> {
        let mut live: Vec<_> = self.entries().filter(|(_, entry)| entry.is_live(now_us)).collect();
        live.sort_unstable_by_key(|(id, entry)| (entry.stamp, *id));
        live
    }

    /// Returns a stamp for now that is newer than every stamp used or seen, even after a clock step
    /// back.
    pub(crate) fn stamp(&mut self, now_us: u64, random: u64) -> Stamp {
        let time_us = now_us.max(self.newest.time_us.saturating_add(1));
        self.newest = Stamp { time_us, random };
        self.newest
    }

    /// Corrects all stamps by the time by which the clock that made them was ahead.
    pub(crate) fn set_back(&mut self, by_us: u64) {
        for entry in self.entries.values_mut() {
            entry.stamp = entry.stamp.earlier(by_us);
        }
        self.newest = self.newest.earlier(by_us);
    }

    /// Returns whether there is room for an entry. Entries that have ended give way, and modes have
    /// a reserve, so that no number of blocks disables the kill switch.
    pub(crate) fn has_room_for(&self, id: EntryId, what: &RuntimeEntry, now_us: u64) -> bool {
        let reserve = if matches!(what, RuntimeEntry::Mode { .. }) { MODES_RESERVE } else { 0 };
        let live = || self.entries.values().filter(|entry| entry.is_live(now_us)).count();
        let most = ENTRIES_MAX + reserve;
        self.entries.len() < most || self.entries.contains_key(&id) || live() < most
    }

    /// Removes entries that can be forgotten, and of too many those that ended first.
    pub(crate) fn forget(&mut self, now_us: u64) {
        self.entries.retain(|_, entry| !entry.is_forgotten(now_us));
        let ends = self.entries.iter().map(|(id, entry)| (entry.ends_at_us(), *id));
        for id in ended_first(ends, self.entries.len().saturating_sub(RECORD_MAX), now_us) {
            self.entries.remove(&id);
        }
    }

    /// Notes which live entries are in force.
    pub(crate) fn published(
        &mut self,
        held: impl Iterator<Item = (EntryId, Result<(), InvalidChange>)>,
        now_us: u64,
    ) {
        self.forget(now_us);
        let live = self.entries.values().filter(|entry| entry.is_live(now_us));
        self.next_expiry_us = live.filter_map(|entry| entry.expires_at_us).min();
        self.held = held.collect();
    }

    /// Returns an entry that has an effect now, if its stamp is the newest of all.
    pub(crate) fn newest(&self, id: EntryId, now_us: u64) -> Option<&Entry> {
        self.entry(id).filter(|entry| entry.stamp == self.newest && entry.is_live(now_us))
    }

    /// Notes that this entry is in force too.
    pub(crate) fn published_too(&mut self, id: EntryId) {
        let expires_at_us = self.entry(id).and_then(|entry| entry.expires_at_us);
        self.next_expiry_us = self.next_expiry_us.into_iter().chain(expires_at_us).min();
        self.held.insert(id, Ok(()));
    }

    /// Returns whether a published entry has expired.
    pub(crate) fn is_outdated(&self, now_us: u64) -> bool {
        self.next_expiry_us.is_some_and(|end| end <= now_us)
    }

    /// Returns whether a published entry will expire.
    pub(crate) fn will_expire(&self) -> bool {
        self.next_expiry_us.is_some()
    }

    /// Returns the reason why a published entry is not in force, if it is not.
    pub(crate) fn why_not(&self, id: EntryId) -> Option<&InvalidChange> {
        self.held.get(&id)?.as_ref().err()
    }
}

/// Returns the `count` entries that ended first, fewer if fewer have ended. The order is the same at
/// every instance, so that all let the same entries go.
pub fn ended_first(
    ends: impl Iterator<Item = (Option<u64>, EntryId)>,
    count: usize,
    now_us: u64,
) -> Vec<EntryId> {
    if count == 0 {
        return Vec::new();
    }
    let mut ended: Vec<_> = ends.filter(|(end, _)| end.is_some_and(|end| end <= now_us)).collect();
    ended.sort_unstable();
    ended.into_iter().take(count).map(|(_, id)| id).collect()
}

/// Returns the id of an entry, from its rule and subject.
pub(crate) fn id_of(what: &RuntimeEntry, secret: &Secret) -> EntryId {
    let mut encoding = Encoding::new();
    encoding.part(ABOUT);
    let kind = match what {
        RuntimeEntry::Override { .. } => OVERRIDE,
        RuntimeEntry::Mode { .. } => MODE,
        RuntimeEntry::Generation { .. } => GENERATION,
    };
    encoding.part(kind);
    encoding.part(what.rule().as_bytes());
    if let RuntimeEntry::Override { subject, .. } = what {
        for (attribute, value) in subject {
            encoding.part(attribute.as_bytes());
            encoding.part(value);
        }
    }
    secret.hash(&encoding)
}

/// The prefix of ids. Rules' subjects are encoded with their domain first, and domains hardly start
/// with `#`. Beyond that the hash has 128 bits.
const ABOUT: &[u8] = b"#control";
// The kinds of entries, in ids and in sealed entries. They are stored, so they never change. A new
// kind of entry gets a new constant.
pub const MODE: &[u8] = b"mode";
pub const GENERATION: &[u8] = b"generation";
pub const OVERRIDE: &[u8] = b"override";
/// The most live entries. An instance reads all of them when it starts, a few megabytes.
pub(crate) const ENTRIES_MAX: usize = 10_000;
/// The most modes beyond that.
pub(crate) const MODES_RESERVE: usize = 1_000;
/// The most entries of a table and of a copy. Those that have ended take what live ones leave.
pub(crate) const RECORD_MAX: usize = ENTRIES_MAX + MODES_RESERVE;
/// The time for which entries are kept after they ended, while there is room. A shard that was down
/// for longer may bring an older version back.
pub const REMEMBERED_US: u64 = 7 * 24 * 60 * 60 * 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Mode;
    use proptest::prelude::*;

    /// Makes a version of one of a few entries. Its stamp determines all of it, as stamps must.
    fn writing(id: u8, time_us: u64, random: u64) -> (EntryId, Entry) {
        let mode = [Mode::Enforce, Mode::Off, Mode::Shadow][(random % 3) as usize];
        let effect = if mode == Mode::Enforce { Effect::Removed } else { Effect::Set };
        let what = RuntimeEntry::Mode { rule: format!("rule {id}").into(), mode };
        let expires_at_us = time_us.is_multiple_of(2).then_some(time_us + random);
        let (stamp, note) = (Stamp { time_us, random }, ChangeNote::by(format!("{random}")));
        (EntryId::from(id), Entry { stamp, expires_at_us, what, effect, note })
    }

    fn writings() -> impl Strategy<Value = Vec<(EntryId, Entry)>> {
        prop::collection::vec((0u8..4, 0u64..6, 0u64..4), 0..24).prop_map(|all| {
            all.into_iter().map(|(id, time_us, random)| writing(id, time_us, random)).collect()
        })
    }

    fn joined<'a>(writings: impl IntoIterator<Item = &'a (EntryId, Entry)>) -> Table {
        let mut table = Table::default();
        for (id, entry) in writings {
            table.merge(*id, entry.clone());
        }
        table
    }

    proptest! {
        #[test]
        fn copies_with_the_same_entries_are_equal(
            all in writings(), other in writings(), cut: prop::sample::Index
        ) {
            let together = joined(all.iter().chain(&other));
            // Commutative: the others first.
            prop_assert_eq!(&joined(other.iter().chain(&all)).entries, &together.entries);
            // Idempotent: everything twice.
            prop_assert_eq!(&joined(all.iter().chain(&other).chain(&all)).entries, &together.entries);
            // Associative: two copies are joined first, each with some of the entries.
            let (head, tail) = other.split_at(cut.index(other.len() + 1));
            let (left, right) = (joined(all.iter().chain(head)), joined(tail));
            let two: Vec<_> = [&left, &right]
                .iter()
                .flat_map(|table| table.entries().map(|(id, entry)| (id, entry.clone())))
                .collect();
            prop_assert_eq!(&joined(&two).entries, &together.entries);
        }

        #[test]
        fn the_newest_writing_wins_deletions_too(all in writings()) {
            let table = joined(&all);
            for id in 0..4 {
                let newest = all.iter().filter(|(known, _)| *known == id).max_by_key(|(_, e)| e.stamp);
                prop_assert_eq!(table.entry(id), newest.map(|(_, entry)| entry));
                let deleted = newest.is_none_or(|(_, entry)| entry.effect == Effect::Removed);
                prop_assert!(!deleted || table.live(0).iter().all(|(live, _)| *live != id));
            }
        }
    }

    #[test]
    fn expired_and_removed_entries_are_kept_for_a_while() {
        let mut table = Table::default();
        let entry = |expires_at_us, effect| Entry {
            stamp: Stamp { time_us: 100, random: 0 },
            expires_at_us,
            what: RuntimeEntry::Mode { rule: "api".into(), mode: Mode::Off },
            effect,
            note: ChangeNote::default(),
        };
        table.merge(1, entry(Some(500), Effect::Set));
        table.merge(2, entry(None, Effect::Removed));
        table.merge(3, entry(None, Effect::Set));
        let ids = |table: &Table, now_us| -> Vec<_> {
            table.live(now_us).into_iter().map(|(id, _)| id).collect()
        };
        assert_eq!((ids(&table, 499), ids(&table, 500)), (vec![1, 3], vec![3]));
        for (now_us, known) in
            [(500, 3), (100 + REMEMBERED_US, 2), (500 + REMEMBERED_US, 1), (u64::MAX, 1)]
        {
            table.published(std::iter::empty(), now_us);
            assert_eq!(table.entries.len(), known, "at {now_us}");
        }
    }

    #[test]
    fn a_full_table_takes_known_entries_and_modes_but_no_more_overrides() {
        let mut table = Table::default();
        let block = |id: u128, expires_at_us| Entry {
            stamp: Stamp { time_us: 1, random: 0 },
            expires_at_us,
            what: RuntimeEntry::Override {
                rule: "api".into(),
                subject: [("user".into(), id.to_be_bytes().into())].into(),
                limits: Vec::new(),
            },
            effect: Effect::Set,
            note: ChangeNote::default(),
        };
        let end = ENTRIES_MAX as u128;
        let (another, (_, mode)) = (block(end, None).what, writing(1, 1, 1));
        for id in 0..end {
            assert!(table.entries.len() < ENTRIES_MAX && table.has_room_for(id, &another, 1_000));
            table.merge(id, block(id, (id == 7).then_some(1_000)));
        }
        assert!(!table.has_room_for(end, &another, 999), "it is full");
        assert!(table.has_room_for(8, &another, 999), "this one is known");
        assert!(table.has_room_for(end, &mode.what, 999), "modes have a reserve");
        assert!(table.has_room_for(end, &another, 1_000), "one has expired");
    }

    #[test]
    fn of_too_many_entries_the_one_that_ended_first_is_forgotten() {
        let mut table = Table::default();
        let (_, lasting) = writing(1, 1, 1);
        let ending = |end| Entry { expires_at_us: Some(end), ..lasting.clone() };
        for id in 0..(ENTRIES_MAX + MODES_RESERVE - 2) as u128 {
            table.merge(id, lasting.clone());
        }
        for end in 100..103 {
            table.merge(u128::MAX - u128::from(end), ending(end));
        }
        let known =
            |table: &Table| [100, 101, 102].map(|end| table.entry(u128::MAX - end).is_some());
        table.forget(99);
        assert_eq!(known(&table), [true; 3], "none has ended");
        table.forget(102);
        assert_eq!(known(&table), [false, true, true]);
    }

    #[test]
    fn a_stamp_is_newer_than_all_seen_even_after_a_clock_step_back() {
        let mut table = Table::default();
        let (id, entry) = writing(1, 1_000, 1);
        table.merge(id, entry);
        assert_eq!(table.stamp(10, 7), Stamp { time_us: 1_001, random: 7 });
        assert_eq!(table.stamp(5_000, 7), Stamp { time_us: 5_000, random: 7 });
        table.forget(2_000 + REMEMBERED_US);
        assert!(table.entries.is_empty(), "it has expired long ago");
        assert_eq!(table.stamp(10, 7), Stamp { time_us: 5_001, random: 7 });
    }
}
