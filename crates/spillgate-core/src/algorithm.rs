//! The five algorithms: pure, with `now` as an argument, and integers only.
//!
//! Each has a Lua file with its name in the crate `spillgate-redis`, below `lua/algorithm/`. The memory engine decides over
//! several counters; `check.lua` does the same in Redis. Nothing here reads a clock, does I/O or logs.
//!
//! A counter's stored state is a [`State`]. [`View::new`] computes the counter at an instant, under the
//! parameters in force. The stored state may have been written under other parameters, or by a clock ahead of
//! this one. A charge changes the view, and the view is saved as the new state.

use std::fmt;

pub mod bytes;
pub mod concurrency;
mod counting;
mod error;
pub mod fixed_window;
mod intent;
mod kind;
pub mod passing;
mod period;
pub mod quota;
mod rate;
mod share;
pub mod sliding_log;
pub mod sliding_window;
#[cfg(test)]
mod testing;
pub mod token_bucket;
mod view;

use counting::whole_periods_us;
pub use counting::{Counting, Fields, Footprint, OwnField, Profile, checked_count};
pub use error::LimitError;
pub use intent::{Intent, Refund};
pub use kind::{Algorithm, names_of};
pub use rate::Rate;
pub use share::Share;
pub use view::View;

/// The parameters of a limit, validated and ready for computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitParams {
    /// See [`token_bucket`].
    TokenBucket(token_bucket::Params),
    /// See [`fixed_window`].
    FixedWindow(fixed_window::Params),
    /// See [`sliding_log`].
    SlidingLog(sliding_log::Params),
    /// See [`sliding_window`].
    SlidingWindow(sliding_window::Params),
    /// See [`concurrency`].
    Concurrency(concurrency::Params),
}

/// The stored state of a counter that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// See [`token_bucket`].
    TokenBucket(token_bucket::State),
    /// See [`fixed_window`].
    FixedWindow(fixed_window::State),
    /// See [`sliding_log`].
    SlidingLog(Box<sliding_log::State>),
    /// See [`sliding_window`].
    SlidingWindow(sliding_window::State),
    /// See [`concurrency`].
    Concurrency(Box<concurrency::State>),
}

/// The numbers of a counter that clients see, for one cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The largest cost that would have room now.
    pub remaining: u64,
    /// How long until the cost has room if no other request is charged; 0 if it has room. `None` if unknown.
    pub retry_after_us: Option<u64>,
    /// How long until the counter is full again: nothing used.
    pub reset_after_us: u64,
}

/// A receipt's data for one counter. It suffices to refund this charge, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Identifies the life of the counter's state that was charged. In another life the charge refunds nothing.
    pub incarnation: u64,
    /// The store's instant of the charge.
    pub at_us: u64,
    /// The amount charged.
    pub amount: u64,
    /// For concurrency the number of the hold; for a token bucket its [mark](token_bucket::Receipts::mark); else 0.
    pub mark: u64,
}

/// Runs one expression on the value of an enum with a variant for each algorithm.
macro_rules! each {
    ($of:ident, $value:expr, $inner:ident => $do:expr) => {
        match $value {
            $of::TokenBucket($inner) => $do,
            $of::FixedWindow($inner) => $do,
            $of::SlidingLog($inner) => $do,
            $of::SlidingWindow($inner) => $do,
            $of::Concurrency($inner) => $do,
        }
    };
}
use each;

impl LimitParams {
    /// Returns the algorithm of these parameters.
    pub fn algorithm(&self) -> Algorithm {
        match self {
            LimitParams::TokenBucket(_) => Algorithm::TokenBucket,
            LimitParams::FixedWindow(_) => Algorithm::FixedWindow,
            LimitParams::SlidingLog(_) => Algorithm::SlidingLog,
            LimitParams::SlidingWindow(_) => Algorithm::SlidingWindow,
            LimitParams::Concurrency(_) => Algorithm::Concurrency,
        }
    }

    /// Returns how they count.
    pub fn counting(&self) -> &dyn Counting {
        each!(LimitParams, self, params => params)
    }

    /// Returns the period; 0 without one.
    #[inline]
    pub fn period(&self) -> u64 {
        each!(LimitParams, self, params => params.period())
    }

    /// Returns the longest time that a permit can be held; `None` if it counts none.
    #[inline]
    pub fn max_hold_us(&self) -> Option<u64> {
        each!(LimitParams, self, params => params.max_hold_us())
    }

    /// Returns the most that can be used at once.
    #[inline]
    pub fn capacity(&self) -> u64 {
        u64::from(each!(LimitParams, self, params => params.capacity()))
    }
}

impl State {
    /// Returns when the state is irrelevant under the parameters that it was written under, and may be deleted.
    #[inline]
    pub fn gone_us(&self) -> u64 {
        each!(State, self, state => state.gone_us())
    }

    /// Returns whether the state is a log without entries; small states are not stored when empty.
    ///
    /// A concurrency state stays for a moment after its last hold ended, so that an old receipt never names a
    /// new hold.
    pub fn is_spent(&self) -> bool {
        matches!(self, State::SlidingLog(log) if log.gone_us() == 0)
    }

    /// Returns whether an eviction loses only use: no permit, and no receipt that a caller may still hold.
    pub fn may_be_evicted(&self) -> bool {
        match self {
            State::TokenBucket(state) => state.receipts.is_none(),
            State::FixedWindow(state) => state.incarnation == 0,
            State::SlidingLog(log) => !log.has_receipts(),
            State::SlidingWindow(state) => state.incarnation == 0,
            State::Concurrency(_) => false,
        }
    }

    /// Returns the bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        match self {
            State::SlidingLog(state) => state.heap_bytes(),
            State::Concurrency(state) => state.heap_bytes(),
            State::TokenBucket(state) => state.heap_bytes(),
            State::FixedWindow(_) | State::SlidingWindow(_) => 0,
        }
    }
}

impl fmt::Display for LimitParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        each!(LimitParams, self, params => params.fmt(f))
    }
}

/// Returns the use that forced charges may reach in a window of `count`: no more than its stored counts hold.
pub fn forced_max_in_window(count: u32) -> u64 {
    (FORCED_TIMES * u64::from(count)).min(WINDOW_COUNT_MAX.into())
}

/// Returns how far stored time may be ahead of now before the clock counts as stepped back.
pub fn tolerated_us(longest_wait_us: u64) -> u64 {
    longest_wait_us.min(SECOND_US)
}

/// Returns the greatest common divisor.
pub fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Numbers that Lua uses stay below this: a double holds every integer up to here.
pub const EXACT_MAX: u64 = 1 << 53;
/// The largest count and burst of a bucket: with any period, all computations stay exact.
pub const COUNT_MAX: u32 = 1_000_000_000;
/// The largest count of a fixed or sliding window: what its stored counts hold.
pub const WINDOW_COUNT_MAX: u32 = u32::MAX;
/// Forced charges (post-paid, deferred) may reach this multiple of the capacity.
pub const FORCED_TIMES: u64 = 2;
const SECOND_US: u64 = 1_000_000;
