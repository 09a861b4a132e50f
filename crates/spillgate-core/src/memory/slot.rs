//! A counter's state in 24 bytes, or the index of a larger state.

use crate::algorithm::{Reading, State, fixed_window, sliding_window, token_bucket};
use crate::time::CoarseTime;

/// Packed state.
///
/// Bits of `word`, from the lowest:
///
/// | bits | content |
/// |---|---|
/// | 52 | an instant, in microseconds |
/// | 3 | the tag |
/// | 3 | the period's high bits |
/// | 1 | whether the counter was exhausted when last written |
/// | 5 | the part of its limit that was used when it was last written |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    word: u64,
    a: u32,
    b: u32,
    c: u32,
    d: u32,
}

/// An unpacked slot: the state itself, or its index among the shard's large states.
#[derive(Debug, PartialEq, Eq)]
pub enum Unpacked {
    State(State),
    Large(u32),
}

impl Slot {
    /// Packs a state, if it fits. States with receipts, log entries or permits do not.
    #[inline]
    pub fn pack(state: &State) -> Option<Slot> {
        match state {
            State::TokenBucket(state) => Slot::of_bucket(state),
            State::FixedWindow(fixed_window::State { start_us, end_us, used, incarnation: 0 }) => {
                Slot::new(FIXED, *start_us, end_us - start_us, [*used, 0, 0])
            }
            State::SlidingWindow(sliding_window::State {
                start_us,
                period_us,
                prev,
                curr,
                incarnation: 0,
            }) => Slot::new(SLIDING, *start_us, *period_us, [*prev, *curr, 0]),
            _ => None,
        }
    }

    /// Creates a slot that points to a large state.
    pub fn large(index: u32) -> Slot {
        Slot { word: LARGE << TAG_SHIFT, a: index, b: 0, c: 0, d: 0 }
    }

    /// Returns the index of the large state that the slot points to, if it does.
    #[inline]
    pub fn large_index(&self) -> Option<u32> {
        (self.tag() == LARGE).then_some(self.a)
    }

    fn of_bucket(state: &token_bucket::State) -> Option<Slot> {
        let token_bucket::State { used, boundary_us, boundary_part, count, period_us, .. } = *state;
        let counts = [used, boundary_part, count];
        let slot = Slot::new(BUCKET, boundary_us, period_us, counts);
        slot.filter(|_| state.receipts.is_none())
    }

    /// Unpacks a token bucket. The slot must have the tag of one.
    #[inline]
    fn bucket(&self) -> token_bucket::State {
        token_bucket::State {
            used: self.a,
            boundary_us: self.word & INSTANT,
            boundary_part: self.b,
            count: self.c,
            period_us: self.length_us(),
            receipts: None,
        }
    }

    /// Charges a token bucket inside the slot.
    ///
    /// Returns `None`, and changes nothing, if the slot holds no bucket or `now` is not certain.
    #[inline(always)] // with the view's arithmetic: else each step moves what the last one made
    pub fn charge(
        &mut self,
        params: &token_bucket::Params,
        cost: u64,
        now: CoarseTime,
    ) -> Option<Reading> {
        let state = self.bucket();
        if self.tag() != BUCKET || state.count != params.count {
            return None;
        }
        // `view` copies the state. Only the assignment to `self` below changes the slot.
        let mut view = token_bucket::View::new(Some(&state), params, now.at_us);
        if !view.is_certain(cost, now) {
            return None;
        }
        view.charge(cost);
        // A charge that had room waits for nothing.
        let reading = view.reading(0);
        *self = Slot::of_bucket(&view.state()?)?.with_use(params.burst.into(), reading.remaining);
        Some(reading)
    }

    #[inline]
    pub fn unpack(&self) -> Unpacked {
        let instant_us = self.word & INSTANT;
        let length_us = self.length_us();
        Unpacked::State(match self.tag() {
            BUCKET => State::TokenBucket(self.bucket()),
            FIXED => State::FixedWindow(fixed_window::State {
                start_us: instant_us,
                end_us: instant_us + length_us,
                used: self.a,
                incarnation: 0,
            }),
            SLIDING => State::SlidingWindow(sliding_window::State {
                start_us: instant_us,
                period_us: length_us,
                prev: self.a,
                curr: self.b,
                incarnation: 0,
            }),
            _ => return Unpacked::Large(self.a),
        })
    }

    /// Returns the slot with the use of a limit that has `remaining` left of its capacity.
    #[inline]
    pub fn with_use(self, capacity: u64, remaining: u64) -> Slot {
        let used = capacity.saturating_sub(remaining);
        // Of the next power of two, since a division would take longer than the rest of a charge.
        let bits = u64::BITS - capacity.leading_zeros();
        let part = match bits.checked_sub(PART_BITS) {
            Some(surplus) => used >> surplus,
            None => used << (PART_BITS - bits),
        };
        let kept = self.word & !(EXHAUSTED | PART_MAX << PART_SHIFT);
        let exhausted = if remaining == 0 { EXHAUSTED } else { 0 };
        Slot { word: kept | part.min(PART_MAX) << PART_SHIFT | exhausted, ..self }
    }

    /// Returns the part of the limit that was used when the counter was last written: 0 is little, 31 is all.
    pub fn part_used(&self) -> u64 {
        self.word >> PART_SHIFT & PART_MAX
    }

    /// Returns whether the counter was exhausted when last written. Its eviction would admit a subject that
    /// was just denied.
    pub fn was_exhausted(&self) -> bool {
        self.word & EXHAUSTED != 0
    }

    fn tag(&self) -> u64 {
        (self.word >> TAG_SHIFT) & 7
    }

    fn length_us(&self) -> u64 {
        (u64::from(self.d) | ((self.word >> LENGTH_SHIFT) & 7) << 32) * 1_000
    }

    #[inline]
    fn new(tag: u64, instant_us: u64, length_us: u64, [a, b, c]: [u32; 3]) -> Option<Slot> {
        // A period has 35 bits of whole milliseconds: 32 in `d`, and 3 in `word`.
        let length_ms = length_us / 1_000;
        if instant_us > INSTANT || !length_us.is_multiple_of(1_000) || length_ms >> 35 != 0 {
            return None;
        }
        let word = instant_us | tag << TAG_SHIFT | (length_ms >> 32) << LENGTH_SHIFT;
        Some(Slot { word, a, b, c, d: length_ms as u32 })
    }
}

const INSTANT: u64 = (1 << 52) - 1;
const TAG_SHIFT: u64 = 52;
const LENGTH_SHIFT: u64 = 55;
const EXHAUSTED: u64 = 1 << 58;
const PART_SHIFT: u64 = 59;
const PART_BITS: u32 = 5;
const PART_MAX: u64 = 31;
const BUCKET: u64 = 0;
const FIXED: u64 = 1;
const SLIDING: u64 = 2;
const LARGE: u64 = 7;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packed_state_unpacks_unchanged(
            used: u32, part in 0..1_000_000_000u32, count: u32,
            instant_us in 0..1u64 << 52, period_ms in 1..=366 * 86_400_000u64,
        ) {
            let period_us = period_ms * 1_000;
            for state in [
                State::TokenBucket(token_bucket::State {
                    used, boundary_us: instant_us, boundary_part: part, count, period_us, receipts: None,
                }),
                State::FixedWindow(fixed_window::State {
                    start_us: instant_us, end_us: instant_us + period_us, used, incarnation: 0,
                }),
                State::SlidingWindow(sliding_window::State {
                    start_us: instant_us, period_us, prev: used, curr: count, incarnation: 0,
                }),
            ] {
                let slot = Slot::pack(&state).unwrap().with_use(count.into(), used.into());
                prop_assert_eq!(slot.unpack(), Unpacked::State(state));
            }
        }
    }

    #[test]
    fn a_counter_takes_forty_bytes_with_its_key() {
        assert_eq!(size_of::<(u128, Slot)>().max(40), 48, "a u128 would pad it");
        assert_eq!(size_of::<([u64; 2], Slot)>(), 40);
    }
}
