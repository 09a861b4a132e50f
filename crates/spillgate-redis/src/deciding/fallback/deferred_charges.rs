//! Admissions by local shares that the store has not been charged for. A deferred charge is taken
//! out before it is sent, so that no two calls carry it. It is put back if the store surely did not
//! execute the call. A caller that leaves before its call is sent takes it along.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::algorithm::LimitParams;
use crate::counter::{LimitHandle, PlannedCharge};

/// Deferred charges by counter, at most `COUNTERS_MAX`.
#[derive(Debug, Default)]
pub struct DeferredCharges {
    by_counter: Mutex<BTreeMap<u128, DeferredCharge>>,
    /// The number of entries, so that most calls find out without the lock that there are none.
    count: AtomicUsize,
}

/// The deferred charge of one counter.
#[derive(Clone, Debug)]
pub(crate) struct DeferredCharge {
    /// Its cost is 0: the amount is `admitted`.
    pub(crate) counter: PlannedCharge,
    /// The local share of this instance, which admitted it.
    pub(crate) share: LimitParams,
    /// The amount admitted since the last charge to the store.
    pub(crate) admitted: u64,
    /// Whether a part of it may still be refunded, since it belongs to reservations or permits.
    pub(crate) is_reserved: bool,
}

impl DeferredCharges {
    /// Adds an admission. Above the bound it is dropped; the local share has enforced the limit all
    /// the same.
    pub fn add(&self, counter: &PlannedCharge, share: &LimitParams, cost: u64, is_reserved: bool) {
        let mut deferred_charges = self.by_counter.lock();
        // A known counter is always updated, even at the bound.
        let full = deferred_charges.len() >= COUNTERS_MAX;
        match deferred_charges.get_mut(&counter.name()) {
            Some(deferred) => {
                deferred.admitted = deferred.admitted.saturating_add(cost);
                deferred.is_reserved |= is_reserved;
            }
            None if full => {}
            None => {
                let counter = PlannedCharge::new(counter.key, counter.limit.clone());
                let name = counter.name();
                let deferred =
                    DeferredCharge { counter, share: *share, admitted: cost, is_reserved };
                deferred_charges.insert(name, deferred);
            }
        }
        self.count.store(deferred_charges.len(), Ordering::Release);
    }

    /// Subtracts a refunded admission. Returns what is left of it: the store has been charged for that.
    pub fn lower<L: LimitHandle>(&self, counter: &PlannedCharge<L>, cost: u64) -> u64 {
        let mut deferred_charges = self.by_counter.lock();
        let Some(deferred) = deferred_charges.get_mut(&counter.name()) else { return cost };
        // An entry that falls to 0 stays. The next call takes it out, and charges nothing for it.
        let lowered = cost.min(deferred.admitted);
        deferred.admitted -= lowered;
        cost - lowered
    }

    /// Returns whether a counter has a deferred charge.
    pub fn is_deferred(&self, counter: &PlannedCharge) -> bool {
        !self.are_none() && self.by_counter.lock().contains_key(&counter.name())
    }

    /// Takes out a deferred charge by the counter's name, to be sent.
    pub fn take_named(&self, name: u128) -> Option<DeferredCharge> {
        let mut deferred_charges = self.by_counter.lock();
        let deferred = deferred_charges.remove(&name);
        self.count.store(deferred_charges.len(), Ordering::Release);
        deferred
    }

    /// Returns the names of some that can be charged now. They stay deferred until they are taken
    /// out.
    pub fn some(&self, at_most: usize, payable: impl Fn(&DeferredCharge) -> bool) -> Vec<u128> {
        let deferred_charges = self.by_counter.lock();
        let names = deferred_charges
            .iter()
            .filter(|(_, deferred)| payable(deferred))
            .map(|(name, _)| *name);
        names.take(at_most).collect()
    }

    /// Puts back a deferred charge that was not sent or not executed.
    pub fn put_back(&self, deferred: DeferredCharge) {
        let DeferredCharge { counter, share, admitted, is_reserved } = deferred;
        self.add(&counter, &share, admitted, is_reserved);
    }

    pub fn are_none(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}

/// About 30 MB. In an outage with more subjects, the rest is not charged afterwards.
const COUNTERS_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Limit, NamedLimit};
    use crate::subject::SubjectKey;

    #[test]
    fn stays_deferred_until_it_is_taken_out() {
        let limit = NamedLimit::new(Limit::per_second(9), 0);
        let params = limit.params().unwrap();
        let counter = |id| {
            let key = SubjectKey { tag: id, id, rule: 0 };
            PlannedCharge { cost: 2, attributes: 1, ..PlannedCharge::new(key, limit.clone()) }
        };
        let (deferred_charges, one, other) = (DeferredCharges::default(), counter(7), counter(8));
        [&one, &other].iter().for_each(|counter| deferred_charges.add(counter, params, 2, false));
        let names = deferred_charges.some(9, |deferred| deferred.counter.key.id == 7);
        assert_eq!(
            (names.len(), deferred_charges.is_deferred(&one), deferred_charges.is_deferred(&other)),
            (1, true, true)
        );
        assert_eq!(deferred_charges.take_named(names[0]).unwrap().admitted, 2);
        assert_eq!(
            (deferred_charges.is_deferred(&one), deferred_charges.is_deferred(&other)),
            (false, true)
        );
        assert!(
            deferred_charges.take_named(names[0]).is_none()
                && deferred_charges.take_named(other.name()).is_some()
        );
        assert!(deferred_charges.are_none());
    }
}
