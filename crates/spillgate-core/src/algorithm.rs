//! The five algorithms: pure, with `now` as an argument, and integers only.
//!
//! Each has a Lua file with its name in the crate `spillgate-redis`, below `lua/algorithm/`. [`step`] decides over
//! loaded counters; `check.lua` does the same in Redis. Nothing here reads a clock, does I/O or logs.
//!
//! A counter's stored state is a [`State`]. [`View::new`] computes the counter at an instant, under the
//! parameters in force. The stored state may have been written under other parameters, or by a clock ahead of
//! this one. A charge changes the view, and the view is saved as the new state.

use std::fmt;

pub mod concurrency;
mod error;
pub mod fixed_window;
mod kind;
pub mod period;
pub mod sliding_log;
pub mod sliding_window;
mod step;
#[cfg(test)]
mod testing;
pub mod token_bucket;
mod view;

pub use error::LimitError;
pub use kind::Algorithm;
pub use step::{
    Intent, Refund, StepCounter, force, force_above_estimate, holds, refund, renew, step,
};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// Returns the most that can be used at once.
    #[inline]
    pub fn capacity(&self) -> u64 {
        u64::from(match self {
            LimitParams::TokenBucket(params) => params.burst,
            LimitParams::FixedWindow(params) => params.count,
            LimitParams::SlidingLog(params) => params.count,
            LimitParams::SlidingWindow(params) => params.count,
            LimitParams::Concurrency(params) => params.count,
        })
    }

    /// Returns the count, to change it; `None` for a bucket, where other parameters depend on it.
    pub fn count_mut(&mut self) -> Option<&mut u32> {
        match self {
            LimitParams::TokenBucket(_) => None,
            LimitParams::FixedWindow(params) => Some(&mut params.count),
            LimitParams::SlidingLog(params) => Some(&mut params.count),
            LimitParams::SlidingWindow(params) => Some(&mut params.count),
            LimitParams::Concurrency(params) => Some(&mut params.count),
        }
    }

    /// Appends the parameters as the Lua file of the algorithm reads them. `estimate_us` estimates the store's time.
    pub fn words(&self, out: &mut Vec<u64>, estimate_us: u64) {
        match self {
            LimitParams::TokenBucket(params) => params.words(out),
            LimitParams::FixedWindow(params) => params.words(out, estimate_us),
            LimitParams::SlidingLog(params) => params.words(out),
            LimitParams::SlidingWindow(params) => params.words(out),
            LimitParams::Concurrency(params) => params.words(out),
        }
    }

    /// Returns the longest time that a cost within capacity may have to wait, if no other request is charged.
    pub fn longest_wait_us(&self) -> u64 {
        match self {
            LimitParams::TokenBucket(params) => params.refill_us(),
            LimitParams::FixedWindow(params) => params.window.longest_us(),
            LimitParams::SlidingLog(params) => params.period_us,
            LimitParams::SlidingWindow(params) => 2 * params.period_us,
            LimitParams::Concurrency(params) => params.max_hold_us,
        }
    }

    /// Returns the least time from when `first` has room until all of `total`, which includes it, is admitted.
    pub fn spaced_us(&self, first: u64, total: u64) -> u64 {
        // A window admits at most its count, so `total` units need at least this many whole periods between them.
        let periods = |count: u32, period_us: u64| {
            (total.saturating_sub(1) / u64::from(count)).saturating_mul(period_us)
        };
        match self {
            LimitParams::TokenBucket(params) => {
                params.drain_floor_us(total.saturating_sub(first)).unwrap_or(u64::MAX)
            }
            LimitParams::FixedWindow(params) => periods(params.count, params.window.shortest_us()),
            LimitParams::SlidingLog(params) => periods(params.count, params.period_us),
            // Up to twice the count can pass in one period.
            LimitParams::SlidingWindow(params) => periods(params.count, params.period_us / 2),
            // A permit may be released at any time.
            LimitParams::Concurrency(_) => 0,
        }
    }
}

impl State {
    /// Returns when the state is irrelevant under the parameters that it was written under, and may be deleted.
    #[inline]
    pub fn gone_us(&self) -> u64 {
        match self {
            State::TokenBucket(state) => state.gone_us(),
            State::FixedWindow(state) => state.end_us,
            State::SlidingLog(state) => state.gone_us(),
            State::SlidingWindow(state) => state.gone_us(),
            State::Concurrency(state) => state.gone_us(),
        }
    }

    /// Returns whether the state is a log without entries; small states are not stored when empty.
    ///
    /// A concurrency state stays for a moment after its last hold ended, so that an old receipt never names a
    /// new hold.
    pub fn is_spent(&self) -> bool {
        matches!(self, State::SlidingLog(log) if log.gone_us() == 0)
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
        match self {
            LimitParams::TokenBucket(params) => params.fmt(f),
            LimitParams::FixedWindow(params) => params.fmt(f),
            LimitParams::SlidingLog(params) => params.fmt(f),
            LimitParams::SlidingWindow(params) => params.fmt(f),
            LimitParams::Concurrency(params) => params.fmt(f),
        }
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
