//! A shard: a table of slots, the states that do not fit a slot, and the sweep that removes old ones.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::{HashTable, hash_table as table};

use super::slot::{Slot, Unpacked};
use crate::algorithm::{LimitParams, Reading, State, View};

#[derive(Debug, Default)]
pub struct Shard {
    table: HashTable<Entry>,
    large: Vec<Option<State>>,
    large_free: Vec<u32>,
    /// The bytes of logs beyond those of a counter.
    log_bytes: usize,
    max_keys: usize,
    /// The bucket at which the next sweep starts.
    cursor: usize,
}

#[derive(Debug)]
struct Entry {
    name: Name,
    slot: Slot,
}

/// The name of a counter. It is its hash in the table too.
pub type Name = u64;

/// A counter's name, and the bucket where its state was found.
///
/// A table that grows or shrinks moves its entries, so the name is compared at each use, and a counter that has moved is
/// found again.
#[derive(Debug, Default)]
pub struct Place {
    pub name: Name,
    bucket: usize,
}

impl Place {
    /// Returns whether the counter was stored when it was looked for.
    #[inline]
    pub fn is_known(&self) -> bool {
        self.bucket != NOWHERE
    }
}

impl Shard {
    pub fn new(max_keys: usize) -> Shard {
        Shard { max_keys, ..Shard::default() }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn bytes(&self) -> usize {
        self.table.allocation_size()
            + self.large.capacity() * size_of::<Option<State>>()
            + self.large.iter().flatten().map(State::heap_bytes).sum::<usize>()
    }

    /// Looks for a counter, and returns its slot too if it is stored.
    #[inline]
    pub fn find(&mut self, name: Name) -> (Place, Option<Slot>) {
        match self.table.find_entry(name, |entry| entry.name == name) {
            Ok(entry) => (Place { name, bucket: entry.bucket_index() }, Some(entry.get().slot)),
            Err(_) => (Place { name, bucket: NOWHERE }, None),
        }
    }

    /// Returns a counter at an instant.
    pub fn view<'p>(&mut self, name: Name, params: &'p LimitParams, now_us: u64) -> View<'p> {
        match self.find(name).1.as_ref().map(Slot::unpack) {
            Some(Unpacked::State(state)) => View::new(Some(&state), params, now_us),
            Some(Unpacked::Large(index)) => {
                View::new(self.large[index as usize].as_ref(), params, now_us)
            }
            None => View::new(None, params, now_us),
        }
    }

    /// Calls `act` with a counter and its state, and stores the state if it returns something. Returns the numbers of the
    /// counter afterwards, for `cost`.
    pub fn change<T>(
        &mut self,
        name: Name,
        params: &LimitParams,
        cost: u64,
        now_us: u64,
        act: impl FnOnce(&mut View<'_>, &mut Option<State>) -> Option<T>,
    ) -> (Option<T>, Reading) {
        let (place, slot) = self.find(name);
        let (mut state, large) = match slot.as_ref().map(Slot::unpack) {
            Some(Unpacked::State(state)) => (Some(state), None),
            Some(Unpacked::Large(index)) => (self.replace_large(index, None), Some(index)),
            None => (None, None),
        };
        let mut view = View::new(state.as_ref(), params, now_us);
        let done = act(&mut view, &mut state);
        let reading = view.reading(state.as_ref(), cost.max(1));
        // A large state was moved out, and goes back.
        if done.is_some() || large.is_some() {
            self.store(&place, state, large, (params.capacity(), reading.remaining));
        }
        (done, reading)
    }

    /// `large` is the index of the place's large state, which was moved out; `left` the limit's capacity, and what is
    /// left of it.
    fn store(&mut self, place: &Place, state: Option<State>, large: Option<u32>, left: (u64, u64)) {
        // A state without use is not stored: no entry means an empty counter.
        let Some(state) = state.filter(|state| !state.is_spent()) else {
            return self.remove(place.name, large);
        };
        // A state can change its form: a bucket that gets its first receipt no longer fits a slot.
        let slot = match (Slot::pack(&state), large) {
            (Some(slot), None) => slot,
            (Some(slot), Some(index)) => {
                self.large_free.push(index);
                slot
            }
            (None, Some(index)) => {
                self.replace_large(index, Some(state));
                Slot::large(index)
            }
            (None, None) => Slot::large(self.add_large(state)),
        };
        self.write(place, &slot.with_use(left.0, left.1));
    }

    /// Stores a slot at a place.
    #[inline]
    pub fn write(&mut self, place: &Place, slot: &Slot) {
        if let Some(entry) = self.table.get_bucket_mut(place.bucket)
            && entry.name == place.name
        {
            entry.slot = *slot;
            return;
        }
        self.write_anew(place.name, slot);
    }

    /// Stores the slot of a counter that is new, or that the table has moved.
    #[inline(never)]
    fn write_anew(&mut self, name: Name, slot: &Slot) {
        let entry = Entry { name, slot: *slot };
        match self.table.entry(name, |known| known.name == name, |known| known.name) {
            table::Entry::Occupied(mut known) => *known.get_mut() = entry,
            table::Entry::Vacant(vacant) => {
                vacant.insert(entry);
            }
        }
    }

    pub fn forget(&mut self, name: Name) {
        let (_, slot) = self.find(name);
        self.remove(name, slot.as_ref().and_then(Slot::large_index));
    }

    /// Returns whether the shard holds more than it may.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.counted() > self.max_keys
    }

    /// Returns the number of counters. Logs that are too long together count as many more, by their bytes.
    #[inline]
    fn counted(&self) -> usize {
        self.table.len() + self.log_bytes.saturating_sub(LOG_BYTES_FREE) / COUNTER_BYTES
    }

    /// Sweeps a few buckets, and returns whether there is room for `added` more counters, or the next buckets have enough
    /// that may go for them. `keeps` names counters that must stay while they are in use.
    pub fn has_room(&mut self, added: usize, now_us: u64, keeps: impl Fn(Name) -> bool) -> bool {
        self.sweep(SWEEP, usize::MAX, now_us, &keeps);
        let surplus = |shard: &Shard| (shard.counted() + added).saturating_sub(shard.max_keys);
        if surplus(self) == 0 {
            return true;
        }
        self.shrink_if_sparse();
        let from = self.cursor;
        let seen = self.sweep(SAMPLES_MAX * SAMPLE, surplus(self), now_us, &keeps);
        // The eviction begins with what was seen.
        self.cursor = from;
        seen.weight >= surplus(self)
    }

    /// Evicts counters until the shard holds no more than it may: of each sample the one that has used the smallest part
    /// of its limit. It can fail, because the overflow counter is added even without room, and counters of the decision
    /// stay.
    #[cold]
    pub fn evict(&mut self, now_us: u64, keeps: impl Fn(Name) -> bool, evicted: &AtomicU64) {
        while self.is_over() {
            self.shrink_if_sparse();
            let least = self.least_of_sample(now_us, &keeps);
            if !self.is_over() {
                break;
            }
            let Some(bucket) = least else { break };
            self.remove_bucket(bucket);
            evicted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes a table smaller that long logs have left with few counters, among whose buckets a sample would find none.
    fn shrink_if_sparse(&mut self) {
        if self.table.num_buckets() > SPARSE * self.table.len().max(SAMPLE) {
            self.table.shrink_to(3 * self.table.len() / 2, |entry| entry.name);
        }
    }

    /// Sweeps until enough counters were seen to choose from, and returns the one that loses the least by its eviction.
    fn least_of_sample(&mut self, now_us: u64, keeps: &impl Fn(Name) -> bool) -> Option<usize> {
        let (mut least, mut seen) = (None, 0);
        for _ in 0..SAMPLES_MAX {
            let found = self.sweep(SAMPLE, usize::MAX, now_us, keeps);
            let candidates = [least, found.least].into_iter().flatten();
            least = candidates.min_by_key(|(_, loss): &(usize, Loss)| *loss);
            seen += found.count;
            if seen >= CHOICES {
                break;
            }
        }
        least.map(|(bucket, _)| bucket)
    }

    /// Removes expired counters from the next `buckets` buckets, each at most once, until it has seen `enough` that may be
    /// evicted, where a log counts by its bytes.
    fn sweep(
        &mut self,
        buckets: usize,
        enough: usize,
        now_us: u64,
        keeps: &impl Fn(Name) -> bool,
    ) -> Seen {
        let mut seen = Seen { least: None, count: 0, weight: 0 };
        let all = self.table.num_buckets();
        for _ in 0..buckets.min(all) {
            if seen.weight >= enough {
                break;
            }
            self.cursor = (self.cursor + 1) % all;
            let bucket = self.cursor;
            let Some(&Entry { name, slot }) = self.table.get_bucket(bucket) else { continue };
            let (gone, can_go, weight) = match slot.unpack() {
                Unpacked::State(state) => (state.gone_us() <= now_us, true, 1),
                Unpacked::Large(index) => match &self.large[index as usize] {
                    Some(state) => {
                        let weight = 1 + log_bytes(state) / COUNTER_BYTES;
                        (state.gone_us() <= now_us, state.may_be_evicted(), weight)
                    }
                    None => (true, true, 1),
                },
            };
            if gone {
                self.remove_bucket(bucket);
            } else if can_go && !slot.was_exhausted() && !keeps(name) {
                seen.count += 1;
                seen.weight += weight;
                let loss = slot.part_used();
                if seen.least.is_none_or(|(_, known)| loss < known) {
                    seen.least = Some((bucket, loss));
                }
            }
        }
        seen
    }

    fn remove(&mut self, name: Name, large: Option<u32>) {
        if let Some(index) = large {
            self.replace_large(index, None);
            self.large_free.push(index);
        }
        if let Ok(entry) = self.table.find_entry(name, |entry| entry.name == name) {
            entry.remove();
        }
    }

    fn remove_bucket(&mut self, bucket: usize) {
        let Some(Entry { name, slot }) = self.table.get_bucket(bucket) else { return };
        self.remove(*name, slot.large_index());
    }

    fn add_large(&mut self, state: State) -> u32 {
        let index = self.large_free.pop().unwrap_or_else(|| {
            self.large.push(None);
            // Fits: a shard's part of `max_keys` is far below 2^32.
            (self.large.len() - 1) as u32
        });
        self.replace_large(index, Some(state));
        index
    }

    /// Stores a large state, or none, and returns the one before.
    fn replace_large(&mut self, index: u32, state: Option<State>) -> Option<State> {
        self.log_bytes += state.as_ref().map_or(0, log_bytes);
        let before = mem::replace(&mut self.large[index as usize], state);
        self.log_bytes -= before.as_ref().map_or(0, log_bytes);
        before
    }
}

/// Returns the bytes of a log beyond those of a counter.
fn log_bytes(state: &State) -> usize {
    match state {
        State::SlidingLog(log) => log.heap_bytes().saturating_sub(COUNTER_BYTES),
        _ => 0,
    }
}

/// The counters that a sweep saw that may be evicted.
struct Seen {
    /// The bucket of the one that loses the least by it.
    least: Option<(usize, Loss)>,
    count: usize,
    /// Their number, where a log counts as several, by its bytes.
    weight: usize,
}

/// The part of a limit that an eviction forgets, which its subject gains. So a flood of new subjects, which use
/// little of theirs, replaces its own counters, and no subject of a large limit outweighs one of a small limit.
type Loss = u64;

/// The bucket of a counter that is not stored. No table has it.
const NOWHERE: usize = usize::MAX;
/// The bytes of a counter of a bucket or a window, with its share of the table's empty buckets.
const COUNTER_BYTES: usize = 96;
/// The bytes that the logs of a shard may take beside its counters: a dozen full ones, and 64 MB in all shards. Without
/// them, a few long logs would evict each other from a memory of few counters.
const LOG_BYTES_FREE: usize = 1 << 20;
/// Buckets swept for each search for room. Two, so that the sweep is faster than the growth.
const SWEEP: usize = 2;
/// Buckets swept at once for an eviction.
const SAMPLE: usize = 16;
/// Buckets for each counter, from which on a table is made smaller: so few that the samples of one eviction hardly ever miss
/// all that may go.
const SPARSE: usize = 4;
/// Samples of one eviction, at most, and of one search for room.
const SAMPLES_MAX: usize = 4;
/// Counters to choose from, unless there are fewer. A table that was full for long has many empty buckets, and a counter
/// that is alone among them would be evicted however much it has used.
const CHOICES: usize = 8;
