//! A shard: a table of slots, the states that do not fit a slot, and the sweep that removes old ones.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashTable;

use super::slot::{Slot, Unpacked};
use crate::algorithm::{LimitParams, Reading, State, StepCounter};
use crate::counter::{LimitHandle, PlannedCharge};
use crate::time::CoarseTime;

#[derive(Debug)]
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
    /// A `u128` in two halves: its alignment would pad the entry.
    key: [u64; 2],
    slot: Slot,
}

/// The bucket of a counter's state, or the key under which it will be stored.
///
/// The bucket index goes stale when the table grows; `still_or_again` finds it again then.
#[derive(Debug)]
pub struct Place {
    key: [u64; 2],
    bucket: Option<usize>,
}

/// A slot that was charged in place, and its content before.
pub struct Written {
    place: usize,
    before: Slot,
}

impl Place {
    pub fn is_known(&self) -> bool {
        self.bucket.is_some()
    }
}

impl Shard {
    pub fn new(max_keys: usize) -> Shard {
        Shard {
            table: HashTable::new(),
            large: Vec::new(),
            large_free: Vec::new(),
            log_bytes: 0,
            max_keys,
            cursor: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn bytes(&self) -> usize {
        self.table.allocation_size()
            + self.large.capacity() * size_of::<Option<State>>()
            + self.large.iter().flatten().map(State::heap_bytes).sum::<usize>()
    }

    #[inline]
    pub fn find(&self, key: u128) -> Place {
        let key = halves(key);
        Place { key, bucket: self.table.find_bucket_index(key[0], |entry| entry.key == key) }
    }

    /// Returns the state at a place. A large state is moved out, and must be put back.
    #[inline]
    pub fn take(&mut self, place: &Place) -> Option<State> {
        let entry = self.table.get_bucket(place.bucket?)?;
        match entry.slot.unpack() {
            Unpacked::State(state) => Some(state),
            Unpacked::Large(index) => self.replace_large(index, None),
        }
    }

    /// Charges an enforced token bucket inside its slot, and returns the data to undo it.
    ///
    /// Returns `None`, and changes nothing, if the counter is no bucket in use, or the coarse clock is not certain.
    #[inline(always)] // else the result is moved into the lists of a decision
    pub fn charge<L: LimitHandle>(
        &mut self,
        asked: &PlannedCharge<L>,
        now: CoarseTime,
    ) -> Option<(Reading, Written)> {
        let LimitParams::TokenBucket(params) = asked.params() else { return None };
        let place = self.find(asked.name()).bucket.filter(|_| asked.group == 0)?;
        let slot = &mut self.table.get_bucket_mut(place)?.slot;
        let before = *slot;
        let reading = slot.charge(params, asked.cost, now)?;
        Some((reading, Written { place, before }))
    }

    /// Restores a slot. Valid only before the table changes otherwise.
    pub fn undo(&mut self, written: Written) {
        if let Some(entry) = self.table.get_bucket_mut(written.place) {
            entry.slot = written.before;
        }
    }

    /// Stores the new state of a counter that was taken. Does nothing for an unchanged small state, which is
    /// still there.
    pub fn put(&mut self, place: Place, counter: &mut StepCounter<'_>) {
        let left = (counter.params.capacity(), counter.reading.remaining);
        self.store(place, counter.state.take(), counter.changed, left);
    }

    /// `left` is the limit's capacity, and what is left of it.
    fn store(&mut self, place: Place, state: Option<State>, changed: bool, left: (u64, u64)) {
        let place = self.still_or_again(place);
        let before = place.bucket.and_then(|bucket| self.table.get_bucket(bucket)).map(|e| e.slot);
        let large = before.and_then(|slot| slot.large_index());
        // A small state was copied by `take`, so it is still in its slot. A large one was moved out and must go back.
        if !changed && large.is_none() {
            return;
        }
        // A state without use is not stored: no entry means an empty counter.
        let Some(state) = state.filter(|state| !state.is_spent()) else {
            return self.remove(&place, large);
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
        self.write(place, slot.with_use(left.0, left.1));
    }

    /// Returns the place, or finds it again if a counter added since then made the table grow and move its entries.
    fn still_or_again(&self, place: Place) -> Place {
        let here = place.bucket.and_then(|bucket| self.table.get_bucket(bucket));
        if place.bucket.is_some() && here.is_none_or(|entry| entry.key != place.key) {
            return self.find(u128::from(place.key[0]) | u128::from(place.key[1]) << 64);
        }
        place
    }

    pub fn forget(&mut self, key: u128) {
        let place = self.find(key);
        let taken = self.take(&place);
        self.store(place, None, taken.is_some(), (0, 0));
    }

    /// Returns whether the shard holds more than it may. It can, because a stored log grows.
    pub fn is_over(&self) -> bool {
        self.counted() > self.max_keys
    }

    /// Returns the number of counters. Logs that are too long together count as many more, by their bytes.
    fn counted(&self) -> usize {
        self.table.len() + self.log_bytes.saturating_sub(LOG_BYTES_FREE) / COUNTER_BYTES
    }

    /// Sweeps a few buckets, and returns whether one more counter may be added.
    ///
    /// If the shard is full, evicts the counter of a sample that has used the smallest part of its limit.
    pub fn make_room(&mut self, now_us: u64, evicted: &AtomicU64) -> bool {
        self.sweep(SWEEP, now_us);
        // A loop, because the overflow counter is added even without room: the table can exceed `max_keys`.
        while self.counted() >= self.max_keys {
            // Long logs leave few counters in a large table, where a sample would find none.
            if self.table.num_buckets() > SPARSE * self.table.len().max(SAMPLE) {
                self.table.shrink_to(2 * self.table.len(), |entry| entry.key[0]);
            }
            let least = self.least_of_sample(now_us);
            if self.counted() < self.max_keys {
                break;
            }
            let Some(bucket) = least else { return false };
            self.remove_bucket(bucket);
            evicted.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Sweeps until enough counters were seen to choose from, and returns the one that loses the least by its eviction.
    fn least_of_sample(&mut self, now_us: u64) -> Option<usize> {
        let (mut least, mut seen) = (None, 0);
        for _ in 0..SAMPLES_MAX {
            let (found, count) = self.sweep(SAMPLE, now_us);
            let candidates = [least, found].into_iter().flatten();
            least = candidates.min_by_key(|(_, loss): &(usize, Loss)| *loss);
            seen += count;
            if seen >= CHOICES {
                break;
            }
        }
        least.map(|(bucket, _)| bucket)
    }

    /// Removes expired counters from the next `buckets` buckets. Returns that of the others that may be evicted and loses
    /// the least by it, and how many may be evicted.
    fn sweep(&mut self, buckets: usize, now_us: u64) -> (Option<(usize, Loss)>, usize) {
        let (mut least, mut count): (Option<(usize, Loss)>, usize) = (None, 0);
        for bucket in self.next_buckets(buckets) {
            let Some(slot) = self.table.get_bucket(bucket).map(|entry| entry.slot) else {
                continue;
            };
            let (gone, can_go) = match slot.unpack() {
                Unpacked::State(state) => (state.gone_us() <= now_us, true),
                Unpacked::Large(index) => match &self.large[index as usize] {
                    Some(state) => (state.gone_us() <= now_us, state.may_be_evicted()),
                    // The decision under way has taken it.
                    None => (false, false),
                },
            };
            if gone {
                self.remove_bucket(bucket);
            } else if can_go && !slot.was_exhausted() {
                count += 1;
                let loss = slot.part_used();
                if least.is_none_or(|(_, known)| loss < known) {
                    least = Some((bucket, loss));
                }
            }
        }
        (least, count)
    }

    fn next_buckets(
        &mut self,
        count: usize,
    ) -> std::iter::Map<std::ops::Range<usize>, impl FnMut(usize) -> usize + use<>> {
        let buckets = self.table.num_buckets().max(1);
        let from = self.cursor;
        self.cursor = (self.cursor + count) % buckets;
        (0..count).map(move |step| (from + step) % buckets)
    }

    fn write(&mut self, place: Place, slot: Slot) {
        match place.bucket.and_then(|bucket| self.table.get_bucket_mut(bucket)) {
            Some(entry) => entry.slot = slot,
            None => {
                let entry = Entry { key: place.key, slot };
                self.table.insert_unique(place.key[0], entry, |entry| entry.key[0]);
            }
        }
    }

    fn remove(&mut self, place: &Place, large: Option<u32>) {
        if let Some(index) = large {
            self.replace_large(index, None);
            self.large_free.push(index);
        }
        if let Some(bucket) = place.bucket
            && let Ok(entry) = self.table.get_bucket_entry(bucket)
        {
            entry.remove();
        }
    }

    fn remove_bucket(&mut self, bucket: usize) {
        let Some(entry) = self.table.get_bucket(bucket) else { return };
        let large = entry.slot.large_index();
        self.remove(&Place { key: entry.key, bucket: Some(bucket) }, large);
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

/// What the subject of a counter gains by its eviction, as a part of its limit. So a flood of new subjects, which use
/// little of theirs, replaces its own counters, and no subject of a large limit outweighs one of a small limit.
type Loss = u64;

fn halves(key: u128) -> [u64; 2] {
    [key as u64, (key >> 64) as u64]
}

/// The bytes of a counter of a bucket or a window, with its share of the table's empty buckets.
const COUNTER_BYTES: usize = 96;
/// The bytes that the logs of a shard may take beside its counters: a dozen full ones, and 64 MB in all shards. Without
/// them, a few long logs would evict each other from a memory of few counters.
const LOG_BYTES_FREE: usize = 1 << 20;
/// Buckets swept for each new counter. Two, so that the sweep is faster than the growth.
const SWEEP: usize = 2;
/// Buckets swept at once for an eviction.
const SAMPLE: usize = 16;
/// Buckets for each counter, from which on a table is made smaller.
const SPARSE: usize = 8;
/// How often that is done before new subjects share the overflow counter.
const SAMPLES_MAX: usize = 4;
/// Counters to choose from, unless there are fewer. A table that was full for long has many empty buckets, and a counter
/// that is alone among them would be evicted however much it has used.
const CHOICES: usize = 8;
