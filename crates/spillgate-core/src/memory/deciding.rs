//! A decision in memory: one loop for all limits, algorithms and results.

use std::sync::atomic::Ordering;

use super::shard::{Name, Place};
use super::slot::{Decided, Slot};
use super::{Locked, Memory, shard_of};
use crate::algorithm::Intent;
use crate::counter::{COUNTERS_INLINE, ChargeReply, LimitHandle, PlannedCharge};

/// A decision under way: all shards of its counters are locked, and its time stands.
pub struct Deciding<'l, 'm, L> {
    pub memory: &'m Memory,
    pub locked: &'l mut Locked<'m>,
    /// The charges, sorted by group, enforced ones first. No counter of theirs is evicted.
    pub charges: &'l [PlannedCharge<L>],
    pub intent: Intent,
    pub now_us: u64,
    /// Whether enforced charges need counters of their own. If there is no room for one, the decision becomes a peek, and
    /// `Memory::open` denies the reservation.
    pub needs_own: bool,
}

/// A counter at the time of the decision. Nothing is written yet.
#[derive(Default)]
struct Found {
    place: Place,
    /// What the group charges the same counter before, which only happens to an overflow counter.
    before: u64,
    /// Whether the state fits a slot, before and after the decision, so that `decided` is all that there is to do. If not,
    /// only `decided.fits` is known.
    is_small: bool,
    decided: Decided,
}

impl<'l, L: LimitHandle> Deciding<'l, '_, L> {
    /// Decides, and passes each charge with its reply to `answer`, in order. Returns whether every enforced counter had
    /// room.
    #[inline(always)]
    pub fn decide(&mut self, mut answer: impl FnMut(&PlannedCharge<L>, ChargeReply)) -> bool {
        let mut allowed = true;
        for group in self.charges.chunk_by(|one, next| one.group == next.group) {
            if !self.decide_group(group, &mut answer) && group[0].group == 0 {
                allowed = false;
                // The other groups still run, so that they have a reading.
                self.intent = Intent::Peek;
            }
        }
        allowed
    }

    /// Charges all counters of a group, or none.
    #[inline(always)]
    fn decide_group(
        &mut self,
        group: &'l [PlannedCharge<L>],
        answer: &mut impl FnMut(&PlannedCharge<L>, ChargeReply),
    ) -> bool {
        if let [asked] = group {
            let mut one = Found::default();
            self.look(asked, &mut one, group, &[]);
            let fits = one.decided.fits;
            answer(asked, self.finish(asked, &mut one, fits));
            return fits;
        }
        let (mut few, mut many) = (<[Found; COUNTERS_INLINE]>::default(), Vec::new());
        if group.len() > few.len() {
            many.resize_with(group.len(), Found::default);
        }
        let found = if many.is_empty() { &mut few[..group.len()] } else { &mut many[..] };
        let mut fits = true;
        for (place, asked) in group.iter().enumerate() {
            let (earlier, later) = found.split_at_mut(place);
            self.look(asked, &mut later[0], group, earlier);
            fits &= later[0].decided.fits;
        }
        for (asked, one) in group.iter().zip(found) {
            answer(asked, self.finish(asked, one, fits));
        }
        fits
    }

    /// Finds a counter, and computes it as it is after a charge, if the decision charges and it has room.
    #[inline(always)]
    fn look(
        &mut self,
        asked: &PlannedCharge<L>,
        one: &mut Found,
        group: &[PlannedCharge<L>],
        earlier: &[Found],
    ) {
        let (params, cost, now_us) = (asked.params(), asked.cost, self.now_us);
        let name = self.memory.name(asked.key.id, asked.limit());
        let mut slot;
        (one.place, slot) = self.locked.shard(asked.key).find(name);
        // Only what is charged is added, so only that needs room.
        if slot.is_none() && cost > 0 {
            slot = self.make_room(asked, one, group, earlier);
        }
        let charges = self.intent == Intent::Charge;
        // A receipt needs more than a slot holds, and a second charge of one counter the state after the first.
        one.is_small = !matches!(self.intent, Intent::Reserve { .. })
            && one.before == 0
            && Slot::decide(slot.as_ref(), params, cost, charges, now_us, &mut one.decided)
                .is_some();
        if !one.is_small {
            let view = self.locked.shard(asked.key).view(one.place.name, params, now_us);
            one.decided.fits = view.has_room((one.before + cost).max(1));
        }
    }

    /// Makes room for a counter that is not stored yet, beside those that the group adds before it. Without room a
    /// reservation becomes a peek, since its end would not find its charge elsewhere. All others get the place of the
    /// counter that subjects of the limit share that found no room, and what the group charges it before. Returns its slot.
    #[inline(never)]
    fn make_room(
        &mut self,
        asked: &PlannedCharge<L>,
        one: &mut Found,
        group: &[PlannedCharge<L>],
        earlier: &[Found],
    ) -> Option<Slot> {
        let (number, is_peek) = (shard_of(asked.key), self.intent == Intent::Peek);
        if !is_peek && self.locked.shard(asked.key).is_over() {
            self.evict(asked);
        }
        let beside =
            || group.iter().zip(earlier).filter(|(other, _)| shard_of(other.key) == number);
        let new = beside().filter(|(other, one)| !one.place.is_known() && other.cost > 0);
        let (memory, charges) = (self.memory, self.charges);
        let shard = self.locked.shard(asked.key);
        let keeps = |name| memory.is_of(name, number, charges);
        if shard.has_room(new.count() + 1, self.now_us, keeps) {
            return None;
        }
        if self.needs_own && asked.group == 0 {
            self.intent = Intent::Peek;
            return None;
        }
        memory.overflowed.fetch_add(u64::from(!is_peek), Ordering::Relaxed);
        let slot;
        (one.place, slot) = shard.find(memory.overflow_name(asked));
        let before = beside().filter(|(_, other)| other.place.name == one.place.name);
        one.before = before.map(|(other, _)| other.cost).sum();
        slot
    }

    /// Charges a counter if its whole group fits and the decision charges, then takes the reading.
    #[inline(always)]
    fn finish(
        &mut self,
        asked: &PlannedCharge<L>,
        one: &mut Found,
        group_fits: bool,
    ) -> ChargeReply {
        if !one.is_small {
            return self.finish_large(asked, one, group_fits);
        }
        let Found { place, decided, .. } = one;
        let (fits, charges) = (decided.fits, self.intent == Intent::Charge);
        if decided.is_changed {
            let shard = self.locked.shard(asked.key);
            if fits && !group_fits {
                // Another counter has no room: its numbers are those without a charge.
                let (params, cost, slot) = (asked.params(), asked.cost, shard.find(place.name).1);
                Slot::decide(slot.as_ref(), params, cost, false, self.now_us, decided);
            }
            if decided.is_changed && charges {
                shard.write(place, &decided.after);
                if !place.is_known() && shard.is_over() {
                    self.evict(asked);
                }
            }
        }
        ChargeReply { fits, reading: decided.reading, charge: None }
    }

    /// Finishes a counter by its whole state, which is found again, since the group may have charged it before.
    #[inline(never)]
    fn finish_large(
        &mut self,
        asked: &PlannedCharge<L>,
        one: &Found,
        group_fits: bool,
    ) -> ChargeReply {
        let (params, cost, now_us, intent) = (asked.params(), asked.cost, self.now_us, self.intent);
        let fits = one.decided.fits;
        let may_charge = intent != Intent::Peek && cost > 0;
        let tested = if group_fits { cost } else { one.before + cost };
        let shard = self.locked.shard(asked.key);
        let (charged, mut reading) =
            shard.change(one.place.name, params, tested, now_us, |view, state| {
                if may_charge && group_fits {
                    return Some(view.charge(state, cost, intent, now_us));
                }
                // A denial stores nothing but a re-base.
                (may_charge && view.rebased()).then(|| {
                    view.save(state);
                    None
                })
            });
        if fits {
            // The charge may have used up the room, but an allowed request need not wait.
            reading.retry_after_us = Some(0);
        }
        // A log grows, and may take the room of other counters.
        if charged.is_some() && group_fits && shard.is_over() {
            self.evict(asked);
        }
        ChargeReply { fits, reading, charge: charged.flatten() }
    }

    /// Evicts counters from a shard that holds more than it may, but none of this decision.
    #[cold]
    fn evict(&mut self, asked: &PlannedCharge<L>) {
        let (memory, number, charges) = (self.memory, shard_of(asked.key), self.charges);
        let keeps = |name| memory.is_of(name, number, charges);
        self.locked.shard(asked.key).evict(self.now_us, keeps, &memory.evicted);
    }
}

impl Memory {
    /// Returns whether a name in a shard is that of a charge's counter, or of its overflow counter.
    fn is_of<L: LimitHandle>(&self, name: Name, shard: usize, all: &[PlannedCharge<L>]) -> bool {
        let own = |one: &PlannedCharge<L>| self.name(one.key.id, one.limit()) == name;
        let mut of_shard = all.iter().filter(|one| shard_of(one.key) == shard);
        of_shard.any(|one| own(one) || self.overflow_name(one) == name)
    }
}

#[cfg(test)]
mod tests {
    use std::array::from_fn;
    use std::time::Duration;

    use super::*;
    use crate::algorithm::Refund;
    use crate::counter::Change;
    use crate::limit::{Limit, LimitSpec, NamedLimit};
    use crate::memory::SHARDS;
    use crate::subject::SubjectKey;
    use crate::time::Clock;

    const NOW_US: u64 = 1_795_000_000_000_000;
    const DAY_US: u64 = 86_400_000_000;

    /// Room for `each` counters in each shard. No time passes.
    fn memory(each: usize) -> Memory {
        Memory::new(each * SHARDS, Clock::given(NOW_US))
    }

    /// A charge of a counter in a shard. Its id is spread over all bits, as the ids of real subjects are.
    fn charge(shard: u128, subject: u128, limit: &NamedLimit, cost: u64) -> PlannedCharge {
        let id = shard << 64 | u128::from((subject as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let key = SubjectKey { tag: id, id, rule: 0 };
        PlannedCharge { cost, ..PlannedCharge::new(key, limit.clone()) }
    }

    fn named(burst: u64, position: usize) -> NamedLimit {
        NamedLimit::new(Limit::per_day(1).burst(burst), position)
    }

    fn log(quota: &str) -> NamedLimit {
        NamedLimit::new(LimitSpec::new(quota).algorithm("sliding-log").build().unwrap(), 0)
    }

    fn decide(memory: &Memory, charges: &[PlannedCharge], intent: Intent) -> (bool, Vec<u64>) {
        let mut remaining = Vec::new();
        let answer = |_: &_, reply: ChargeReply| remaining.push(reply.reading.remaining);
        let mut locked = memory.lock(charges);
        (memory.deciding(&mut locked, charges, intent).decide(answer), remaining)
    }

    #[test]
    fn peeks_denials_and_failed_groups_add_and_evict_nothing() {
        let memory = memory(2);
        let [few, many] = [named(1, 0), named(9, 1)];
        assert_eq!(decide(&memory, &[charge(0, 1, &many, 1)], Intent::Peek), (true, vec![9]));
        assert_eq!(decide(&memory, &[charge(0, 1, &many, 0)], Intent::Charge), (true, vec![9]));
        assert_eq!(memory.len(), 0);
        for subject in [1, 2] {
            assert!(decide(&memory, &[charge(0, subject, &few, 1)], Intent::Charge).0);
        }
        let denied = [charge(0, 1, &few, 1), charge(0, 3, &many, 2)];
        assert_eq!(decide(&memory, &denied, Intent::Charge), (false, vec![0, 9]));
        let shadow = |group, charge| PlannedCharge { group, ..charge };
        let failed = [
            charge(0, 4, &many, 0),
            shadow(1, charge(0, 5, &many, 3)),
            shadow(1, charge(0, 2, &few, 1)),
        ];
        assert_eq!(decide(&memory, &failed, Intent::Charge), (true, vec![9, 9, 0]));
        assert_eq!((memory.len(), memory.evictions().live), (2, 0));
    }

    #[test]
    fn a_decision_evicts_none_of_its_own_counters() {
        let memory = memory(4);
        let limits: [NamedLimit; 5] = from_fn(|position| named(9, position));
        let charges = |count: usize| -> Vec<_> {
            limits[..count].iter().map(|limit| charge(0, 1, limit, 1)).collect()
        };
        // Two of its own are stored, and two of others.
        assert_eq!(decide(&memory, &charges(2), Intent::Charge), (true, vec![8; 2]));
        for subject in [2, 3] {
            assert!(decide(&memory, &[charge(0, subject, &limits[0], 8)], Intent::Charge).0);
        }
        assert_eq!(decide(&memory, &charges(4), Intent::Charge), (true, vec![7, 7, 8, 8]));
        assert_eq!((memory.len(), memory.evictions().live), (4, 2));
        // The fifth finds no room but theirs, so it shares the overflow counter of its limit.
        assert_eq!(decide(&memory, &charges(5), Intent::Charge), (true, vec![6, 6, 7, 7, 8]));
        let evictions = memory.evictions();
        assert_eq!((evictions.live, evictions.overflowed), (2, 1));
    }

    /// The table grows for the first counter and moves the second.
    #[test]
    fn a_counter_that_moves_in_the_middle_of_a_decision_is_found_again() {
        let memory = memory(100);
        let log = log("5/hour");
        let bucket = named(9, 1);
        assert!(decide(&memory, &[charge(0, 5, &log, 4)], Intent::Charge).0);
        for subject in 0..40 {
            if subject != 5 {
                assert!(decide(&memory, &[charge(0, subject, &bucket, 1)], Intent::Charge).0);
            }
            let both = [charge(0, 100 + subject, &bucket, 1), charge(0, 5, &log, 0)];
            assert_eq!(decide(&memory, &both, Intent::Charge), (true, vec![8, 1]), "{subject}");
        }
        let both = [charge(0, 5, &bucket, 1), charge(0, 5, &log, 1)];
        assert_eq!(decide(&memory, &both, Intent::Charge), (true, vec![8, 0]));
        assert_eq!(decide(&memory, &both, Intent::Charge), (false, vec![8, 0]));
    }

    /// A full shard whose counter is exhausted, so that nothing can go.
    #[test]
    fn new_subjects_without_room_share_one_counter_in_a_decision_too() {
        let memory = memory(1);
        let [few, many] = [named(1, 0), named(9, 1)];
        assert!(decide(&memory, &[charge(0, 1, &few, 1)], Intent::Charge).0);
        let pair = |cost| [charge(0, 2, &many, cost), charge(0, 3, &many, cost)];
        assert_eq!(decide(&memory, &pair(5), Intent::Charge), (false, vec![9, 9]));
        assert_eq!(decide(&memory, &pair(4), Intent::Charge), (true, vec![5, 1]));
        assert_eq!(decide(&memory, &pair(1), Intent::Charge), (false, vec![1, 1]));
        // A peek sees what a charge would meet.
        assert_eq!(decide(&memory, &[charge(0, 4, &many, 2)], Intent::Peek), (false, vec![1]));
        assert_eq!(memory.evictions().live, 0);
    }

    /// All of them would be exhausted, and none evicted.
    #[test]
    fn limits_of_many_periods_and_forced_charges_add_no_counters_beyond_the_room() {
        let memory = memory(1);
        let few = named(1, 0);
        assert!(decide(&memory, &[charge(0, 1, &few, 1)], Intent::Charge).0);
        for number in 1..=100 {
            let period = Duration::from_secs(86_400 + number);
            let brought = NamedLimit::beside(&few, Limit::per(1, period));
            decide(&memory, &[charge(0, 2, &brought, 1)], Intent::Charge);
            memory.change(&charge(0, 3 + u128::from(number), &few, 0), Change::Force(1));
        }
        assert!(memory.len() <= 3, "{}", memory.len());
        // What is not stored has nothing to refund.
        memory.change(&charge(0, 2_000, &few, 0), Change::Refund(Refund::Amount(1)));
        assert!(memory.len() <= 3, "{}", memory.len());
    }

    /// Of many counters only one may go, and it is far from where the last sweep ended.
    #[test]
    fn a_full_shard_never_holds_more_than_one_counter_too_many() {
        let memory = memory(200);
        let [few, many] = [named(1, 0), named(9, 1)];
        assert!(decide(&memory, &[charge(0, 0, &many, 1)], Intent::Charge).0);
        for subject in 1..2_000 {
            decide(&memory, &[charge(0, subject, &few, 1)], Intent::Charge);
            assert!(memory.len() <= 201, "{subject}: {}", memory.len());
        }
        assert!(memory.evictions().overflowed > 1_700);
    }

    /// Full logs, of which one may go. The reservation needs a counter of its own.
    #[test]
    fn a_reservation_gets_the_room_of_a_long_log() {
        let memory = memory(20);
        let [log, bucket] = [log("10000/hour"), named(9, 1)];
        for subject in 0..14 {
            let cost = if subject == 13 { 9_999 } else { 10_000 };
            assert!(decide(&memory, &[charge(0, subject, &log, cost)], Intent::Charge).0);
        }
        let charges = [charge(0, 99, &bucket, 1)];
        let mut locked = memory.lock(&charges);
        let mut deciding = memory.deciding(&mut locked, &charges, Intent::Reserve { nonce: 1 });
        deciding.needs_own = true;
        assert!(deciding.decide(|_, _| ()));
        assert_eq!(deciding.intent, Intent::Reserve { nonce: 1 });
        drop(locked);
        let evictions = memory.evictions();
        assert_eq!((evictions.live, evictions.overflowed), (1, 0));
    }

    #[test]
    fn subjects_without_room_in_two_shards_share_nothing() {
        let memory = memory(1);
        let [few, many] = [named(1, 0), named(9, 1)];
        for shard in [0, 1] {
            assert!(decide(&memory, &[charge(shard, 1, &few, 1)], Intent::Charge).0);
        }
        let both = [charge(0, 2, &many, 5), charge(1, 3, &many, 5)];
        assert_eq!(decide(&memory, &both, Intent::Charge), (true, vec![4, 4]));
    }

    #[test]
    fn no_limit_of_a_faster_period_drains_the_counter_of_subjects_without_room() {
        let memory = memory(1);
        let [few, many] = [named(1, 0), named(9, 1)];
        assert!(decide(&memory, &[charge(0, 1, &few, 1)], Intent::Charge).0);
        assert!(decide(&memory, &[charge(0, 2, &many, 9)], Intent::Charge).0);
        let fast = NamedLimit::in_place_of(&many, Limit::per_second(1_000));
        for second in 1..=2 {
            memory.clock.set(NOW_US + second * 1_000_000);
            assert!(decide(&memory, &[charge(0, 3, &fast, 1)], Intent::Charge).0);
            assert!(!decide(&memory, &[charge(0, 4, &many, 9)], Intent::Charge).0);
        }
        // Once it has drained, it leaves room for a subject of its own.
        memory.clock.set(NOW_US + 10 * DAY_US);
        for subject in [5, 6] {
            assert_eq!(decide(&memory, &[charge(0, subject, &many, 1)], Intent::Charge).1, [8]);
        }
    }

    /// The logs outweighed the room while nothing could go. Then all others may.
    #[test]
    fn a_shard_that_long_logs_have_filled_finds_back_to_its_bound() {
        let memory = memory(820);
        let [three, log] = [named(3, 1), log("10000/366d")];
        for subject in 0..806 {
            assert!(decide(&memory, &[charge(0, subject, &three, 3)], Intent::Charge).0);
        }
        for subject in 0..14 {
            decide(&memory, &[charge(0, 5_000 + subject, &log, 10_000)], Intent::Charge);
        }
        memory.clock.set(NOW_US + 2 * DAY_US);
        for subject in 0..806 {
            assert!(decide(&memory, &[charge(0, subject, &three, 1)], Intent::Charge).0);
        }
        let before = memory.evictions().overflowed;
        assert!(decide(&memory, &[charge(0, 9_999, &named(9, 2), 1)], Intent::Charge).0);
        assert_eq!(memory.evictions().overflowed, before);
    }

    #[test]
    fn a_log_that_was_charged_by_force_takes_no_more_than_its_room() {
        let memory = Memory::new(2_000 * SHARDS, Clock::given(NOW_US));
        let log = log("10000/hour");
        let bucket = named(9, 1);
        for subject in 1..2_000 {
            assert!(decide(&memory, &[charge(0, subject, &bucket, 1)], Intent::Charge).0);
        }
        for at in 0..5_000 {
            memory.clock.set(NOW_US + at);
            for subject in 0..40 {
                let settled = charge(0, 1 << 32 | subject, &log, 1);
                memory.change(&settled, Change::Force(1));
            }
        }
        let shard = memory.shards[0].lock();
        assert!(memory.evictions().live > 100 && (shard.len() == 1 || !shard.is_over()));
    }

    /// Nothing drains, so the model is a sum: what each counter has used is what was allowed over it. A denial lacked
    /// room somewhere, and lacks it still at the end.
    #[test]
    fn several_counters_are_charged_all_or_none_by_eight_threads() {
        const COUNTERS: usize = 6;
        let memory = memory(100);
        let limits: [NamedLimit; COUNTERS] =
            from_fn(|place| named(3_000 + 500 * place as u64, place));
        // In four shards, some of them in one.
        let charge_of =
            |place: usize, cost| charge(place as u128 % 4, place as u128 / 4, &limits[place], cost);
        let run = |thread: u64| {
            let mut random = thread.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut below = |end: u64| {
                random ^= random >> 12;
                random ^= random << 25;
                random ^= random >> 27;
                random.wrapping_mul(0x2545_F491_4F6C_DD1D) % end
            };
            let (mut used, mut denied) = ([0; COUNTERS], Vec::new());
            for _ in 0..1_000 {
                let (first, count) = (below(COUNTERS as u64), 2 + below(3));
                let costs: [u64; COUNTERS] = from_fn(|place| {
                    let is_in = (place as u64 + COUNTERS as u64 - first) % 6 < count;
                    if is_in { 1 + below(3) } else { 0 }
                });
                let charges = (0..COUNTERS).filter(|place| costs[*place] > 0);
                let charges: Vec<_> = charges.map(|place| charge_of(place, costs[place])).collect();
                match decide(&memory, &charges, Intent::Charge).0 {
                    true => used = from_fn(|place| used[place] + costs[place]),
                    false => denied.push(costs),
                }
            }
            (used, denied)
        };
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || run(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let left: [u64; COUNTERS] = from_fn(|place| {
            let used: u64 = all.iter().map(|(used, _)| used[place]).sum();
            let capacity = limits[place].limit().capacity().unwrap();
            let left = capacity.checked_sub(used).expect("no more than the limit is admitted");
            assert_eq!(decide(&memory, &[charge_of(place, 0)], Intent::Peek).1, [left]);
            left
        });
        let denied: Vec<_> = all.iter().flat_map(|(_, denied)| denied).collect();
        assert!(denied.len() > 100 && denied.len() < 7_000);
        for costs in denied {
            assert!((0..COUNTERS).any(|place| costs[place] > left[place]), "{costs:?} of {left:?}");
        }
    }
}
