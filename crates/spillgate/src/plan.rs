//! From a request to the tiers that it asks for, and from the engine's answer back to them.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::{Intent, Numbers};
use crate::counter::{AskTier, Change, HoldsLimit, ToldTier};
use crate::decision::{Judged, Source, Tiers, Verdict};
use crate::limit::{Kind, NamedLimit};
use crate::policy::{Met, Mode, Policy, Rule};
use crate::request::{Cost, Request};
use crate::reservation::{Noted, Opening};
use crate::subject::{Secret, SubjectKey};
use crate::waiting::Wanted;

mod ask;
mod due;
#[cfg(feature = "redis")]
mod heard;
#[cfg(feature = "redis")]
mod leased;
mod together;

pub use ask::{Ask, AtRecord, Told};
pub(crate) use due::Due;
#[cfg(feature = "redis")]
pub(crate) use heard::{Cause, Heard, Heards, Order};
pub(crate) use together::Meeting;

/// What one request asks of the engine, and what is known without asking.
pub(crate) struct Plan<L: HoldsLimit = NamedLimit> {
    pub(crate) ask: Ask<L>,
    /// Every tier in file order; those that are asked for get their numbers from the answer.
    pub(crate) judged: Tiers,
    /// What is done after the decision, whatever it was.
    pub(crate) dues: Vec<Due<L>>,
    /// The record that the decision opens, or would open if there were room for it.
    pub(crate) opening: Option<Arc<Opening>>,
    /// Whether subjects go by two secrets, and so each tier is asked for twice.
    twofold: bool,
}

/// A way to hold limits that are taken from a policy that lives for `'p`.
pub(crate) trait TakesLimit<'p>: HoldsLimit + From<&'p NamedLimit> {}

impl<'p, L: HoldsLimit + From<&'p NamedLimit>> TakesLimit<'p> for L {}

/// Whether room is to be used, or only looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    ToCharge,
    ToPeek,
}

impl<L: HoldsLimit> Plan<L> {
    pub(crate) fn of_request<'p>(
        policy: &'p Policy,
        request: &Request<'_>,
        secret: &Secret,
        asking: Asking,
    ) -> Plan<L>
    where
        L: TakesLimit<'p>,
    {
        Plan::of_rules(&policy.met(request), request, secret, asking)
    }

    /// The plan of a request that meets these rules.
    pub(crate) fn of_rules<'p>(
        rules: &[Met<'p>],
        request: &Request<'_>,
        secret: &Secret,
        asking: Asking,
    ) -> Plan<L>
    where
        L: TakesLimit<'p>,
    {
        let free = Cost::requests(0);
        let cost = if asking == Asking::ToPeek { &free } else { request.cost() };
        let mut plan = Plan::under(secret);
        let count = rules.iter().map(|met| met.limits.len()).sum();
        plan.judged.reserve_exact(count);
        plan.ask.tiers.reserve_exact(count);
        for met in rules {
            for position in 0..met.limits.len() {
                plan.judged.push(Judged::unknown(met, position));
            }
        }
        let mut group = 0;
        for shadow in [false, true] {
            let mut place = 0;
            for met in rules {
                if (met.rule.mode() == Mode::Shadow) == shadow {
                    group += u16::from(shadow);
                    for key in keys_of(met.rule, request, secret) {
                        plan.add_rule(met, place, key, cost, group);
                    }
                }
                place += met.limits.len();
            }
        }
        if rules.iter().any(|met| met.rule.postpaid()) {
            let mut place = 0;
            for met in rules {
                for key in keys_of(met.rule, request, secret) {
                    plan.add_postpaid(met, place, key, cost, &mut group);
                }
                place += met.limits.len();
            }
        }
        plan
    }

    /// A look at the tiers of one rule for one subject, as if the rule were enforced.
    pub(crate) fn of_subject<'p>(met: &Met<'p>, subject: &Request<'_>, secret: &Secret) -> Plan<L>
    where
        L: TakesLimit<'p>,
    {
        let mut plan = Plan::under(secret);
        for position in 0..met.limits.len() {
            plan.judged.push(Judged { shadow: false, ..Judged::unknown(met, position) });
        }
        for key in keys_of(met.rule, subject, secret) {
            plan.add_rule(met, 0, key, &Cost::requests(0), 0);
        }
        plan
    }

    /// Of a limit that comes with the request, for a subject by its key under each secret.
    pub(crate) fn ad_hoc<'p>(
        keys: impl IntoIterator<Item = SubjectKey>,
        limit: &'p NamedLimit,
        cost: &Cost<'_>,
    ) -> Plan<L>
    where
        L: TakesLimit<'p>,
    {
        let mut plan = Plan::empty();
        plan.judged.push(Judged::ad_hoc());
        let cost = cost.of_limit(limit.limit());
        for key in keys {
            plan.add_tier(AskTier { cost, attributes: 1, ..AskTier::new(key, limit) });
        }
        plan.twofold = plan.ask.tiers.len() > 1;
        plan
    }

    /// What has to have room for it, with the places in the decision; nothing where it never can have.
    pub(crate) fn wanted(&self) -> SmallVec<[(usize, Wanted); 4]> {
        if self.ask.intent == Intent::Peek {
            return SmallVec::new();
        }
        let enforced = self.ask.tiers.iter().filter(|tier| tier.group == 0);
        let wanted = |tier: &AskTier<L>| Wanted { tier: tier.name(), cost: tier.cost };
        enforced.map(|tier| (usize::from(tier.place), wanted(tier))).collect()
    }

    /// How long its slots are held at most, if it charges any.
    pub(crate) fn holds_slots_us(&self) -> Option<u64> {
        if self.ask.intent != Intent::Charge {
            return None;
        }
        let hold_us = |tier: &AskTier<L>| match tier.numbers() {
            Numbers::Concurrency(numbers) if tier.cost > 0 => Some(numbers.hold_us),
            _ => None,
        };
        self.ask.tiers.iter().filter_map(hold_us).max()
    }

    /// Returns what is noted of the record that the plan opens.
    pub(crate) fn noted(&self) -> Noted {
        self.opening.as_ref().map(|opening| opening.noted()).unwrap_or_default()
    }

    /// Whether there is anything that only the engine knows.
    pub(crate) fn asks(&self) -> bool {
        !self.ask.tiers.is_empty()
    }

    /// In what order shards are to be asked: at once only if every rule says so. `policy` decides the plan, or none for
    /// a limit that came with the request.
    #[cfg(feature = "redis")]
    pub(crate) fn order(&self, policy: Option<&Policy>) -> Order {
        let is_parallel = |tier: &AskTier<L>| {
            policy.is_some_and(|policy| policy.rule_at(self.rule_of(tier)).is_parallel())
        };
        match self.ask.tiers.iter().all(is_parallel) {
            true => Order::AtOnce,
            false => Order::OneByOne,
        }
    }

    /// The index of the rule of a tier that is asked for.
    #[cfg(feature = "redis")]
    pub(crate) fn rule_of(&self, tier: &AskTier<L>) -> u32 {
        self.judged[usize::from(tier.place)].rule
    }

    /// Splits the plan into what is asked, and where the answers go.
    #[inline]
    pub(crate) fn split(&mut self) -> (&Ask<L>, Answers<'_, L>) {
        let Plan { ask, judged, twofold, .. } = self;
        (ask, Answers { judged, asked: &ask.tiers, twins: twofold.then(Vec::new), number: 0 })
    }

    /// Takes over what is known of each tier asked, and from whom.
    #[cfg(feature = "redis")]
    pub(crate) fn take(&mut self, heard: &[Heard]) {
        for (number, (one, tier)) in heard.iter().zip(&self.ask.tiers).enumerate() {
            let twin = self.twin(number).map(|twin| heard[twin]);
            let judged = &mut self.judged[usize::from(tier.place)];
            match &twin.map_or(*one, |twin| twin.and(*one)) {
                Heard::Store(tier) => judged.take(tier, Source::Store),
                Heard::Fallback(tier, cause) => {
                    judged.take(tier, Source::Fallback);
                    judged.overloaded = *cause == Cause::Overload;
                }
                Heard::OutagePolicy { passes, cause } => {
                    hear_policy(judged, *passes);
                    judged.overloaded = *cause == Cause::Overload;
                }
                Heard::Refused { retry_after_us, remaining, reset_after_us } => {
                    judged.source = Source::DenialCache;
                    judged.verdict = Verdict::Denied;
                    judged.retry_after_us = (*retry_after_us).into();
                    judged.remaining = (*remaining).into();
                    judged.reset_after_us = (*reset_after_us).into();
                }
                Heard::GivenBack | Heard::Nobody => {}
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
            ask: Ask { intent: Intent::Charge, record: AtRecord::None, tiers: SmallVec::new() },
            judged: SmallVec::new(),
            dues: Vec::new(),
            opening: None,
            twofold: false,
        }
    }

    /// Which of the tiers asked before is the same under the other secret.
    #[cfg(feature = "redis")]
    fn twin(&self, number: usize) -> Option<usize> {
        self.twofold.then(|| twin_of(&self.ask.tiers, number)).flatten()
    }

    /// Asks for the tiers of one rule, whose place among all begins at `first`. A rule that can
    /// never allow is only peeked at: enforced, so is the whole decision.
    fn add_rule<'p>(
        &mut self,
        met: &Met<'p>,
        first: usize,
        key: SubjectKey,
        cost: &Cost<'_>,
        group: u16,
    ) where
        L: TakesLimit<'p>,
    {
        let asked_before = self.ask.tiers.len();
        let attributes = met.rule.key().len() as u8;
        let mut hopeless = false;
        // A decision has 64 tiers at most.
        for (place, limit) in (first as u16..).zip(met.limits) {
            let cost = cost.of_limit(limit.limit());
            if met.rule.postpaid() && cost > 0 {
                continue;
            }
            let tier = AskTier { cost, group, place, attributes, ..AskTier::new(key, limit) };
            hopeless |= self.add_tier(tier);
        }
        if hopeless && group > 0 {
            self.ask.tiers[asked_before..].iter_mut().for_each(|tier| tier.cost = 0);
        }
    }

    /// Asks for those tiers of a post-paid rule that are charged, each in a group of its own: what
    /// has room is charged by the decision if that allows, all else by force after it.
    fn add_postpaid<'p>(
        &mut self,
        met: &Met<'p>,
        first: usize,
        key: SubjectKey,
        cost: &Cost<'_>,
        group: &mut u16,
    ) where
        L: TakesLimit<'p>,
    {
        let attributes = met.rule.key().len() as u8;
        for (place, limit) in (first as u16..).zip(met.limits) {
            let cost = cost.of_limit(limit.limit());
            if !met.rule.postpaid() || cost == 0 {
                continue;
            }
            *group += 1;
            let tier =
                AskTier { cost, group: *group, place, attributes, ..AskTier::new(key, limit) };
            self.judged[usize::from(place)].advisory = true;
            if self.add_tier(tier) {
                // Never too much for ever: what is forced ends at twice the capacity.
                self.judged[usize::from(place)].verdict = Verdict::Denied;
            }
            if limit.numbers().is_some() {
                let tier = tier.under(L::from(limit));
                self.dues.push(Due { tier, change: Change::Force(cost) });
            }
        }
    }

    /// Asks for one tier, unless its limit keeps no state; answers whether it can never allow.
    fn add_tier<'p>(&mut self, tier: AskTier<&'p NamedLimit>) -> bool
    where
        L: TakesLimit<'p>,
    {
        let limit = tier.limit;
        let judged = &mut self.judged[usize::from(tier.place)];
        let capacity = limit.limit().capacity();
        judged.capacity = capacity.into();
        let hopeless = capacity.is_some_and(|capacity| tier.cost.max(1) > capacity);
        if hopeless {
            judged.verdict = Verdict::Never;
            judged.remaining = Some(0).filter(|_| capacity == Some(0)).into();
            if tier.group == 0 {
                self.ask.intent = Intent::Peek;
            }
        }
        match limit.limit().kind() {
            Kind::Unlimited => judged.retry_after_us = Some(0).into(),
            Kind::Nothing => {}
            Kind::Counted(_) => {
                let cost = if hopeless { 0 } else { tier.cost };
                self.ask.tiers.push(AskTier { cost, ..tier.under(L::from(limit)) });
            }
        }
        hopeless
    }
}

/// Where the answers of a store to a plan go, one for each tier asked, in order.
pub(crate) struct Answers<'a, L> {
    judged: &'a mut Tiers,
    asked: &'a [AskTier<L>],
    /// The answers before, where subjects go by two secrets and the tighter of two answers holds.
    twins: Option<Vec<ToldTier>>,
    number: usize,
}

impl<L> Answers<'_, L> {
    /// Takes over the next answer.
    #[inline]
    pub(crate) fn take(&mut self, told: ToldTier) {
        let mut tightest = told;
        if let Some(twins) = &mut self.twins {
            let twin = twin_of(self.asked, self.number).map(|before| twins[before]);
            tightest = twin.filter(|twin| twin.tightness() > told.tightness()).unwrap_or(told);
            twins.push(told);
        }
        let place = usize::from(self.asked[self.number].place);
        self.judged[place].take(&tightest, Source::Store);
        self.number += 1;
    }
}

/// Which of the tiers asked before one is of the same counter, under the other secret.
fn twin_of<L>(asked: &[AskTier<L>], number: usize) -> Option<usize> {
    let place = asked[number].place;
    asked[..number].iter().position(|known| known.place == place)
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
fn hear_policy(judged: &mut Judged, passes: bool) {
    judged.source = Source::OutagePolicy;
    if judged.verdict == Verdict::Allowed {
        judged.verdict = if passes { Verdict::Allowed } else { Verdict::Denied };
        judged.retry_after_us = Some(0).filter(|_| passes).into();
    }
}
