//! What this process holds of all counters, found by their hash; and which of them want the store's word.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use hashbrown::HashTable;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::demand::Demand;
use super::holder::Holder;
use super::{Close, Taken};
use crate::algorithm::LimitParams;
use crate::counter::PlannedCharge;
use crate::limit::NamedLimit;
use crate::policy::{LeaseTerms, Rule, is_leasable};
use crate::subject::SubjectKey;

/// The leases of a process.
#[derive(Debug)]
pub(crate) struct Leases {
    shards: Box<[Mutex<HashTable<LeasedCounter>>]>,
    /// How many counters there are in them.
    count: AtomicUsize,
    /// Who asked lately without being there: a part of a counter's hash, and how often.
    seen: Box<[AtomicU64]>,
    /// Some counter wants the store's word before the next round.
    pub(crate) wants: Arc<Notify>,
    stopped: AtomicBool,
}

/// A counter that is, or may be, leased.
#[derive(Debug)]
struct LeasedCounter {
    name: u128,
    key: SubjectKey,
    limit: NamedLimit,
    #[cfg_attr(not(feature = "metrics"), expect(dead_code, reason = "metrics count by rule"))]
    rule: Arc<str>,
    terms: LeaseTerms,
    share: u64,
    holder: Holder,
    demand: Demand,
    /// What the store had left when it granted last.
    remaining: u64,
    /// Less than this in hand, and it is time to ask for more.
    low: u64,
    /// What would be wanted was told already.
    is_reported: bool,
}

/// A call to be made for one counter.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) name: u128,
    pub(crate) key: SubjectKey,
    pub(crate) limit: NamedLimit,
    pub(crate) seq: u32,
    pub(crate) closes: SmallVec<[Close; 4]>,
    pub(crate) share: u64,
    pub(crate) wanted: u64,
    pub(crate) ttl_us: u64,
}

/// What was spent of a lease for one counter of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    name: u128,
    taken: Taken,
    /// What is left of the counter, as far as this process knows.
    pub(crate) remaining: u64,
}

/// One counter of a decision, as leases know counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) name: u128,
    pub(crate) params: &'a LimitParams,
    pub(crate) terms: &'a LeaseTerms,
    pub(crate) cost: u64,
}

impl<'a> Candidate<'a> {
    /// Nothing where a rule does not lease it.
    pub(crate) fn of(counter: &'a PlannedCharge, rule: &'a Rule) -> Option<Candidate<'a>> {
        let terms = rule.lease()?;
        let may = counter.group == 0 && counter.cost > 0 && is_leasable(counter.limit.algorithm());
        may.then(|| Candidate {
            name: counter.name(),
            params: counter.params(),
            terms,
            cost: counter.cost,
        })
    }
}

impl Leases {
    /// A place for leases, or for none.
    pub(crate) fn new(leases: bool) -> Leases {
        let (shards, seen) = if leases { (SHARDS, SEEN) } else { (0, 0) };
        Leases {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            seen: (0..seen).map(|_| AtomicU64::new(0)).collect(),
            wants: Arc::default(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Whether there is anything to spend.
    #[inline]
    pub(crate) fn are_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Spends what a counter is charged, if a lease has as much. A counter that is asked about often and has no lease
    /// gets one asked for.
    pub(crate) fn take_or_want(
        &self,
        of: Candidate<'_>,
        asked: &PlannedCharge,
        rule: &Rule,
        now_us: u64,
    ) -> Option<Spent> {
        let share = of.terms.tokens_of(asked.limit.limit());
        if share == 0 || self.stopped.load(Ordering::Relaxed) {
            return None;
        }
        let mut shard = self.shards.get(self.place(of.name)?)?.lock();
        let Some(counter) = shard.find_mut(of.name as u64, |counter| counter.name == of.name)
        else {
            if self.is_seen_often(of.name) && self.count.load(Ordering::Relaxed) < COUNTERS_MAX {
                let counter = LeasedCounter::new(of, asked, rule, share, now_us);
                shard.insert_unique(of.name as u64, counter, |counter| counter.name as u64);
                self.count.fetch_add(1, Ordering::Relaxed);
                drop(shard);
                self.wants.notify_one();
            }
            return None;
        };
        if !counter.is_under(of) {
            // The limit in force is another: what was taken under the one before goes back.
            counter.holder.end();
            (counter.limit, counter.terms, counter.share) = (asked.limit.clone(), *of.terms, share);
        }
        let spent = counter.take(of, now_us);
        if spent.is_none() {
            counter.demand.note(of.cost, now_us);
            counter.remaining = counter.remaining.saturating_sub(of.cost);
        }
        if counter.asks_for_word(now_us) {
            drop(shard);
            self.wants.notify_one();
        }
        spent
    }

    /// Asks for a counter before anybody asks about it; whether there is anything to ask for.
    pub(crate) fn expect(&self, asked: &PlannedCharge, rule: &Rule, now_us: u64) -> bool {
        let asked = &PlannedCharge { cost: 1, ..asked.to_owned() };
        let Some(of) = Candidate::of(asked, rule) else { return false };
        let share = of.terms.tokens_of(asked.limit.limit());
        let place = self.place(of.name).and_then(|place| self.shards.get(place));
        let Some(shard) = place.filter(|_| share > 0 && self.counters() < COUNTERS_MAX) else {
            return false;
        };
        let mut shard = shard.lock();
        if shard.find(of.name as u64, |counter| counter.name == of.name).is_none() {
            let demand = Demand::expected(share, of.terms.ttl_us(), now_us);
            let counter =
                LeasedCounter { demand, ..LeasedCounter::new(of, asked, rule, share, now_us) };
            shard.insert_unique(of.name as u64, counter, |counter| counter.name as u64);
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// What is left of a counter if its lease would pay, as far as this process knows.
    pub(crate) fn would_take(&self, of: Candidate<'_>, now_us: u64) -> Option<u64> {
        let shard = self.shards.get(self.place(of.name)?)?.lock();
        let counter = shard.find(of.name as u64, |counter| counter.name == of.name)?;
        let would = counter.is_under(of) && counter.holder.would_take(of.cost, now_us);
        would.then(|| counter.known_remaining(now_us))
    }

    /// Unspends it: the rest of the decision refused.
    pub(crate) fn put_back(&self, spent: Spent) {
        self.with(spent.name, |counter| counter.holder.put_back(spent.taken));
    }

    /// What is to be said to the store now, at most so many; and what nobody asks about is forgotten.
    pub(crate) fn wanted(&self, now_us: u64, most: usize) -> Vec<Wanted> {
        let stopped = self.stopped.load(Ordering::Relaxed);
        let mut wanted = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let before = shard.len();
            shard.retain(|counter| !counter.is_over(stopped, now_us));
            self.count.fetch_sub(before - shard.len(), Ordering::Relaxed);
            for counter in shard.iter_mut() {
                if wanted.len() >= most {
                    return wanted;
                }
                wanted.extend(counter.wanted(stopped, now_us));
            }
        }
        wanted
    }

    /// The store's answer to a call.
    pub(crate) fn answered(
        &self,
        of: &Wanted,
        amount: u64,
        lasts_us: u64,
        remaining: u64,
        now_us: u64,
    ) {
        self.with(of.name, |counter| {
            counter.holder.answered(of.seq, amount, lasts_us);
            counter.remaining = remaining;
            counter.is_reported = false;
            if amount == 0 && of.wanted > 0 {
                counter.demand.note_nothing(of.ttl_us, now_us);
            }
            counter.low = counter.holder.left(now_us) / 2;
        });
    }

    /// There was none.
    pub(crate) fn unanswered(&self, of: &Wanted, may_be_executed: bool, now_us: u64) {
        self.with(of.name, |counter| {
            counter.holder.unanswered(of.seq, may_be_executed);
            counter.demand.note_nothing(of.ttl_us, now_us);
            counter.is_reported = false;
        });
    }

    /// A store lost what it held: what it granted counts for nothing.
    pub(crate) fn void(&self) {
        self.each(|counter| counter.holder.void());
    }

    /// What a subject's counters were granted goes back: somebody resets it.
    pub(crate) fn end_of(&self, key: SubjectKey) {
        self.each(|counter| {
            if counter.key == key {
                counter.holder.end();
            }
        });
    }

    /// Nothing is taken or spent any more, and all that is held goes back.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.each(|counter| counter.holder.end());
    }

    /// How many tokens are in hand.
    pub(crate) fn outstanding(&self, now_us: u64) -> u64 {
        let mut all = 0;
        self.each(|counter| all += counter.holder.left(now_us));
        all
    }

    /// The same of one rule.
    #[cfg(feature = "metrics")]
    pub(crate) fn outstanding_of(&self, rule: &str, now_us: u64) -> u64 {
        let mut all = 0;
        self.each(|counter| {
            if *counter.rule == *rule {
                all += counter.holder.left(now_us);
            }
        });
        all
    }

    /// How many counters are leased, or may be soon.
    pub(crate) fn counters(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn each(&self, mut what: impl FnMut(&mut LeasedCounter)) {
        for shard in &self.shards {
            shard.lock().iter_mut().for_each(&mut what);
        }
    }

    fn with(&self, name: u128, what: impl FnOnce(&mut LeasedCounter)) {
        let Some(shard) = self.place(name).and_then(|place| self.shards.get(place)) else { return };
        shard.lock().find_mut(name as u64, |counter| counter.name == name).map(what);
    }

    #[inline]
    fn place(&self, name: u128) -> Option<usize> {
        // The table goes by the low bits.
        ((name >> 64) as usize).checked_rem(self.shards.len())
    }

    /// Whether a counter was asked about again and again, nobody else in its place meanwhile.
    fn is_seen_often(&self, name: u128) -> bool {
        let place = &self.seen[(name >> 96) as usize % self.seen.len()];
        let (mark, known) = (name as u64 & !SEEN_COUNT, place.load(Ordering::Relaxed));
        let count = if known & !SEEN_COUNT == mark { (known & SEEN_COUNT) + 1 } else { 1 };
        place.store(mark | if count >= OFTEN { 0 } else { count }, Ordering::Relaxed);
        count >= OFTEN
    }
}

impl LeasedCounter {
    fn new(
        of: Candidate<'_>,
        asked: &PlannedCharge,
        rule: &Rule,
        share: u64,
        now_us: u64,
    ) -> LeasedCounter {
        let mut demand = Demand::new(now_us);
        demand.note(of.cost, now_us);
        LeasedCounter {
            name: of.name,
            key: asked.key,
            limit: asked.limit.clone(),
            rule: rule.shared_name(),
            terms: *of.terms,
            share,
            holder: Holder::default(),
            demand,
            remaining: 0,
            low: 0,
            is_reported: false,
        }
    }

    #[inline]
    fn take(&mut self, of: Candidate<'_>, now_us: u64) -> Option<Spent> {
        if !self.is_under(of) {
            return None;
        }
        let taken = self.holder.take(of.cost, now_us)?;
        self.demand.note(of.cost, now_us);
        Some(Spent { name: self.name, taken, remaining: self.known_remaining(now_us) })
    }

    /// Whether it was granted under the limit and the terms that are in force.
    #[inline]
    fn is_under(&self, of: Candidate<'_>) -> bool {
        self.limit.params() == Some(of.params) && self.terms == *of.terms
    }

    #[inline]
    fn known_remaining(&self, now_us: u64) -> u64 {
        let capacity = self.limit.params().map_or(0, LimitParams::capacity);
        self.remaining.saturating_add(self.holder.left(now_us)).min(capacity)
    }

    /// Whether the store is to be asked soon, and nobody was told yet.
    #[inline]
    fn asks_for_word(&mut self, now_us: u64) -> bool {
        if self.is_reported
            || self.holder.left(now_us) > self.low
            || self.holder.is_asking()
            || !self.holder.has_place(now_us)
        {
            return false;
        }
        self.is_reported = self.demand.wanted(self.share, self.terms.ttl_us(), now_us) > 0;
        self.is_reported
    }

    fn wanted(&mut self, stopped: bool, now_us: u64) -> Option<Wanted> {
        if self.holder.is_asking() {
            return None;
        }
        let ttl_us = self.terms.ttl_us();
        self.holder.settle(now_us);
        let is_left_alone = stopped || self.demand.is_over(ttl_us, now_us);
        if is_left_alone {
            self.holder.end();
        }
        let mut wanted = 0;
        if !stopped && self.holder.has_place(now_us) && self.holder.left(now_us) <= self.low {
            wanted = self.demand.wanted(self.share, ttl_us, now_us);
        }
        self.is_reported = false;
        // That a lease is spent can wait for the next call, if there will be one.
        let tells = self.holder.has_to_return() || (is_left_alone && self.holder.has_to_tell());
        if wanted == 0 && !(tells && (stopped || self.demand.may_tell(now_us))) {
            return None;
        }
        self.demand.note_call(ttl_us, now_us);
        let (seq, closes) = self.holder.call(now_us);
        let (name, key, limit, share) = (self.name, self.key, self.limit.clone(), self.share);
        Some(Wanted { name, key, limit, seq, closes, share, wanted, ttl_us })
    }

    fn is_over(&self, stopped: bool, now_us: u64) -> bool {
        let ttl_us = self.terms.ttl_us();
        let is_idle =
            self.holder.is_idle() && (stopped || self.demand.is_forgotten(ttl_us, now_us));
        // What could not be told for so long the ledger has forgotten.
        is_idle || (self.demand.is_forgotten(4 * ttl_us, now_us) && !self.holder.is_asking())
    }
}

/// So that threads seldom meet at one.
const SHARDS: usize = 64;
/// As many counters as one process has hot at most; half a kilobyte each.
const COUNTERS_MAX: usize = 4_096;
/// As many that may become so.
const SEEN: usize = 4_096;
/// The part of a place that counts.
const SEEN_COUNT: u64 = 0xff;
/// After that many questions a counter may be worth a lease.
const OFTEN: u64 = 3;
