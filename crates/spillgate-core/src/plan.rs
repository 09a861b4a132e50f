//! Turns a request into the charges that the store evaluates, and the store's replies into counter outcomes.

use std::slice;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::Intent;
use crate::counter::{COUNTERS_INLINE, Change, LimitHandle, PlannedCharge};
use crate::decision::{CounterOutcome, CounterOutcomes, Reason};
use crate::limit::{Kind, NamedLimit};
use crate::policy::{Matched, Mode, Policy, Rule};
use crate::request::{Cost, Request};
use crate::reservation::{Contents, Noted, Opening, ReservationError, random_id};
use crate::subject::{Secret, SubjectKey};

mod follow_up;
mod leased;
mod outcomes;
mod together;
mod transaction;

pub use follow_up::FollowUp;
pub use outcomes::{Cause, ChargeOutcome, ChargeOutcomes};
pub use together::SharedMatch;
pub use transaction::{RecordAction, RecordReply, Transaction, TransactionReply};

/// The charges of one request that the store must evaluate, and the outcomes that need no store.
pub struct Plan<L: LimitHandle = NamedLimit> {
    /// The charges that the store must evaluate.
    pub transaction: Transaction<L>,
    /// Outcomes of all counters, in file order. Those that the store evaluates get their numbers from its reply.
    pub outcomes: CounterOutcomes,
    /// Corrections to make after the decision, whether it allows or denies.
    pub follow_ups: Vec<FollowUp<L>>,
    /// The reservation record that the decision opens if there is room for it.
    pub opening: Option<Arc<Opening>>,
    /// What became of that record.
    pub noted: Option<Box<Noted>>,
}

/// A plan with the final outcomes of its counters.
pub struct Evaluated {
    /// The plan.
    pub plan: Box<Plan>,
    /// The reservation that it opened; `None` without one, and after a denial.
    pub receipt: Option<Box<Contents>>,
}

/// The limits that one subject is charged under: those of a rule, or one inline limit.
#[derive(Clone, Copy)]
struct Charged<'p> {
    limits: &'p [NamedLimit],
    /// The number of key attributes.
    attributes: u8,
    is_postpaid: bool,
}

/// A limit handle that can be made from a limit of a policy that lives for `'p`.
pub trait LimitHandleFrom<'p>: LimitHandle + From<&'p NamedLimit> {}

impl<'p, L: LimitHandle + From<&'p NamedLimit>> LimitHandleFrom<'p> for L {}

/// Whether the plan charges the counters or only reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanMode {
    /// Charges the request's cost.
    Charge,
    /// Reads the counters, as a cost of 0 does.
    Peek,
}

impl<L: LimitHandle> Plan<L> {
    /// Makes an empty plan. It is filled in place, because moving a full one takes time.
    #[inline]
    pub fn empty() -> Plan<L> {
        Plan {
            transaction: Transaction {
                intent: Intent::Charge,
                record: RecordAction::None,
                charges: SmallVec::new(),
            },
            outcomes: SmallVec::new(),
            follow_ups: Vec::new(),
            opening: None,
            noted: None,
        }
    }

    /// Adds the counters of all rules that a request matches to an empty plan.
    #[inline]
    pub fn add_rules<'p>(
        &mut self,
        policy: &'p Policy,
        request: &Request<'_>,
        secret: &Secret,
        mode: PlanMode,
    ) where
        L: LimitHandleFrom<'p>,
    {
        let free = Cost::requests(0);
        let cost = if mode == PlanMode::Peek { &free } else { request.cost() };
        // Outcomes are in file order. Charges may be added in another order, and refer to outcomes by index. Group 0 is
        // the enforced rules, charged all or none.
        let mut some_apart = false;
        policy.each_match(request, |matched| {
            let first = self.outcomes.len();
            // Most requests match one rule, and few have more than four counters.
            let others = if first == 0 { 0 } else { COUNTERS_INLINE.saturating_sub(first) };
            self.outcomes.reserve(matched.limits.len().max(others));
            for position in 0..matched.limits.len() {
                self.outcomes.push(CounterOutcome::unknown(&matched, position));
            }
            let is_shadow = matched.rule.mode() == Mode::Shadow;
            if !is_shadow {
                let key = matched.rule.subject_key(request, secret);
                self.add_charged(Charged::by_rule(&matched), first, key, cost, 0);
            }
            some_apart |= is_shadow || matched.rule.postpaid();
        });
        if some_apart {
            self.add_rules_apart(&policy.matched(request), request, secret, cost);
        }
    }

    /// Adds the charges in groups of their own, out of those of all rules that a request matches.
    fn add_rules_apart<'p>(
        &mut self,
        rules: &[Matched<'p>],
        request: &Request<'_>,
        secret: &Secret,
        cost: &Cost<'_>,
    ) where
        L: LimitHandleFrom<'p>,
    {
        let placed = rules.iter().scan(0, |next, matched| {
            let first = *next;
            *next += matched.limits.len();
            Some((first, matched))
        });
        // Each shadow rule is a group, evaluated afterwards.
        let mut group = 0;
        for (first, matched) in placed.clone().filter(|(_, one)| one.rule.mode() == Mode::Shadow) {
            group += 1;
            let key = matched.rule.subject_key(request, secret);
            self.add_charged(Charged::by_rule(matched), first, key, cost, group);
        }
        // Post-paid charges come last, each in its own group, since its denial must hold back no other charge.
        for (first, matched) in placed.filter(|(_, one)| one.rule.postpaid()) {
            let key = matched.rule.subject_key(request, secret);
            self.add_postpaid(Charged::by_rule(matched), first, key, cost, &mut group);
        }
    }

    /// Builds a plan that reads the counters of one rule for one subject, as if the rule were enforced.
    pub fn of_subject<'p>(matched: &Matched<'p>, subject: &Request<'_>, secret: &Secret) -> Plan<L>
    where
        L: LimitHandleFrom<'p>,
    {
        let mut plan = Plan::empty();
        for position in 0..matched.limits.len() {
            plan.outcomes.push(CounterOutcome {
                shadow: false,
                ..CounterOutcome::unknown(matched, position)
            });
        }
        let key = matched.rule.subject_key(subject, secret);
        plan.add_charged(Charged::by_rule(matched), 0, key, &Cost::requests(0), 0);
        plan
    }

    /// Adds the counter of an inline limit to an empty plan.
    #[inline]
    pub fn add_inline<'p>(&mut self, key: SubjectKey, limit: &'p NamedLimit, cost: &Cost<'_>)
    where
        L: LimitHandleFrom<'p>,
    {
        self.outcomes.push(CounterOutcome::inline());
        self.add_charged(Charged::inline(limit), 0, key, cost, 0);
    }

    /// Returns the longest time in µs that a permit of this plan can be held, or `None` if it charges no permit.
    pub fn max_hold_us(&self) -> Option<u64> {
        if self.transaction.intent != Intent::Charge {
            return None;
        }
        let charged = self.transaction.charges.iter().filter(|counter| counter.cost > 0);
        charged.filter_map(|counter| counter.params().max_hold_us()).max()
    }

    /// Makes the plan open a record, unless its denial is certain.
    pub fn open(&mut self, opening: Arc<Opening>) {
        // A plan that was turned into a peek charges nothing, so it needs no record. The nonce
        // becomes the incarnation of new states, by which a refund recognises them; 0 is none.
        if self.transaction.intent == Intent::Charge {
            self.transaction.intent = Intent::Reserve { nonce: (random_id() as u64 >> 16).max(1) };
            self.transaction.record = RecordAction::Open(Arc::clone(&opening));
        }
        self.opening = Some(opening);
    }

    /// Makes the plan only peek.
    pub fn look(&mut self) {
        self.transaction.intent = Intent::Peek;
        self.transaction.record = RecordAction::None;
        self.follow_ups.clear();
    }

    /// Returns whether this call charged its reservation for the first time, or opens none.
    pub fn charges_anew(&self) -> bool {
        self.noted.as_ref().is_none_or(|noted| noted.charges_anew())
    }

    /// Returns whether no counter denies.
    pub fn allows(&self) -> bool {
        !self.outcomes.iter().any(CounterOutcome::denies)
    }

    /// Denies an allowed decision whose reservation record had no room. Without a record nothing could
    /// settle or release the charge.
    pub fn deny_if_full(&mut self) {
        let counters = &mut self.outcomes;
        let deciding = |counter: &&mut CounterOutcome| counter.decides();
        if self.noted.as_ref().is_some_and(|noted| noted.full)
            && counters.iter_mut().filter(deciding).all(|counter| counter.waits_for_no_limit())
        {
            counters.iter_mut().filter(deciding).for_each(CounterOutcome::refuse_overloaded);
        }
    }

    /// Returns an error if the reservation's id belongs to another one, or if this one has ended.
    pub fn check_record(&self) -> Result<(), ReservationError> {
        self.noted.as_ref().map_or(Ok(()), |noted| noted.check())
    }

    /// Returns the reservation that the evaluated plan opened, unless it was denied or rejected.
    pub fn receipt(&self) -> Option<Box<Contents>> {
        let opening = self.opening.as_ref()?;
        let stands = self.check_record().is_ok() && self.allows();
        let groups = || self.noted.as_ref().map(|noted| noted.groups.clone()).unwrap_or_default();
        stands.then(|| Box::new(Contents { id: opening.id, node: None, groups: groups() }))
    }

    /// Returns whether the store must evaluate anything.
    pub fn asks(&self) -> bool {
        !self.transaction.charges.is_empty()
    }

    /// Returns the rule that a charge belongs to; `None` for an inline limit.
    pub fn rule_of<'p>(
        &self,
        policy: Option<&'p Policy>,
        counter: &PlannedCharge<L>,
    ) -> Option<&'p Rule> {
        let rule_index = self.outcomes[usize::from(counter.index)].rule.number()?;
        policy.map(|policy| policy.rule_at(rule_index))
    }

    /// Passes the outcomes of all charges, in their order, to their counters.
    pub fn take(&mut self, outcomes: &[ChargeOutcome]) {
        for (charge, outcome) in self.transaction.charges.iter().zip(outcomes) {
            outcome.apply(&mut self.outcomes[usize::from(charge.index)]);
        }
    }

    /// Adds the charges of one subject, whose first counter in the decision is `first`. If a limit can never allow the
    /// cost, a shadow rule is only read; for an enforced rule the whole plan is.
    #[inline(always)] // with `add_counter`
    fn add_charged<'p>(
        &mut self,
        charged: Charged<'p>,
        first: usize,
        key: SubjectKey,
        cost: &Cost<'_>,
        group: u16,
    ) where
        L: LimitHandleFrom<'p>,
    {
        let asked_before = self.transaction.charges.len();
        let Charged { limits, attributes, is_postpaid } = charged;
        let mut hopeless = false;
        // A decision has 64 counters at most.
        for (index, limit) in (first as u16..).zip(limits) {
            let cost = cost.of_limit(limit.limit());
            // `add_postpaid` adds post-paid charges later. A peek of a post-paid rule is part of the decision.
            if is_postpaid && cost > 0 {
                continue;
            }
            let counter =
                PlannedCharge { cost, group, index, attributes, ..PlannedCharge::new(key, limit) };
            hopeless |= self.add_counter(counter);
        }
        // For group 0 `add_counter` has made the whole plan a peek, so only shadow rules are cleared here.
        if hopeless && group > 0 {
            self.transaction.charges[asked_before..]
                .iter_mut()
                .for_each(|counter| counter.cost = 0);
        }
    }

    /// Adds the charges of a post-paid rule, each in a group of its own. The decision charges those that have room if
    /// it allows. A follow-up charges all others by force.
    fn add_postpaid<'p>(
        &mut self,
        charged: Charged<'p>,
        first: usize,
        key: SubjectKey,
        cost: &Cost<'_>,
        group: &mut u16,
    ) where
        L: LimitHandleFrom<'p>,
    {
        let Charged { limits, attributes, is_postpaid } = charged;
        for (index, limit) in (first as u16..).zip(limits) {
            let cost = cost.of_limit(limit.limit());
            if !is_postpaid || cost == 0 {
                continue;
            }
            *group += 1;
            let counter = PlannedCharge {
                cost,
                group: *group,
                index,
                attributes,
                ..PlannedCharge::new(key, limit)
            };
            self.outcomes[usize::from(index)].advisory = true;
            if self.add_counter(counter) {
                // Not `CostExceedsLimit`, because a forced charge can go up to twice the capacity.
                self.outcomes[usize::from(index)].denied = Some(Reason::LimitExceeded);
            }
            // Unlimited and blocked limits keep no state that a correction could change.
            if limit.params().is_some() {
                let counter = counter.under(L::from(limit));
                self.follow_ups.push(FollowUp { counter, change: Change::Force(cost) });
            }
        }
    }

    /// Adds one charge, unless its limit keeps no state. Returns whether the limit can never allow the cost.
    #[inline(always)] // else the charge is moved
    fn add_counter<'p>(&mut self, counter: PlannedCharge<&'p NamedLimit>) -> bool
    where
        L: LimitHandleFrom<'p>,
    {
        let limit = counter.limit;
        let outcome = &mut self.outcomes[usize::from(counter.index)];
        let capacity = limit.limit().capacity();
        outcome.capacity = capacity.into();
        // A peek answers for a cost of 1, so it can never be allowed where the capacity is 0.
        let hopeless = capacity.is_some_and(|capacity| counter.cost.max(1) > capacity);
        if hopeless {
            let is_block = capacity == Some(0);
            outcome.denied =
                Some(if is_block { Reason::Blocked } else { Reason::CostExceedsLimit });
            // A block has nothing left. The numbers of other limits come from the store.
            outcome.remaining = Some(0).filter(|_| is_block).into();
            // One certain denial decides for all enforced rules, so nothing may be charged.
            if counter.group == 0 {
                self.transaction.intent = Intent::Peek;
            }
        }
        // Unlimited and blocked limits keep no state, so the store is not asked about them.
        match limit.limit().kind() {
            Kind::Unlimited => outcome.retry_after_us = Some(0).into(),
            Kind::Block => {}
            Kind::Counted(_) => {
                // A charge that can never fit is sent with cost 0, to get the numbers for the answer.
                let cost = if hopeless { 0 } else { counter.cost };
                self.transaction
                    .charges
                    .push(PlannedCharge { cost, ..counter.under(L::from(limit)) });
            }
        }
        hopeless
    }
}

impl<'p> Charged<'p> {
    /// Returns what a rule charges for a subject.
    fn by_rule(matched: &Matched<'p>) -> Charged<'p> {
        let Matched { rule, limits, .. } = matched;
        // A rule has 32 attributes at most.
        Charged { limits, attributes: rule.key().len() as u8, is_postpaid: rule.postpaid() }
    }

    /// Returns what an inline limit charges for its key.
    fn inline(limit: &'p NamedLimit) -> Charged<'p> {
        Charged { limits: slice::from_ref(limit), attributes: 1, is_postpaid: false }
    }
}
