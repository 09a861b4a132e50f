//! The leases of this instance on all counters, found by hash. It also finds the counters that need
//! a call to the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use hashbrown::HashTable;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::demand::Demand;
use super::holder::Holder;
use super::{Exchange, Granted, Taken};
use crate::counter::PlannedCharge;
use crate::policy::{LeaseTerms, Rule};
use crate::subject::SubjectKey;

/// The leases of one instance.
#[derive(Debug)]
pub struct Leases {
    shards: Box<[Mutex<HashTable<LeasedCounter>>]>,
    /// The number of counters in the shards.
    count: AtomicUsize,
    /// Recently requested counters without a lease: part of the counter's hash, and the number of
    /// requests.
    seen: Box<[AtomicU64]>,
    /// Notified when a counter needs a call before the next round.
    pub wants: Arc<Notify>,
    stopped: AtomicBool,
}

/// A counter that has leases or may get some.
#[derive(Debug)]
struct LeasedCounter {
    name: u128,
    counter: PlannedCharge,
    rule: Arc<str>,
    terms: LeaseTerms,
    share: u64,
    holder: Holder,
    demand: Demand,
    /// The quota that the store had left after its last grant.
    remaining: u64,
    /// With fewer tokens than this, it is time to request more.
    low: u64,
    /// Whether the task was already notified for this counter.
    is_reported: bool,
}

/// Tokens that a lease paid for one counter of a decision.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    name: u128,
    taken: Taken,
    /// The quota left in the counter, as far as this instance knows.
    pub remaining: u64,
}

/// Returns the terms under which a rule leases a counter, or `None` if it does not.
pub fn leased_by<'r>(counter: &PlannedCharge, rule: &'r Rule) -> Option<&'r LeaseTerms> {
    let terms = rule.lease()?;
    let may =
        counter.group == 0 && counter.cost > 0 && counter.limit.algorithm().profile().is_leasable;
    may.then_some(terms)
}

impl Leases {
    /// Makes a table without counters.
    pub(crate) fn new() -> Leases {
        Leases {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            seen: (0..SEEN).map(|_| AtomicU64::new(0)).collect(),
            wants: Arc::default(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Returns whether any counter is in the table.
    pub fn are_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Spends tokens for a charge, if a lease has enough. A counter with frequent requests and no
    /// lease gets one requested. `terms` are those of [`leased_by`].
    pub fn take_or_want(
        &self,
        asked: &PlannedCharge,
        rule: &Rule,
        terms: &LeaseTerms,
        now_us: u64,
    ) -> Option<Spent> {
        let (name, share) = (asked.name(), terms.tokens_of(asked.limit.limit()));
        // A share of less than one token leases nothing.
        if share == 0 || self.stopped.load(Ordering::Relaxed) {
            return None;
        }
        let mut shard = self.shard(name).lock();
        let Some(leased) = shard.find_mut(name as u64, |leased| leased.name == name) else {
            if self.is_seen_often(name) && self.count.load(Ordering::Relaxed) < COUNTERS_MAX {
                let leased = LeasedCounter::new(asked, rule, terms, now_us);
                shard.insert_unique(name as u64, leased, |leased| leased.name as u64);
                self.count.fetch_add(1, Ordering::Relaxed);
                drop(shard);
                self.wants.notify_one();
            }
            return None;
        };
        if !leased.is_under(asked, terms) {
            // The limit in force has changed. Tokens taken under the previous one are returned.
            leased.holder.end();
            (leased.counter.limit, leased.terms, leased.share) =
                (asked.limit.clone(), *terms, share);
        }
        let spent = leased.take(asked, terms, now_us);
        // A charge that the store pays lowers the estimate too. `take` has already noted the demand
        // of one that a lease paid.
        if spent.is_none() {
            leased.demand.note(asked.cost, now_us);
            leased.remaining = leased.remaining.saturating_sub(asked.cost);
        }
        // The task that is notified takes the same lock.
        if leased.needs_notice(now_us) {
            drop(shard);
            self.wants.notify_one();
        }
        spent
    }

    /// Adds a counter before its first request. Returns whether it can be leased.
    pub fn expect(&self, asked: &PlannedCharge, rule: &Rule, now_us: u64) -> bool {
        let asked = &PlannedCharge { cost: 1, ..asked.to_owned() };
        let Some(terms) = leased_by(asked, rule) else { return false };
        let (name, share) = (asked.name(), terms.tokens_of(asked.limit.limit()));
        if share == 0 || self.counters() >= COUNTERS_MAX {
            return false;
        }
        let mut shard = self.shard(name).lock();
        if shard.find(name as u64, |leased| leased.name == name).is_none() {
            let demand = Demand::expected(share, terms.ttl_us(), now_us);
            let leased = LeasedCounter { demand, ..LeasedCounter::new(asked, rule, terms, now_us) };
            shard.insert_unique(name as u64, leased, |leased| leased.name as u64);
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Returns the quota left in a counter if its lease would pay, as far as this instance knows.
    pub fn would_take(
        &self,
        asked: &PlannedCharge,
        terms: &LeaseTerms,
        now_us: u64,
    ) -> Option<u64> {
        let name = asked.name();
        let shard = self.shard(name).lock();
        let leased = shard.find(name as u64, |leased| leased.name == name)?;
        let would = leased.is_under(asked, terms) && leased.holder.would_take(asked.cost, now_us);
        would.then(|| leased.known_remaining(now_us))
    }

    /// Puts spent tokens back, because the decision was denied.
    pub fn put_back(&self, spent: Spent) {
        self.with(spent.name, |counter| counter.holder.put_back(spent.taken));
    }

    /// Returns the calls that the instance `node` has to make now, at most `most`, and drops unused
    /// counters.
    pub fn wanted(&self, node: u64, now_us: u64, most: usize) -> Vec<Exchange> {
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
                wanted.extend(counter.wanted(node, stopped, now_us));
            }
        }
        wanted
    }

    /// Takes the store's reply to a call.
    pub fn answered(&self, of: &Exchange, granted: &Granted, now_us: u64) {
        self.with(of.counter.name(), |counter| {
            counter.holder.answered(of.seq, granted.amount, granted.lasts_us);
            counter.remaining = granted.reading.remaining;
            counter.is_reported = false;
            if granted.amount == 0 && of.wanted > 0 {
                counter.demand.note_nothing(of.ttl_us, now_us);
            }
            // Requesting the next lease at half of this one leaves time for the call before the
            // tokens run out.
            counter.low = counter.holder.left(now_us) / 2;
        });
    }

    /// Notes that a call got no reply.
    pub fn unanswered(&self, of: &Exchange, may_be_executed: bool, now_us: u64) {
        self.with(of.counter.name(), |counter| {
            counter.holder.unanswered(of.seq, may_be_executed);
            counter.demand.note_nothing(of.ttl_us, now_us);
            counter.is_reported = false;
        });
    }

    /// Drops all leases, because a store lost its data.
    pub fn void(&self) {
        self.each(|counter| counter.holder.void());
    }

    /// Returns a subject's leases to the store, because the subject is being reset.
    pub fn end_of(&self, key: SubjectKey) {
        self.each(|leased| {
            if leased.counter.key == key {
                leased.holder.end();
            }
        });
    }

    /// Ends all leases and takes no more.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.each(|counter| counter.holder.end());
    }

    /// Returns the number of unspent tokens.
    pub fn outstanding(&self, now_us: u64) -> u64 {
        let mut all = 0;
        self.each(|counter| all += counter.holder.left(now_us));
        all
    }

    /// Returns the number of unspent tokens of one rule.
    pub fn outstanding_of(&self, rule: &str, now_us: u64) -> u64 {
        let mut all = 0;
        self.each(|counter| {
            if *counter.rule == *rule {
                all += counter.holder.left(now_us);
            }
        });
        all
    }

    /// Returns the number of counters in the table.
    pub fn counters(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn each(&self, mut what: impl FnMut(&mut LeasedCounter)) {
        for shard in &self.shards {
            shard.lock().iter_mut().for_each(&mut what);
        }
    }

    fn with(&self, name: u128, what: impl FnOnce(&mut LeasedCounter)) {
        self.shard(name).lock().find_mut(name as u64, |counter| counter.name == name).map(what);
    }

    fn shard(&self, name: u128) -> &Mutex<HashTable<LeasedCounter>> {
        // The hash table uses the low bits, so shards use the high ones.
        &self.shards[(name >> 64) as usize % SHARDS]
    }

    /// Returns whether a counter had several requests without another counter in its slot between
    /// them.
    fn is_seen_often(&self, name: u128) -> bool {
        let place = &self.seen[(name >> 96) as usize % SEEN];
        // One word holds both: the low byte counts, the other bits mark the counter. A plain load
        // and store can lose a count under contention, which only delays a lease.
        let (mark, known) = (name as u64 & !SEEN_COUNT, place.load(Ordering::Relaxed));
        let count = if known & !SEEN_COUNT == mark { (known & SEEN_COUNT) + 1 } else { 1 };
        place.store(mark | if count >= OFTEN { 0 } else { count }, Ordering::Relaxed);
        count >= OFTEN
    }
}

impl LeasedCounter {
    fn new(asked: &PlannedCharge, rule: &Rule, terms: &LeaseTerms, now_us: u64) -> LeasedCounter {
        let mut demand = Demand::new(now_us);
        demand.note(asked.cost, now_us);
        LeasedCounter {
            name: asked.name(),
            counter: PlannedCharge::new(asked.key, asked.limit.clone()),
            rule: rule.shared_name(),
            terms: *terms,
            share: terms.tokens_of(asked.limit.limit()),
            holder: Holder::default(),
            demand,
            remaining: 0,
            low: 0,
            is_reported: false,
        }
    }

    fn take(&mut self, asked: &PlannedCharge, terms: &LeaseTerms, now_us: u64) -> Option<Spent> {
        if !self.is_under(asked, terms) {
            return None;
        }
        let taken = self.holder.take(asked.cost, now_us)?;
        self.demand.note(asked.cost, now_us);
        Some(Spent { name: self.name, taken, remaining: self.known_remaining(now_us) })
    }

    /// Returns whether its leases were granted under the limit and terms in force.
    fn is_under(&self, asked: &PlannedCharge, terms: &LeaseTerms) -> bool {
        self.counter.params() == asked.params() && self.terms == *terms
    }

    fn known_remaining(&self, now_us: u64) -> u64 {
        let capacity = self.counter.params().capacity();
        self.remaining.saturating_add(self.holder.left(now_us)).min(capacity)
    }

    /// Returns whether the task must be notified, which happens once until the next call.
    fn needs_notice(&mut self, now_us: u64) -> bool {
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

    fn wanted(&mut self, node: u64, stopped: bool, now_us: u64) -> Option<Exchange> {
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
        // A spent lease without a remainder can be reported with the next call, if there will be
        // one.
        let reports =
            self.holder.has_to_return() || (is_left_alone && self.holder.has_unreported());
        if wanted == 0 && !(reports && (stopped || self.demand.may_report(now_us))) {
            return None;
        }
        self.demand.note_call(ttl_us, now_us);
        let (seq, closes) = self.holder.call(now_us);
        let (counter, share) = (self.counter.clone(), self.share);
        Some(Exchange { counter, node, seq, closes, share, wanted, ttl_us })
    }

    fn is_over(&self, stopped: bool, now_us: u64) -> bool {
        let ttl_us = self.terms.ttl_us();
        let is_idle =
            self.holder.is_idle() && (stopped || self.demand.is_forgotten(ttl_us, now_us));
        // After eight durations without a request, the ledger has forgotten any unreported lease.
        is_idle || (self.demand.is_forgotten(4 * ttl_us, now_us) && !self.holder.is_asking())
    }
}

/// Enough that threads seldom compete for one.
const SHARDS: usize = 64;
/// The most counters with leases in one instance, half a kilobyte each.
const COUNTERS_MAX: usize = 4_096;
/// The most counters that are watched for frequent requests.
const SEEN: usize = 4_096;
/// The bits of a slot that count.
const SEEN_COUNT: u64 = 0xff;
/// After this many requests a counter may be worth a lease.
const OFTEN: u64 = 3;
