//! Who leaves together in one call, and which of them as one: decisions over the same tiers at the same
//! costs, with none between them that touches any of those tiers, are asked once for all. Nothing else
//! can tell them from decisions that came one directly after the other.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::algorithm::Intent;
use crate::engine::{Ask, AskTier, AtRecord};
use crate::limit::Algorithm;

use super::super::program::TIERS_MAX;
use super::load::{weight_of_one_more, weight_of_tiers};

/// The decisions of one call, in order; each crowd by `W`, where its first decision is found.
#[derive(Debug)]
pub(in super::super) struct Crowds<W> {
    crowds: Vec<Crowd<W>>,
    /// The crowd that touched a tier last.
    last: HashMap<u128, Touch, BuildHasherDefault<Already>>,
    tiers: usize,
    /// How long all of it holds the server.
    weight_us: u64,
}

/// Decisions that are alike; mostly it is one.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Crowd<W> {
    pub(in super::super) first: W,
    pub(in super::super) times: u32,
    tiers: usize,
    may_grow: bool,
}

/// Which of a crowd a decision is, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Spot {
    pub(in super::super) crowd: u32,
    pub(in super::super) place: u32,
}

#[derive(Clone, Copy, Debug)]
struct Touch {
    crowd: u32,
    tier: u32,
}

impl<W: Copy> Crowds<W> {
    pub(in super::super) fn new() -> Crowds<W> {
        Crowds { crowds: Vec::new(), last: HashMap::default(), tiers: 0, weight_us: 0 }
    }

    /// With room for so many decisions, as far as one call takes them.
    pub(in super::super) fn for_some(count: usize) -> Crowds<W> {
        let count = count.min(TIERS_MAX);
        let last = HashMap::with_capacity_and_hasher(count, BuildHasherDefault::default());
        Crowds { crowds: Vec::with_capacity(count), last, tiers: 0, weight_us: 0 }
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        self.crowds.is_empty()
    }

    pub(in super::super) fn iter(&self) -> impl Iterator<Item = &Crowd<W>> {
        self.crowds.iter()
    }

    /// Takes a decision in, which `first` finds again: into a crowd if it can be, else by itself.
    pub(in super::super) fn take_in<'d>(
        &mut self,
        ask: &Ask,
        first: W,
        find: impl Fn(W) -> &'d Ask,
    ) -> Spot {
        self.join(ask, find).unwrap_or_else(|| self.add(ask, first))
    }

    /// The same, unless there is no room for it in this call.
    pub(in super::super) fn take_in_if_fits<'d>(
        &mut self,
        ask: &Ask,
        first: W,
        find: impl Fn(W) -> &'d Ask,
    ) -> Option<Spot> {
        self.join(ask, &find).or_else(|| {
            self.has_room_for(std::slice::from_ref(ask), find).then(|| self.add(ask, first))
        })
    }

    /// Whether all of `asks` go into this call, whether they join others or not: the script takes so many
    /// tiers, for so long, and each under one set of numbers, for it loads each once. Into an empty call goes
    /// whatever one caller asks for.
    pub(in super::super) fn has_room_for<'d>(
        &self,
        asks: &[Ask],
        find: impl Fn(W) -> &'d Ask,
    ) -> bool {
        let tiers: usize = asks.iter().map(|ask| ask.tiers.len()).sum();
        let weight_us: u64 = asks.iter().map(|ask| weight_of_tiers(ask.tiers.iter())).sum();
        let clashes = |tier: &AskTier| {
            self.last.get(&tier.name()).is_some_and(|touch| {
                let before = find(self.crowds[touch.crowd as usize].first);
                let before = before.tiers.get(touch.tier as usize);
                before.is_none_or(|before| before.numbers() != tier.numbers())
            })
        };
        self.is_empty()
            || self.tiers + tiers <= TIERS_MAX
                && self.weight_us + weight_us <= CALL_US
                && !asks.iter().any(|ask| ask.tiers.iter().any(clashes))
    }

    fn join<'d>(&mut self, ask: &Ask, find: impl Fn(W) -> &'d Ask) -> Option<Spot> {
        let number = self.last.get(&ask.tiers.iter().next()?.name())?.crowd;
        let touched_last =
            |tier: &AskTier| self.last.get(&tier.name()).is_some_and(|it| it.crowd == number);
        let crowd = &self.crowds[number as usize];
        let joins = crowd.may_grow
            && crowd.times < CROWD_MAX
            && self.weight_us + weight_of_one_more(ask.tiers.iter()) <= CALL_US
            && crowd.tiers == ask.tiers.len()
            && ask.tiers.iter().all(touched_last)
            && are_alike(find(crowd.first), ask);
        if !joins {
            return None;
        }
        self.weight_us += weight_of_one_more(ask.tiers.iter());
        let place = crowd.times;
        self.crowds[number as usize].times += 1;
        Some(Spot { crowd: number, place })
    }

    fn add(&mut self, ask: &Ask, first: W) -> Spot {
        // No more than a queue holds.
        let crowd = self.crowds.len() as u32;
        let mut tiers = 0;
        for (tier, number) in ask.tiers.iter().zip(0..) {
            self.last.insert(tier.name(), Touch { crowd, tier: number });
            tiers += 1;
        }
        self.tiers += tiers;
        self.weight_us += weight_of_tiers(ask.tiers.iter());
        self.crowds.push(Crowd { first, times: 1, tiers, may_grow: may_be_several(ask) });
        Spot { crowd, place: 0 }
    }
}

/// Of decisions that one caller asks for together: how many of them, at least one, go into one call, and
/// as which crowds.
pub(in super::super) fn together(asks: &[Ask]) -> (Crowds<usize>, Vec<Spot>) {
    let mut crowds = Crowds::new();
    let taken = asks.iter().enumerate();
    let spots =
        taken.map_while(|(number, ask)| crowds.take_in_if_fits(ask, number, |first| &asks[first]));
    let spots = spots.collect();
    (crowds, spots)
}

/// A slot has a name of its own, and so has a receipt.
fn may_be_several(ask: &Ask) -> bool {
    !does_more(ask)
        && !matches!(ask.intent, Intent::Reserve { .. })
        && ask.tiers.iter().all(|tier| tier.limit.algorithm() != Algorithm::Concurrency)
}

fn are_alike(one: &Ask, other: &Ask) -> bool {
    let same = |(one, other): (&AskTier, &AskTier)| {
        (one.key, one.cost, one.group) == (other.key, other.cost, other.group)
            && one.limit.mix() == other.limit.mix()
            && one.numbers() == other.numbers()
    };
    may_be_several(other)
        && one.intent == other.intent
        && one.tiers.iter().zip(other.tiers.iter()).all(same)
}

/// Whether it does more than decide: pays what is owed, or opens or ends a reservation.
fn does_more(ask: &Ask) -> bool {
    !matches!(ask.record, AtRecord::None) || ask.tiers.iter().any(|tier| tier.owed > 0)
}

/// What is hashed already is its own hash.
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

/// No call holds a server for much longer: other clients of it wait that long, and so does its next sign of life.
const CALL_US: u64 = 5_000;
/// As many as can wait for a server; what they cost together stays exact in Lua.
const CROWD_MAX: u32 = 16_384;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Limit, NamedLimit};
    use crate::subject::SubjectKey;

    fn ask(costs: &[(u128, &NamedLimit, u64)]) -> Ask {
        let tier = |(id, limit, cost): &(u128, &NamedLimit, u64)| AskTier {
            cost: *cost,
            attributes: 1,
            ..AskTier::new(SubjectKey { tag: *id, id: *id, rule: 0 }, (*limit).clone())
        };
        Ask {
            intent: Intent::Charge,
            record: AtRecord::None,
            tiers: costs.iter().map(tier).collect(),
        }
    }

    fn limit(count: u64) -> NamedLimit {
        NamedLimit::new(Limit::per_second(count), 0)
    }

    /// By crowd, which decisions are in it.
    fn crowds_of(asks: &[Ask]) -> Vec<Vec<usize>> {
        let (crowds, spots) = together(asks);
        let mut members = vec![Vec::new(); crowds.iter().count()];
        for (number, spot) in spots.iter().enumerate() {
            assert_eq!(members[spot.crowd as usize].len(), spot.place as usize);
            members[spot.crowd as usize].push(number);
        }
        for (crowd, members) in crowds.iter().zip(&members) {
            assert_eq!((crowd.first, crowd.times as usize), (members[0], members.len()));
        }
        members
    }

    #[test]
    fn decisions_alike_are_one_crowd_whoever_else_comes_between() {
        let ten = limit(10);
        let (one, other) = (ask(&[(1, &ten, 1)]), ask(&[(2, &ten, 1)]));
        let asks = [&one, &other, &one, &one, &other].map(Ask::clone);
        assert_eq!(crowds_of(&asks), [vec![0, 2, 3], vec![1, 4]]);
    }

    #[test]
    fn another_cost_of_the_same_tier_parts_a_crowd() {
        let ten = limit(10);
        let (one, dear) = (ask(&[(1, &ten, 1)]), ask(&[(1, &ten, 2)]));
        let asks = [&one, &one, &dear, &one, &one].map(Ask::clone);
        assert_eq!(crowds_of(&asks), [vec![0, 1], vec![2], vec![3, 4]]);
    }

    /// The second touches one of two tiers: whoever asks for both comes after it.
    #[test]
    fn whoever_touches_one_of_its_tiers_parts_a_crowd() {
        let ten = limit(10);
        let (both, one) = (ask(&[(1, &ten, 1), (2, &ten, 1)]), ask(&[(2, &ten, 1)]));
        let asks = [&both, &one, &both, &both, &one].map(Ask::clone);
        assert_eq!(crowds_of(&asks), [vec![0], vec![1], vec![2, 3], vec![4]]);
    }

    #[test]
    fn slots_receipts_and_debts_are_asked_for_one_by_one() {
        let ten = limit(10);
        let slots = NamedLimit::new(Limit::concurrent(5, std::time::Duration::from_secs(1)), 0);
        let plain = ask(&[(1, &ten, 1)]);
        let slot = ask(&[(2, &slots, 1)]);
        let reserved = Ask { intent: Intent::Reserve { nonce: 7 }, ..ask(&[(3, &ten, 1)]) };
        let mut owing = ask(&[(1, &ten, 1)]);
        owing.tiers[0].owed = 1;
        let asks = [&plain, &slot, &slot, &reserved, &reserved, &owing, &plain].map(Ask::clone);
        assert_eq!(crowds_of(&asks), (0..7).map(|one| vec![one]).collect::<Vec<_>>());
    }

    #[test]
    fn a_call_ends_where_its_tiers_do_or_where_numbers_change() {
        let (ten, nine) = (limit(10), limit(9));
        let many: Vec<Ask> = (0..200).map(|id| ask(&[(id, &ten, 1)])).collect();
        assert_eq!(crowds_of(&many).len(), TIERS_MAX);
        let crowd = vec![ask(&[(1, &ten, 1)]); 1_000];
        assert_eq!(crowds_of(&crowd).len(), 1);
        let changed = [ask(&[(1, &ten, 1)]), ask(&[(2, &ten, 1)]), ask(&[(1, &nine, 1)])];
        assert_eq!(crowds_of(&changed).len(), 2);
        let wide: Vec<(u128, &NamedLimit, u64)> = (0..130).map(|id| (id, &ten, 1)).collect();
        assert_eq!(crowds_of(&[ask(&wide), ask(&[(500, &ten, 1)])]), [vec![0]]);
    }
}
