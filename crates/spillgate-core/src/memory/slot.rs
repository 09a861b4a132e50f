//! A counter's state in 24 bytes, or the index of a larger state.

use crate::algorithm::{LimitParams, Reading, State, fixed_window, sliding_window, token_bucket};

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// A decision over a state that fits a slot. It is not stored yet.
#[derive(Default)]
pub struct Decided {
    /// Whether the cost had room.
    pub fits: bool,
    /// The numbers that clients see, after the charge if it was made.
    pub reading: Reading,
    /// The slot after the decision, if it is changed.
    pub after: Slot,
    /// Whether it must be stored.
    pub is_changed: bool,
}

impl Slot {
    /// Decides over a counter on a copy of its slot, or on none for one without use, and charges it if `charges` and it
    /// has room. Returns `None` if the state does not fit a slot, before or after. Fills the result in where it stays:
    /// moving it would take as long as the decision.
    pub fn decide(
        slot: Option<&Slot>,
        params: &LimitParams,
        cost: u64,
        charges: bool,
        now_us: u64,
        into: &mut Decided,
    ) -> Option<()> {
        // The views of the algorithms have no type in common.
        macro_rules! decided {
            ($module:ident, $params:ident, $tag:ident, $unpack:ident, $pack:ident, $charge:tt) => {{
                if slot.is_some_and(|slot| slot.tag() != $tag) {
                    return None;
                }
                let state = slot.map(Slot::$unpack);
                let mut view = $module::View::new(state.as_ref(), $params, now_us);
                into.fits = view.has_room(cost.max(1));
                let is_charged = into.fits && charges && cost > 0;
                if is_charged {
                    view.charge$charge;
                }
                // What has room waits for nothing.
                into.reading = view.reading(if into.fits { 0 } else { cost.max(1) });
                // A denial stores nothing but a re-base.
                into.is_changed = is_charged || cost > 0 && view.rebased();
                if into.is_changed {
                    let slot = Slot::$pack(&view.state()?)?;
                    into.after = slot.with_use(params.capacity(), into.reading.remaining);
                }
                Some(())
            }};
        }
        match params {
            LimitParams::TokenBucket(own) => {
                decided!(token_bucket, own, BUCKET, bucket, of_bucket, (cost))
            }
            LimitParams::FixedWindow(own) => {
                decided!(fixed_window, own, FIXED, fixed, of_fixed, (cost, now_us))
            }
            LimitParams::SlidingWindow(own) => {
                decided!(sliding_window, own, SLIDING, sliding, of_sliding, (cost, now_us))
            }
            LimitParams::SlidingLog(_) | LimitParams::Concurrency(_) => None,
        }
    }

    /// Packs a state, if it fits. States with receipts, log entries or permits do not.
    #[inline]
    pub fn pack(state: &State) -> Option<Slot> {
        match state {
            State::TokenBucket(state) => Slot::of_bucket(state),
            State::FixedWindow(state) => Slot::of_fixed(state),
            State::SlidingWindow(state) => Slot::of_sliding(state),
            State::SlidingLog(_) | State::Concurrency(_) => None,
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

    #[inline]
    fn of_bucket(state: &token_bucket::State) -> Option<Slot> {
        let token_bucket::State { used, boundary_us, boundary_part, count, period_us, .. } = *state;
        let counts = [used, boundary_part, count];
        let slot = Slot::new(BUCKET, boundary_us, period_us, counts);
        slot.filter(|_| state.receipts.is_none())
    }

    #[inline]
    fn of_fixed(state: &fixed_window::State) -> Option<Slot> {
        let fixed_window::State { start_us, end_us, used, incarnation } = *state;
        let slot = Slot::new(FIXED, start_us, end_us - start_us, [used, 0, 0]);
        slot.filter(|_| incarnation == 0)
    }

    #[inline]
    fn of_sliding(state: &sliding_window::State) -> Option<Slot> {
        let sliding_window::State { start_us, period_us, prev, curr, incarnation } = *state;
        let slot = Slot::new(SLIDING, start_us, period_us, [prev, curr, 0]);
        slot.filter(|_| incarnation == 0)
    }

    /// Unpacks a token bucket. The slot must have the tag of one; so in the next functions.
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

    #[inline]
    fn fixed(&self) -> fixed_window::State {
        let start_us = self.word & INSTANT;
        let end_us = start_us + self.length_us();
        fixed_window::State { start_us, end_us, used: self.a, incarnation: 0 }
    }

    #[inline]
    fn sliding(&self) -> sliding_window::State {
        sliding_window::State {
            start_us: self.word & INSTANT,
            period_us: self.length_us(),
            prev: self.a,
            curr: self.b,
            incarnation: 0,
        }
    }

    pub fn unpack(&self) -> Unpacked {
        Unpacked::State(match self.tag() {
            BUCKET => State::TokenBucket(self.bucket()),
            FIXED => State::FixedWindow(self.fixed()),
            SLIDING => State::SlidingWindow(self.sliding()),
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

    /// Returns the part of the limit that was used when the counter was last written: 0 is little, and a full one has 16 to 31.
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
    fn a_counter_takes_32_bytes_with_its_name() {
        assert_eq!(size_of::<(u64, Slot)>(), 32);
    }
}
