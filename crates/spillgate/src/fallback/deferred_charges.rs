//! What was admitted alone and not yet charged to the store. Each deferred charge is taken out before it is
//! sent, so that no two calls pay it, and put back if the store surely did not execute.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::algorithm::LimitParams;
use crate::counter::{LimitHandle, PlannedCharge};
use crate::limit::NamedLimit;
use crate::subject::SubjectKey;

/// Debts by counter, so many at most.
#[derive(Debug, Default)]
pub(super) struct DeferredCharges {
    by_counter: Mutex<BTreeMap<u128, DeferredCharge>>,
    /// Most calls find that there are none, without a lock.
    count: AtomicUsize,
}

/// One counter's deferred charge.
#[derive(Clone, Debug)]
pub(super) struct DeferredCharge {
    pub(super) key: SubjectKey,
    pub(super) limit: NamedLimit,
    /// This process's share of it, by which it was admitted.
    pub(super) share: LimitParams,
    /// All that was admitted since the last payment.
    pub(super) admitted: u64,
}

impl DeferredCharges {
    /// Notes an admission. Beyond the bound it is forgotten: the limit was enforced all the same.
    pub(super) fn add(&self, counter: &PlannedCharge, share: &LimitParams, cost: u64) {
        let mut deferred_charges = self.by_counter.lock();
        let full = deferred_charges.len() >= DEBTS_MAX;
        match deferred_charges.get_mut(&counter.name()) {
            Some(deferred) => deferred.admitted = deferred.admitted.saturating_add(cost),
            None if full => {}
            None => {
                let (limit, share) = (counter.limit.clone(), share.clone());
                let deferred = DeferredCharge { key: counter.key, limit, share, admitted: cost };
                deferred_charges.insert(counter.name(), deferred);
            }
        }
        self.count.store(deferred_charges.len(), Ordering::Release);
    }

    /// Takes back an admission that came to nothing.
    pub(super) fn lower<L: LimitHandle>(&self, counter: &PlannedCharge<L>, cost: u64) {
        if let Some(deferred) = self.by_counter.lock().get_mut(&counter.name()) {
            deferred.admitted = deferred.admitted.saturating_sub(cost);
        }
    }

    /// Whether a counter owes anything.
    pub(super) fn is_deferred(&self, counter: &PlannedCharge) -> bool {
        !self.are_none() && self.by_counter.lock().contains_key(&counter.name())
    }

    /// Takes a counter's deferred charge out, to be paid.
    pub(super) fn take(&self, counter: &PlannedCharge) -> Option<DeferredCharge> {
        if self.are_none() {
            return None;
        }
        self.take_named(counter.name())
    }

    /// The same by the counter's name.
    pub(super) fn take_named(&self, name: u128) -> Option<DeferredCharge> {
        let mut deferred_charges = self.by_counter.lock();
        let deferred = deferred_charges.remove(&name);
        self.count.store(deferred_charges.len(), Ordering::Release);
        deferred
    }

    /// The names of some that can be paid. They are deferred until each is taken out.
    pub(super) fn some(
        &self,
        at_most: usize,
        payable: impl Fn(&DeferredCharge) -> bool,
    ) -> Vec<u128> {
        let deferred_charges = self.by_counter.lock();
        let names = deferred_charges
            .iter()
            .filter(|(_, deferred)| payable(deferred))
            .map(|(name, _)| *name);
        names.take(at_most).collect()
    }

    /// Puts one back that was not paid.
    pub(super) fn put_back(&self, deferred: DeferredCharge) {
        let counter = PlannedCharge::new(deferred.key, deferred.limit.clone());
        self.add(&counter, &deferred.share, deferred.admitted);
    }

    pub(super) fn are_none(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}

/// Some 30 MB: an outage in which more subjects are admitted has other worries.
const DEBTS_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;

    #[test]
    fn what_waits_for_its_turn_to_be_paid_is_owed_until_then() {
        let limit = NamedLimit::new(Limit::per_second(9), 0);
        let params = limit.params().unwrap();
        let counter = |id| {
            let key = SubjectKey { tag: id, id, rule: 0 };
            PlannedCharge { cost: 2, attributes: 1, ..PlannedCharge::new(key, limit.clone()) }
        };
        let (deferred_charges, one, other) = (DeferredCharges::default(), counter(7), counter(8));
        [&one, &other].iter().for_each(|counter| deferred_charges.add(counter, params, 2));
        let names = deferred_charges.some(9, |deferred| deferred.key.id == 7);
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
                && deferred_charges.take(&other).is_some()
        );
        assert!(deferred_charges.are_none());
    }
}
