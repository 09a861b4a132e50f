//! Fills one call with decisions, and joins equal ones into groups.
//!
//! Decisions form a group if they charge the same counters at the same costs, and no decision between them
//! touches any of these counters. The script evaluates a group as one decision with a count. The result is as
//! if the decisions had come directly one after another.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::load::{weight_of_counters, weight_of_one_more};
use crate::algorithm::Intent;
use crate::calls::program::COUNTERS_MAX;
use crate::counter::PlannedCharge;
use crate::plan::{RecordAction, Transaction};

/// The groups of one call, in order. `W` locates the first transaction of a group.
#[derive(Debug)]
pub(crate) struct Coalescer<W> {
    groups: Vec<Coalesced<W>>,
    /// For each counter, the group that touched it last.
    last: HashMap<u128, Touch, BuildHasherDefault<Already>>,
    counters: usize,
    /// The estimated time that the call occupies the server.
    weight_us: u64,
}

/// Equal decisions, usually one.
#[derive(Clone, Copy, Debug)]
pub struct Coalesced<W> {
    pub(crate) first: W,
    pub(crate) times: u32,
}

/// The index of a decision's group, and the decision's position in the group, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchIndex {
    pub(crate) coalesced: u32,
    pub(crate) position: u32,
}

#[derive(Clone, Copy, Debug)]
struct Touch {
    coalesced: u32,
    counter: u32,
}

impl<W: Copy> Coalescer<W> {
    /// Creates a coalescer with capacity for `count` decisions, at most as many as one call holds.
    pub fn for_some(count: usize) -> Coalescer<W> {
        let count = count.min(COUNTERS_MAX);
        let last = HashMap::with_capacity_and_hasher(count, BuildHasherDefault::default());
        Coalescer { groups: Vec::with_capacity(count), last, counters: 0, weight_us: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Coalesced<W>> {
        self.groups.iter()
    }

    /// Adds a transaction, to an existing group if possible. `find` locates the first transaction of a group.
    pub fn take_in<'d>(
        &mut self,
        transaction: &Transaction,
        first: W,
        find: impl Fn(W) -> &'d Transaction,
    ) -> BatchIndex {
        self.join(transaction, find).unwrap_or_else(|| self.add(transaction, first))
    }

    /// Adds a transaction, or returns `None` if this call has no room for it.
    pub fn take_in_if_fits<'d>(
        &mut self,
        transaction: &Transaction,
        first: W,
        find: impl Fn(W) -> &'d Transaction,
    ) -> Option<BatchIndex> {
        self.join(transaction, &find).or_else(|| {
            self.has_room_for(std::slice::from_ref(transaction), find)
                .then(|| self.add(transaction, first))
        })
    }

    /// Returns whether all of `transactions` fit this call, even if none joins a group.
    ///
    /// A call is bounded by its number of counters and its estimated time. The script loads each counter
    /// once, so a counter may appear under one set of parameters only. An empty call takes any single caller.
    pub fn has_room_for<'d>(
        &self,
        transactions: &[Transaction],
        find: impl Fn(W) -> &'d Transaction,
    ) -> bool {
        let counters: usize =
            transactions.iter().map(|transaction| transaction.charges.len()).sum();
        let weight_us: u64 = transactions
            .iter()
            .map(|transaction| weight_of_counters(transaction.charges.iter()))
            .sum();
        let clashes = |counter: &PlannedCharge| {
            self.last.get(&counter.name()).is_some_and(|touch| {
                let before = find(self.groups[touch.coalesced as usize].first);
                let before = before.charges.get(touch.counter as usize);
                before.is_none_or(|before| before.params() != counter.params())
            })
        };
        // An empty call takes anything, else a transaction above the bounds would never be sent.
        self.is_empty()
            || self.counters + counters <= COUNTERS_MAX
                && self.weight_us + weight_us <= CALL_US
                && !transactions.iter().any(|transaction| transaction.charges.iter().any(clashes))
    }

    fn join<'d>(
        &mut self,
        transaction: &Transaction,
        find: impl Fn(W) -> &'d Transaction,
    ) -> Option<BatchIndex> {
        // A decision may join only the newest group that uses its counters: joining an older one would put
        // it before decisions that came earlier.
        let number = self.last.get(&transaction.charges.first()?.name())?.coalesced;
        let touched_last = |counter: &PlannedCharge| {
            self.last.get(&counter.name()).is_some_and(|it| it.coalesced == number)
        };
        let group = &self.groups[number as usize];
        let joins = group.times < GROUP_MAX
            && transaction.charges.iter().all(touched_last)
            && are_alike(find(group.first), transaction);
        let weight_us = self.weight_us + weight_of_one_more(transaction.charges.iter());
        if !joins || weight_us > CALL_US {
            return None;
        }
        self.weight_us = weight_us;
        let position = group.times;
        self.groups[number as usize].times += 1;
        Some(BatchIndex { coalesced: number, position })
    }

    fn add(&mut self, transaction: &Transaction, first: W) -> BatchIndex {
        // Fits: a queue holds fewer than 2^32 callers.
        let coalesced = self.groups.len() as u32;
        for (counter, number) in transaction.charges.iter().zip(0..) {
            // Replaces the older group that touched the counter, which from now on takes no further decision.
            self.last.insert(counter.name(), Touch { coalesced, counter: number });
        }
        self.counters += transaction.charges.len();
        self.weight_us += weight_of_counters(transaction.charges.iter());
        self.groups.push(Coalesced { first, times: 1 });
        BatchIndex { coalesced, position: 0 }
    }
}

/// Groups the transactions of one caller, as many from the start as fit one call, at least one.
///
/// Returns the groups, and for each transaction taken its group and position.
pub(crate) fn together(transactions: &[Transaction]) -> (Coalescer<usize>, Vec<BatchIndex>) {
    let mut groups = Coalescer::for_some(transactions.len());
    let taken = transactions.iter().enumerate();
    let indices = taken.map_while(|(number, transaction)| {
        groups.take_in_if_fits(transaction, number, |first| &transactions[first])
    });
    let indices = indices.collect();
    (groups, indices)
}

/// Returns whether equal transactions may form a group. Permits and receipts have an id each, so those may not.
fn may_be_several(transaction: &Transaction) -> bool {
    !does_more(transaction)
        && !matches!(transaction.intent, Intent::Reserve { .. })
        && transaction.charges.iter().all(|counter| !counter.limit.algorithm().counts_permits())
}

fn are_alike(one: &Transaction, other: &Transaction) -> bool {
    let same = |(one, other): (&PlannedCharge, &PlannedCharge)| {
        (one.key, one.cost, one.group) == (other.key, other.cost, other.group)
            && one.limit.mix() == other.limit.mix()
            && one.params() == other.params()
    };
    may_be_several(one)
        && may_be_several(other)
        && one.intent == other.intent
        && one.charges.len() == other.charges.len()
        && one.charges.iter().zip(other.charges.iter()).all(same)
}

/// Returns whether a transaction does more than decide: it pays a deferred charge, or opens or ends a reservation.
fn does_more(transaction: &Transaction) -> bool {
    !matches!(transaction.record, RecordAction::None)
        || transaction.charges.iter().any(|counter| counter.deferred > 0)
}

/// A hasher for keys that are hashes already.
#[derive(Debug, Default)]
struct Already(u64);

impl Hasher for Already {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64 ^ (hash >> 64) as u64;
    }
}

/// The most time that one call may occupy the server: other clients, and the next heartbeat, wait that long.
const CALL_US: u64 = 5_000;
/// The most decisions in a group, as many as a queue holds. Their total cost stays exact in a Lua number.
const GROUP_MAX: u32 = 16_384;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Limit, NamedLimit};
    use crate::subject::SubjectKey;

    fn ask(costs: &[(u128, &NamedLimit, u64)]) -> Transaction {
        let counter = |(id, limit, cost): &(u128, &NamedLimit, u64)| PlannedCharge {
            cost: *cost,
            attributes: 1,
            ..PlannedCharge::new(SubjectKey { tag: *id, id: *id, rule: 0 }, (*limit).clone())
        };
        Transaction {
            intent: Intent::Charge,
            record: RecordAction::None,
            charges: costs.iter().map(counter).collect(),
        }
    }

    fn limit(count: u64) -> NamedLimit {
        NamedLimit::new(Limit::per_second(count), 0)
    }

    /// Returns the members of each group.
    fn groups_of(transactions: &[Transaction]) -> Vec<Vec<usize>> {
        let (groups, indices) = together(transactions);
        let mut members = vec![Vec::new(); groups.iter().count()];
        for (number, index) in indices.iter().enumerate() {
            assert_eq!(members[index.coalesced as usize].len(), index.position as usize);
            members[index.coalesced as usize].push(number);
        }
        for (group, members) in groups.iter().zip(&members) {
            assert_eq!((group.first, group.times as usize), (members[0], members.len()));
        }
        members
    }

    #[test]
    fn equal_decisions_form_one_group_across_unrelated_ones() {
        let ten = limit(10);
        let (one, other) = (ask(&[(1, &ten, 1)]), ask(&[(2, &ten, 1)]));
        let transactions = [&one, &other, &one, &one, &other].map(Transaction::clone);
        assert_eq!(groups_of(&transactions), [vec![0, 2, 3], vec![1, 4]]);
    }

    #[test]
    fn another_cost_of_the_same_counter_starts_a_new_group() {
        let ten = limit(10);
        let (one, dear) = (ask(&[(1, &ten, 1)]), ask(&[(1, &ten, 2)]));
        let transactions = [&one, &one, &dear, &one, &one].map(Transaction::clone);
        assert_eq!(groups_of(&transactions), [vec![0, 1], vec![2], vec![3, 4]]);
    }

    /// `one` touches one of the two counters of `both`, so later decisions over both start a new group.
    #[test]
    fn a_decision_over_one_shared_counter_starts_a_new_group() {
        let ten = limit(10);
        let (both, one) = (ask(&[(1, &ten, 1), (2, &ten, 1)]), ask(&[(2, &ten, 1)]));
        let transactions = [&both, &one, &both, &both, &one].map(Transaction::clone);
        assert_eq!(groups_of(&transactions), [vec![0], vec![1], vec![2, 3], vec![4]]);
    }

    #[test]
    fn permits_receipts_and_deferred_charges_form_no_groups() {
        let ten = limit(10);
        let slots = NamedLimit::new(Limit::concurrent(5, std::time::Duration::from_secs(1)), 0);
        let plain = ask(&[(1, &ten, 1)]);
        let slot = ask(&[(2, &slots, 1)]);
        let reserved = Transaction { intent: Intent::Reserve { nonce: 7 }, ..ask(&[(3, &ten, 1)]) };
        let mut deferring = ask(&[(1, &ten, 1)]);
        deferring.charges[0].deferred = 1;
        let transactions = [&plain, &slot, &slot, &reserved, &reserved, &deferring, &plain]
            .map(Transaction::clone);
        assert_eq!(groups_of(&transactions), (0..7).map(|one| vec![one]).collect::<Vec<_>>());
    }

    #[test]
    fn a_call_ends_at_its_counter_cap_or_at_other_parameters() {
        let (ten, nine) = (limit(10), limit(9));
        let many: Vec<Transaction> = (0..200).map(|id| ask(&[(id, &ten, 1)])).collect();
        assert_eq!(groups_of(&many).len(), COUNTERS_MAX);
        let group = vec![ask(&[(1, &ten, 1)]); 1_000];
        assert_eq!(groups_of(&group).len(), 1);
        let changed = [ask(&[(1, &ten, 1)]), ask(&[(2, &ten, 1)]), ask(&[(1, &nine, 1)])];
        assert_eq!(groups_of(&changed).len(), 2);
        let wide: Vec<(u128, &NamedLimit, u64)> = (0..130).map(|id| (id, &ten, 1)).collect();
        assert_eq!(groups_of(&[ask(&wide), ask(&[(500, &ten, 1)])]), [vec![0]]);
    }
}
