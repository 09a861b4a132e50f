//! What was admitted alone and not yet charged to the store. Each debt is taken out before it is
//! sent, so that no two calls pay it, and put back if the store surely did not execute.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::algorithm::Numbers;
use crate::counter::{AskTier, HoldsLimit};
use crate::limit::NamedLimit;
use crate::subject::SubjectKey;

/// Debts by tier, so many at most.
#[derive(Debug, Default)]
pub(super) struct Debts {
    by_tier: Mutex<BTreeMap<u128, Debt>>,
    /// Most calls find that there are none, without a lock.
    count: AtomicUsize,
}

/// One tier's debt.
#[derive(Clone, Debug)]
pub(super) struct Debt {
    pub(super) key: SubjectKey,
    pub(super) limit: NamedLimit,
    /// This process's share of it, by which it was admitted.
    pub(super) share: Numbers,
    /// All that was admitted since the last payment.
    pub(super) admitted: u64,
}

impl Debts {
    /// Notes an admission. Beyond the bound it is forgotten: the limit was enforced all the same.
    pub(super) fn add(&self, tier: &AskTier, share: &Numbers, cost: u64) {
        let mut debts = self.by_tier.lock();
        let full = debts.len() >= DEBTS_MAX;
        match debts.get_mut(&tier.name()) {
            Some(debt) => debt.admitted = debt.admitted.saturating_add(cost),
            None if full => {}
            None => {
                let (limit, share) = (tier.limit.clone(), share.clone());
                let debt = Debt { key: tier.key, limit, share, admitted: cost };
                debts.insert(tier.name(), debt);
            }
        }
        self.count.store(debts.len(), Ordering::Release);
    }

    /// Takes back an admission that came to nothing.
    pub(super) fn lower<L: HoldsLimit>(&self, tier: &AskTier<L>, cost: u64) {
        if let Some(debt) = self.by_tier.lock().get_mut(&tier.name()) {
            debt.admitted = debt.admitted.saturating_sub(cost);
        }
    }

    /// Whether a tier owes anything.
    pub(super) fn is_owed(&self, tier: &AskTier) -> bool {
        !self.are_none() && self.by_tier.lock().contains_key(&tier.name())
    }

    /// Takes a tier's debt out, to be paid.
    pub(super) fn take(&self, tier: &AskTier) -> Option<Debt> {
        if self.are_none() {
            return None;
        }
        self.take_named(tier.name())
    }

    /// The same by the tier's name.
    pub(super) fn take_named(&self, name: u128) -> Option<Debt> {
        let mut debts = self.by_tier.lock();
        let debt = debts.remove(&name);
        self.count.store(debts.len(), Ordering::Release);
        debt
    }

    /// The names of some that can be paid. They are owed until each is taken out.
    pub(super) fn some(&self, at_most: usize, payable: impl Fn(&Debt) -> bool) -> Vec<u128> {
        let debts = self.by_tier.lock();
        let names = debts.iter().filter(|(_, debt)| payable(debt)).map(|(name, _)| *name);
        names.take(at_most).collect()
    }

    /// Puts one back that was not paid.
    pub(super) fn put_back(&self, debt: Debt) {
        let tier = AskTier::new(debt.key, debt.limit.clone());
        self.add(&tier, &debt.share, debt.admitted);
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
        let numbers = limit.numbers().unwrap();
        let tier = |id| {
            let key = SubjectKey { tag: id, id, rule: 0 };
            AskTier { cost: 2, attributes: 1, ..AskTier::new(key, limit.clone()) }
        };
        let (debts, one, other) = (Debts::default(), tier(7), tier(8));
        [&one, &other].iter().for_each(|tier| debts.add(tier, numbers, 2));
        let names = debts.some(9, |debt| debt.key.id == 7);
        assert_eq!((names.len(), debts.is_owed(&one), debts.is_owed(&other)), (1, true, true));
        assert_eq!(debts.take_named(names[0]).unwrap().admitted, 2);
        assert_eq!((debts.is_owed(&one), debts.is_owed(&other)), (false, true));
        assert!(debts.take_named(names[0]).is_none() && debts.take(&other).is_some());
        assert!(debts.are_none());
    }
}
