//! Each algorithm again, straight from its definition: big integers, no packing, no shortcuts.
//!
//! Each file of the folder holds the arithmetic of one counter. The acts on a counter are the same for all
//! five algorithms and stand here once.

mod concurrency;
mod fixed_window;
mod sliding_log;
mod sliding_window;
mod token_bucket;

use spillgate::Algorithm;
use spillgate_core::algorithm::{LimitParams, Reading};
use spillgate_core::limit::NamedLimit;

use crate::support::target::{Act, Answer, Target, cost_of, params};

/// Returns the oracle of an algorithm, without any state.
pub fn oracle(algorithm: Algorithm) -> Box<dyn Target> {
    match algorithm {
        Algorithm::TokenBucket => Box::new(Oracle::<token_bucket::Bucket>::default()),
        Algorithm::FixedWindow => Box::new(Oracle::<fixed_window::Window>::default()),
        Algorithm::SlidingLog => Box::new(Oracle::<sliding_log::Log>::default()),
        Algorithm::SlidingWindow => Box::new(Oracle::<sliding_window::Windows>::default()),
        Algorithm::Concurrency => Box::new(Oracle::<concurrency::Permits>::default()),
        other => panic!("{other:?} has no oracle"),
    }
}

/// One counter as it stands at an instant, under the numbers of one limit.
trait Counter: Sized {
    /// What a counter keeps between two acts.
    type Stored: Default;
    /// What a charge leaves for its refund.
    type Receipt: Clone;

    /// Brings the stored state to `now_us`.
    fn at(stored: &Self::Stored, params: &LimitParams, now_us: u64) -> Self;

    fn stored(&self) -> Self::Stored;

    /// Returns the units in use, rounded up.
    fn used(&self) -> u64;

    fn capacity(&self) -> u64;

    /// Returns how many units forced charges can bring into use.
    fn forced_max(&self) -> u64 {
        2 * self.capacity()
    }

    /// Returns whether the stored time was too far ahead, so that now took its place.
    fn is_rebased(&self) -> bool;

    /// Charges units that fit, at least one.
    fn charge(&mut self, units: u64);

    /// Charges units up to [`Counter::forced_max`], perhaps none.
    fn force(&mut self, units: u64) {
        if units > 0 {
            self.charge(units);
        }
    }

    /// Returns the receipt of the charge just made. `number` is larger than all before it.
    fn receipt(&mut self, units: u64, number: usize) -> Self::Receipt;

    /// Refunds unused units of a receipt. Returns whole units, or `None` if the counter did not change.
    fn refund(&mut self, receipt: &Self::Receipt, unused: u64) -> Option<u64>;

    /// Lowers the usage. Returns whole units, or `None` if the counter did not change.
    fn lower(&mut self, units: u64) -> Option<u64>;

    /// Returns the wait until this many units more would fit, which do not fit now.
    fn retry_after_us(&self, units: u64) -> u64;

    /// Returns the wait until nothing is in use.
    fn reset_after_us(&self) -> u64;
}

struct Oracle<C: Counter> {
    stored: C::Stored,
    receipts: Vec<Option<C::Receipt>>,
}

impl<C: Counter> Default for Oracle<C> {
    fn default() -> Oracle<C> {
        Oracle { stored: C::Stored::default(), receipts: Vec::new() }
    }
}

impl<C: Counter> Target for Oracle<C> {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn act(&mut self, act: Act, limit: &NamedLimit, now_us: u64) -> Answer {
        let mut counter = C::at(&self.stored, params(limit), now_us);
        let (capacity, before) = (counter.capacity(), counter.used());
        let cost = cost_of(act).max(1);
        let fits = before + cost <= capacity;
        let (mut changed, mut returned) = (false, None);
        match act {
            Act::Check(cost) | Act::Reserve(cost) => {
                let is_charged = cost > 0 && fits;
                if is_charged {
                    counter.charge(cost);
                }
                if let Act::Reserve(_) = act {
                    let number = self.receipts.len() + 1;
                    self.receipts.push(is_charged.then(|| counter.receipt(cost, number)));
                }
                changed = is_charged || (cost > 0 && counter.is_rebased());
            }
            Act::Peek(_) => {}
            Act::Force(cost) => {
                counter.force(cost.min(counter.forced_max().saturating_sub(before)));
                changed = true;
            }
            Act::Refund { receipt, unused } => {
                let place = receipt as usize % self.receipts.len().max(1);
                let receipt = self.receipts.get(place).and_then(Option::as_ref);
                returned = receipt.and_then(|receipt| counter.refund(receipt, unused));
            }
            Act::Lower(units) => returned = counter.lower(units),
        }
        if changed || returned.is_some() {
            self.stored = counter.stored();
        }
        let used = counter.used();
        let decides = matches!(act, Act::Check(_) | Act::Reserve(_) | Act::Peek(_));
        let (judged, waits) = if decides { (cost, !fits) } else { (1, used + 1 > capacity) };
        Answer {
            fits: fits || !decides,
            reading: Reading {
                remaining: capacity.saturating_sub(used),
                retry_after_us: Some(if waits { counter.retry_after_us(judged) } else { 0 }),
                reset_after_us: counter.reset_after_us(),
            },
            returned: returned.unwrap_or(0),
        }
    }
}

fn number<N: TryInto<u64, Error: std::fmt::Debug>>(number: N) -> u64 {
    number.try_into().expect("fits 64 bits")
}
