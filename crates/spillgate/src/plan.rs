//! From a request to the counters that it asks for, and from the engine's answer back to them.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::{Intent, LimitParams};
use crate::counter::{Change, ChargeReply, LimitHandle, PlannedCharge};
use crate::decision::{CounterOutcome, CounterOutcomes, Reason, Source};
use crate::limit::{Kind, NamedLimit};
use crate::policy::{Matched, Mode, Policy, Rule};
use crate::request::{Cost, Request};
use crate::reservation::{Noted, Opening};
use crate::subject::{Secret, SubjectKey};
use crate::waiting::Wanted;

mod follow_up;
#[cfg(feature = "redis")]
mod leased;
#[cfg(feature = "redis")]
mod outcomes;
mod together;
mod transaction;

pub(crate) use follow_up::FollowUp;
#[cfg(feature = "redis")]
pub(crate) use outcomes::{Cause, ChargeOutcome, ChargeOutcomes, Order};
pub(crate) use together::SharedMatch;
pub use transaction::{RecordAction, Transaction, TransactionReply};

/// What one request asks of the engine, and what is known without asking.
pub(crate) struct Plan<L: LimitHandle = NamedLimit> {
    pub(crate) transaction: Transaction<L>,
    /// Every counter in file order; those that are asked for get their numbers from the answer.
    pub(crate) counters: CounterOutcomes,
    /// What is done after the decision, whatever it was.
    pub(crate) follow_ups: Vec<FollowUp<L>>,
    /// The record that the decision opens, or would open if there were room for it.
    pub(crate) opening: Option<Arc<Opening>>,
    /// Whether subjects go by two secrets, and so each counter is asked for twice.
    twofold: bool,
}

/// A way to hold limits that are taken from a policy that lives for `'p`.
pub(crate) trait LimitHandleFrom<'p>: LimitHandle + From<&'p NamedLimit> {}

impl<'p, L: LimitHandle + From<&'p NamedLimit>> LimitHandleFrom<'p> for L {}

/// Whether room is to be used, or only looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlanMode {
    Charge,
    Peek,
}

impl<L: LimitHandle> Plan<L> {
    pub(crate) fn of_request<'p>(
        policy: &'p Policy,
        request: &Request<'_>,
        secret: &Secret,
        mode: PlanMode,
    ) -> Plan<L>
    where
        L: LimitHandleFrom<'p>,
    {
        Plan::of_rules(&policy.matched(request), request, secret, mode)
    }

    /// The plan of a request that meets these rules.
    pub(crate) fn of_rules<'p>(
        rules: &[Matched<'p>],
        request: &Request<'_>,
        secret: &Secret,
        mode: PlanMode,
    ) -> Plan<L>
    where
        L: LimitHandleFrom<'p>,
    {
        let free = Cost::requests(0);
        let cost = if mode == PlanMode::Peek { &free } else { request.cost() };
        let mut plan = Plan::under(secret);
        let count = rules.iter().map(|matched| matched.limits.len()).sum();
        plan.counters.reserve_exact(count);
        plan.transaction.counters.reserve_exact(count);
        for matched in rules {
            for position in 0..matched.limits.len() {
                plan.counters.push(CounterOutcome::unknown(matched, position));
            }
        }
        let mut group = 0;
        for shadow in [false, true] {
            let mut index = 0;
            for matched in rules {
                if (matched.rule.mode() == Mode::Shadow) == shadow {
                    group += u16::from(shadow);
                    for key in keys_of(matched.rule, request, secret) {
                        plan.add_rule(matched, index, key, cost, group);
                    }
                }
                index += matched.limits.len();
            }
        }
        if rules.iter().any(|matched| matched.rule.postpaid()) {
            let mut index = 0;
            for matched in rules {
                for key in keys_of(matched.rule, request, secret) {
                    plan.add_postpaid(matched, index, key, cost, &mut group);
                }
                index += matched.limits.len();
            }
        }
        plan
    }

    /// A look at the counters of one rule for one subject, as if the rule were enforced.
    pub(crate) fn of_subject<'p>(
        matched: &Matched<'p>,
        subject: &Request<'_>,
        secret: &Secret,
    ) -> Plan<L>
    where
        L: LimitHandleFrom<'p>,
    {
        let mut plan = Plan::under(secret);
        for position in 0..matched.limits.len() {
            plan.counters.push(CounterOutcome {
                shadow: false,
                ..CounterOutcome::unknown(matched, position)
            });
        }
        for key in keys_of(matched.rule, subject, secret) {
            plan.add_rule(matched, 0, key, &Cost::requests(0), 0);
        }
        plan
    }

    /// Of a limit that comes with the request, for a subject by its key under each secret.
    pub(crate) fn inline<'p>(
        keys: impl IntoIterator<Item = SubjectKey>,
        limit: &'p NamedLimit,
        cost: &Cost<'_>,
    ) -> Plan<L>
    where
        L: LimitHandleFrom<'p>,
    {
        let mut plan = Plan::empty();
        plan.counters.push(CounterOutcome::inline());
        let cost = cost.of_limit(limit.limit());
        for key in keys {
            plan.add_counter(PlannedCharge {
                cost,
                attributes: 1,
                ..PlannedCharge::new(key, limit)
            });
        }
        plan.twofold = plan.transaction.counters.len() > 1;
        plan
    }

    /// What has to have room for it, with the places in the decision; nothing where it never can have.
    pub(crate) fn wanted(&self) -> SmallVec<[(usize, Wanted); 4]> {
        if self.transaction.intent == Intent::Peek {
            return SmallVec::new();
        }
        let enforced = self.transaction.counters.iter().filter(|counter| counter.group == 0);
        let wanted =
            |counter: &PlannedCharge<L>| Wanted { counter: counter.name(), cost: counter.cost };
        enforced.map(|counter| (usize::from(counter.index), wanted(counter))).collect()
    }

    /// How long its slots are held at most, if it charges any.
    pub(crate) fn holds_slots_us(&self) -> Option<u64> {
        if self.transaction.intent != Intent::Charge {
            return None;
        }
        let max_hold_us = |counter: &PlannedCharge<L>| match counter.params() {
            LimitParams::Concurrency(params) if counter.cost > 0 => Some(params.max_hold_us),
            _ => None,
        };
        self.transaction.counters.iter().filter_map(max_hold_us).max()
    }

    /// Returns what is noted of the record that the plan opens.
    pub(crate) fn noted(&self) -> Noted {
        self.opening.as_ref().map(|opening| opening.noted()).unwrap_or_default()
    }

    /// Whether there is anything that only the engine knows.
    pub(crate) fn asks(&self) -> bool {
        !self.transaction.counters.is_empty()
    }

    /// In what order shards are to be asked: at once only if every rule says so. `policy` decides the plan, or none for
    /// a limit that came with the request.
    #[cfg(feature = "redis")]
    pub(crate) fn order(&self, policy: Option<&Policy>) -> Order {
        let is_parallel = |counter: &PlannedCharge<L>| {
            policy.is_some_and(|policy| policy.rule_at(self.rule_of(counter)).is_parallel())
        };
        match self.transaction.counters.iter().all(is_parallel) {
            true => Order::AtOnce,
            false => Order::OneByOne,
        }
    }

    /// The index of the rule of a counter that is asked for.
    #[cfg(feature = "redis")]
    pub(crate) fn rule_of(&self, counter: &PlannedCharge<L>) -> u32 {
        self.counters[usize::from(counter.index)].rule
    }

    /// Splits the plan into what is asked, and where the answers go.
    #[inline]
    pub(crate) fn split(&mut self) -> (&Transaction<L>, Answers<'_, L>) {
        let Plan { transaction, counters, twofold, .. } = self;
        (
            transaction,
            Answers {
                counters,
                asked: &transaction.counters,
                twins: twofold.then(Vec::new),
                number: 0,
            },
        )
    }

    /// Takes over what is known of each counter asked, and from whom.
    #[cfg(feature = "redis")]
    pub(crate) fn take(&mut self, outcomes: &[ChargeOutcome]) {
        for (number, (one, counter)) in outcomes.iter().zip(&self.transaction.counters).enumerate()
        {
            let twin = self.twin(number).map(|twin| outcomes[twin]);
            let judged = &mut self.counters[usize::from(counter.index)];
            match &twin.map_or(*one, |twin| twin.and(*one)) {
                ChargeOutcome::Store(counter) => judged.take(counter, Source::Store),
                ChargeOutcome::Fallback(counter, cause) => {
                    judged.take(counter, Source::Fallback);
                    judged.overloaded = *cause == Cause::Overload;
                }
                ChargeOutcome::OutagePolicy { passes, cause } => {
                    apply_outage_policy(judged, *passes, *cause);
                }
                ChargeOutcome::Remembered { retry_after_us, remaining, reset_after_us } => {
                    judged.source = Source::DenialCache;
                    judged.denied = Some(Reason::LimitExceeded);
                    judged.retry_after_us = (*retry_after_us).into();
                    judged.remaining = (*remaining).into();
                    judged.reset_after_us = (*reset_after_us).into();
                }
                ChargeOutcome::Refunded | ChargeOutcome::NotAsked => {}
            }
        }
    }

    fn under(secret: &Secret) -> Plan<L> {
        let mut plan = Plan::empty();
        plan.twofold = secret.previous().is_some();
        plan
    }

    fn empty() -> Plan<L> {
        Plan {
            transaction: Transaction {
                intent: Intent::Charge,
                record: RecordAction::None,
                counters: SmallVec::new(),
            },
            counters: SmallVec::new(),
            follow_ups: Vec::new(),
            opening: None,
            twofold: false,
        }
    }

    /// Which of the counters asked before is the same under the other secret.
    #[cfg(feature = "redis")]
    fn twin(&self, number: usize) -> Option<usize> {
        self.twofold.then(|| twin_of(&self.transaction.counters, number)).flatten()
    }

    /// Asks for the counters of one rule, whose place among all begins at `first`. A rule that can
    /// never allow is only peeked at: enforced, so is the whole decision.
    fn add_rule<'p>(
        &mut self,
        matched: &Matched<'p>,
        first: usize,
        key: SubjectKey,
        cost: &Cost<'_>,
        group: u16,
    ) where
        L: LimitHandleFrom<'p>,
    {
        let asked_before = self.transaction.counters.len();
        let attributes = matched.rule.key().len() as u8;
        let mut hopeless = false;
        // A decision has 64 counters at most.
        for (index, limit) in (first as u16..).zip(matched.limits) {
            let cost = cost.of_limit(limit.limit());
            if matched.rule.postpaid() && cost > 0 {
                continue;
            }
            let counter =
                PlannedCharge { cost, group, index, attributes, ..PlannedCharge::new(key, limit) };
            hopeless |= self.add_counter(counter);
        }
        if hopeless && group > 0 {
            self.transaction.counters[asked_before..]
                .iter_mut()
                .for_each(|counter| counter.cost = 0);
        }
    }

    /// Asks for those counters of a post-paid rule that are charged, each in a group of its own: what
    /// has room is charged by the decision if that allows, all else by force after it.
    fn add_postpaid<'p>(
        &mut self,
        matched: &Matched<'p>,
        first: usize,
        key: SubjectKey,
        cost: &Cost<'_>,
        group: &mut u16,
    ) where
        L: LimitHandleFrom<'p>,
    {
        let attributes = matched.rule.key().len() as u8;
        for (index, limit) in (first as u16..).zip(matched.limits) {
            let cost = cost.of_limit(limit.limit());
            if !matched.rule.postpaid() || cost == 0 {
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
            self.counters[usize::from(index)].advisory = true;
            if self.add_counter(counter) {
                // Never too much for ever: what is forced ends at twice the capacity.
                self.counters[usize::from(index)].denied = Some(Reason::LimitExceeded);
            }
            if limit.params().is_some() {
                let counter = counter.under(L::from(limit));
                self.follow_ups.push(FollowUp { counter, change: Change::Force(cost) });
            }
        }
    }

    /// Asks for one counter, unless its limit keeps no state; answers whether it can never allow.
    fn add_counter<'p>(&mut self, counter: PlannedCharge<&'p NamedLimit>) -> bool
    where
        L: LimitHandleFrom<'p>,
    {
        let limit = counter.limit;
        let judged = &mut self.counters[usize::from(counter.index)];
        let capacity = limit.limit().capacity();
        judged.capacity = capacity.into();
        let hopeless = capacity.is_some_and(|capacity| counter.cost.max(1) > capacity);
        if hopeless {
            let is_block = capacity == Some(0);
            judged.denied = Some(if is_block { Reason::Blocked } else { Reason::CostExceedsLimit });
            judged.remaining = Some(0).filter(|_| is_block).into();
            if counter.group == 0 {
                self.transaction.intent = Intent::Peek;
            }
        }
        match limit.limit().kind() {
            Kind::Unlimited => judged.retry_after_us = Some(0).into(),
            Kind::Nothing => {}
            Kind::Counted(_) => {
                let cost = if hopeless { 0 } else { counter.cost };
                self.transaction
                    .counters
                    .push(PlannedCharge { cost, ..counter.under(L::from(limit)) });
            }
        }
        hopeless
    }
}

/// Where the answers of a store to a plan go, one for each counter asked, in order.
pub(crate) struct Answers<'a, L> {
    counters: &'a mut CounterOutcomes,
    asked: &'a [PlannedCharge<L>],
    /// The answers before, where subjects go by two secrets and the tighter of two answers holds.
    twins: Option<Vec<ChargeReply>>,
    number: usize,
}

impl<L> Answers<'_, L> {
    /// Takes over the next answer.
    #[inline]
    pub(crate) fn take(&mut self, reply: ChargeReply) {
        let mut tightest = reply;
        if let Some(twins) = &mut self.twins {
            let twin = twin_of(self.asked, self.number).map(|before| twins[before]);
            tightest = twin.filter(|twin| twin.tightness() > reply.tightness()).unwrap_or(reply);
            twins.push(reply);
        }
        let index = usize::from(self.asked[self.number].index);
        self.counters[index].take(&tightest, Source::Store);
        self.number += 1;
    }
}

/// Which of the counters asked before one is of the same counter, under the other secret.
fn twin_of<L>(asked: &[PlannedCharge<L>], number: usize) -> Option<usize> {
    let index = asked[number].index;
    asked[..number].iter().position(|known| known.index == index)
}

/// Whose state of a rule a request is about, under each secret that subjects go by.
pub(crate) fn keys_of(
    rule: &Rule,
    request: &Request<'_>,
    secret: &Secret,
) -> impl Iterator<Item = SubjectKey> {
    secret.each().map(|secret| rule.subject_key(request, secret))
}

/// Takes over what a rule says of an outage: no numbers are known then.
#[cfg(feature = "redis")]
fn apply_outage_policy(judged: &mut CounterOutcome, passes: bool, cause: Cause) {
    judged.source = Source::OutagePolicy;
    judged.overloaded = cause == Cause::Overload;
    if judged.allows() {
        let reason = match cause {
            Cause::Outage => Reason::StoreUnavailable,
            Cause::Overload => Reason::Overloaded,
        };
        judged.denied = Some(reason).filter(|_| !passes);
        judged.retry_after_us = Some(0).filter(|_| passes).into();
    }
}
