//! The five algorithms: pure, `now` an argument, integers only.
//!
//! Each has a Lua file of its name in the crate `spillgate`, below `engine/redis/algorithm/`. [`step`] is one decision
//! over loaded counters; `check.lua` is the same in Redis. Nothing here reads a clock, does IO or logs.
//!
//! A counter's stored state is a [`State`]. [`View::of`] shows it as it stands at an instant, under
//! the numbers in force: what is stored may have been written under other numbers, or by a clock
//! ahead of this one. What is charged goes through the view into the state.

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
pub use step::{Intent, Refund, StepCounter, force, holds, refund, renew, step};
pub use view::View;

/// A limit's numbers, valid and ready to compute with.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// What is stored of a counter that is not untouched.
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

/// A counter's numbers for people, for one cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The largest cost that would have room now.
    pub remaining: u64,
    /// How long until the cost has room, nobody else asking; 0 if it has. Absent when unknown.
    pub retry_after_us: Option<u64>,
    /// How long until untouched again.
    pub reset_after_us: u64,
}

/// What a receipt says of one counter: enough to give the charge back, and no more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The life of the counter's state that was charged; another life gives nothing back.
    pub incarnation: u64,
    /// The store's instant of the charge; for a slot, with `incarnation` and `slot` its name.
    pub at_us: u64,
    /// All that was charged.
    pub amount: u64,
    /// Which slot, for concurrency; for a bucket what had come back of it before; 0 elsewhere.
    pub slot: u64,
}

impl LimitParams {
    /// The algorithm that these numbers belong to.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        match self {
            LimitParams::TokenBucket(_) => Algorithm::TokenBucket,
            LimitParams::FixedWindow(_) => Algorithm::FixedWindow,
            LimitParams::SlidingLog(_) => Algorithm::SlidingLog,
            LimitParams::SlidingWindow(_) => Algorithm::SlidingWindow,
            LimitParams::Concurrency(_) => Algorithm::Concurrency,
        }
    }

    /// The most that can be used at once.
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

    /// These numbers as the Lua beside them reads them; `estimate_us` is where the store's time is
    /// thought to be.
    pub fn words(&self, out: &mut Vec<u64>, estimate_us: u64) {
        match self {
            LimitParams::TokenBucket(params) => params.words(out),
            LimitParams::FixedWindow(params) => params.words(out, estimate_us),
            LimitParams::SlidingLog(params) => params.words(out),
            LimitParams::SlidingWindow(params) => params.words(out),
            LimitParams::Concurrency(params) => params.words(out),
        }
    }

    /// The longest that a cost within capacity can have to wait, nobody else asking.
    #[inline]
    pub fn longest_wait_us(&self) -> u64 {
        match self {
            LimitParams::TokenBucket(params) => params.refill_us(),
            LimitParams::FixedWindow(params) => params.longest_wait_us(),
            LimitParams::SlidingLog(params) => params.period_us,
            LimitParams::SlidingWindow(params) => 2 * params.period_us,
            LimitParams::Concurrency(params) => params.max_hold_us,
        }
    }

    /// The least time between the moment when `first` has room again, and the moment when all of `total`,
    /// which begins with it, has been let in.
    pub fn spaced_us(&self, first: u64, total: u64) -> u64 {
        let periods = |count: u32, period_us: u64| {
            (total.saturating_sub(1) / u64::from(count)).saturating_mul(period_us)
        };
        match self {
            LimitParams::TokenBucket(params) => {
                let parts = u128::from(total.saturating_sub(first)) * u128::from(params.n);
                u64::try_from(parts / u128::from(params.d)).unwrap_or(u64::MAX)
            }
            LimitParams::FixedWindow(params) => periods(params.count, params.shortest_us()),
            LimitParams::SlidingLog(params) => periods(params.count, params.period_us),
            // Up to twice the count can pass in one period.
            LimitParams::SlidingWindow(params) => periods(params.count, params.period_us / 2),
            // Whoever holds a slot may let it go at any time.
            LimitParams::Concurrency(_) => 0,
        }
    }
}

impl State {
    /// When it is untouched again by the numbers it was written under; nobody needs it then.
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

    /// Whether it is a log that holds nothing; the small states are not stored then. Slots stay for
    /// a moment, so that no receipt of theirs ever names a slot taken later.
    #[inline]
    pub fn is_spent(&self) -> bool {
        matches!(self, State::SlidingLog(log) if log.gone_us() == 0)
    }

    /// The bytes it holds beside itself.
    #[inline]
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

/// How far stored time may be ahead of now before the clock is taken to have stepped back.
#[inline]
pub fn tolerated_us(longest_wait_us: u64) -> u64 {
    longest_wait_us.min(SECOND_US)
}

/// Numbers that Lua sees stay below this: doubles hold every integer up to here.
pub const EXACT_MAX: u64 = 1 << 53;
/// The largest count and burst: with any period they stay exact.
pub const COUNT_MAX: u32 = 1_000_000_000;
/// Charges by force (post-paid, payback) may go to this many times the capacity, and no further.
pub const FORCED_TIMES: u64 = 2;
const SECOND_US: u64 = 1_000_000;
