//! From a request to the tiers that it asks for, and from the engine's answer back to them.

use smallvec::SmallVec;

use crate::algorithm::{Intent, Numbers};
use crate::counter::{AskTier, Change, ToldTier};
use crate::decision::{Judged, Source, Tiers, Verdict};
use crate::limit::{Kind, NamedLimit};
use crate::policy::{Met, Mode, Policy, Rule};
use crate::request::{Cost, Request};
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
#[derive(Debug)]
pub(crate) struct Plan<'p> {
    pub(crate) ask: Ask<'p>,
    /// Every tier in file order; those that are asked for get their numbers from the answer.
    pub(crate) judged: Tiers,
    /// For each tier asked, its place in `judged`, and its rule where it has one.
    asked: SmallVec<[(usize, Option<&'p Rule>); 4]>,
    /// What is done after the decision, whatever it was.
    pub(crate) dues: Vec<Due<'p>>,
    /// Whether subjects go by two secrets, and so each tier is asked for twice.
    twofold: bool,
}

/// One tier that a request meets.
#[derive(Clone, Copy)]
struct Tier<'p> {
    key: SubjectKey,
    limit: &'p NamedLimit,
    cost: u64,
    /// As in [`AskTier`].
    group: u16,
    attributes: u8,
    rule: Option<&'p Rule>,
}

/// Whether room is to be used, or only looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    ToCharge,
    ToPeek,
}

impl<'p> Plan<'p> {
    pub(crate) fn of_request(
        policy: &'p Policy,
        request: &Request<'_>,
        secret: &Secret,
        asking: Asking,
    ) -> Plan<'p> {
        Plan::of_rules(&policy.met(request), request, secret, asking)
    }

    /// The plan of a request that meets these rules.
    pub(crate) fn of_rules(
        rules: &[Met<'p>],
        request: &Request<'_>,
        secret: &Secret,
        asking: Asking,
    ) -> Plan<'p> {
        let free = Cost::requests(0);
        let cost = if asking == Asking::ToPeek { &free } else { request.cost() };
        let mut plan = Plan::under(secret);
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
    pub(crate) fn of_subject(met: &Met<'p>, subject: &Request<'_>, secret: &Secret) -> Plan<'p> {
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
    pub(crate) fn ad_hoc(
        keys: impl IntoIterator<Item = SubjectKey>,
        limit: &'p NamedLimit,
        cost: &Cost<'_>,
    ) -> Plan<'p> {
        let mut plan = Plan::empty();
        plan.judged.push(Judged::ad_hoc());
        let cost = cost.of_limit(limit.limit());
        for key in keys {
            plan.add_tier(0, Tier { key, limit, cost, group: 0, attributes: 1, rule: None });
        }
        plan.twofold = plan.asked.len() > 1;
        plan
    }

    /// What has to have room for it, with the places in the decision; nothing where it never can have.
    pub(crate) fn wanted(&self) -> SmallVec<[(usize, Wanted); 4]> {
        if self.ask.intent == Intent::Peek {
            return SmallVec::new();
        }
        let enforced = self.asked.iter().zip(&self.ask.tiers).filter(|(_, tier)| tier.group == 0);
        let wanted = |tier: &AskTier<'_>| Wanted { tier: tier.name(), cost: tier.cost };
        enforced.map(|((place, _), tier)| (*place, wanted(tier))).collect()
    }

    /// How long its slots are held at most, if it charges any.
    pub(crate) fn holds_slots_us(&self) -> Option<u64> {
        if self.ask.intent != Intent::Charge {
            return None;
        }
        let hold_us = |tier: &AskTier<'_>| match tier.numbers {
            Numbers::Concurrency(numbers) if tier.cost > 0 => Some(numbers.hold_us),
            _ => None,
        };
        self.ask.tiers.iter().filter_map(hold_us).max()
    }

    /// Whether there is anything that only the engine knows.
    pub(crate) fn asks(&self) -> bool {
        !self.ask.tiers.is_empty()
    }

    /// For each tier asked, its place among all.
    pub(crate) fn asked_places(&self) -> impl Iterator<Item = usize> {
        self.asked.iter().map(|(place, _)| *place)
    }

    /// The rules of the asked tiers, in the order of the ask; none for a limit that came with the
    /// request.
    #[cfg(feature = "redis")]
    pub(crate) fn rules(&self) -> SmallVec<[Option<&Rule>; 4]> {
        self.asked.iter().map(|(_, rule)| *rule).collect()
    }

    /// In what order shards are to be asked: at once only if every rule says so.
    #[cfg(feature = "redis")]
    pub(crate) fn order(&self) -> Order {
        match self.asked.iter().all(|(_, rule)| rule.is_some_and(Rule::is_parallel)) {
            true => Order::AtOnce,
            false => Order::OneByOne,
        }
    }

    /// Splits the plan into what is asked, and where the answers go.
    #[inline]
    pub(crate) fn split(&mut self) -> (&Ask<'p>, Answers<'_, 'p>) {
        let Plan { ask, judged, asked, twofold, .. } = self;
        (ask, Answers { judged, asked, twins: twofold.then(Vec::new), number: 0 })
    }

    /// The tiers with what is known of each, and from whom.
    #[cfg(feature = "redis")]
    pub(crate) fn judged_from(mut self, heard: &[Heard]) -> Tiers {
        for (number, (one, (place, _))) in heard.iter().zip(&self.asked).enumerate() {
            let twin = self.twin(number).map(|twin| heard[twin]);
            let judged = &mut self.judged[*place];
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
        self.judged
    }

    fn under(secret: &Secret) -> Plan<'p> {
        let mut plan = Plan::empty();
        plan.twofold = secret.previous().is_some();
        plan
    }

    fn empty() -> Plan<'p> {
        Plan {
            ask: Ask { intent: Intent::Charge, record: AtRecord::None, tiers: SmallVec::new() },
            judged: SmallVec::new(),
            asked: SmallVec::new(),
            dues: Vec::new(),
            twofold: false,
        }
    }

    /// Which of the tiers asked before is the same under the other secret.
    fn twin(&self, number: usize) -> Option<usize> {
        let place = self.asked[number].0;
        let before = || self.asked[..number].iter().position(|(known, _)| *known == place);
        self.twofold.then(before).flatten()
    }

    /// Asks for the tiers of one rule, whose place among all begins at `first`. A rule that can
    /// never allow is only peeked at: enforced, so is the whole decision.
    fn add_rule(
        &mut self,
        met: &Met<'p>,
        first: usize,
        key: SubjectKey,
        cost: &Cost<'_>,
        group: u16,
    ) {
        let asked_before = self.ask.tiers.len();
        let (attributes, rule) = (met.rule.key().len() as u8, Some(met.rule));
        let mut hopeless = false;
        for (position, limit) in met.limits.iter().enumerate() {
            let cost = cost.of_limit(limit.limit());
            if met.rule.postpaid() && cost > 0 {
                continue;
            }
            let tier = Tier { key, limit, cost, group, attributes, rule };
            hopeless |= self.add_tier(first + position, tier);
        }
        if hopeless && group > 0 {
            self.ask.tiers[asked_before..].iter_mut().for_each(|tier| tier.cost = 0);
        }
    }

    /// Asks for those tiers of a post-paid rule that are charged, each in a group of its own: what
    /// has room is charged by the decision if that allows, all else by force after it.
    fn add_postpaid(
        &mut self,
        met: &Met<'p>,
        first: usize,
        key: SubjectKey,
        cost: &Cost<'_>,
        group: &mut u16,
    ) {
        let (attributes, rule) = (met.rule.key().len() as u8, Some(met.rule));
        for (place, limit) in (first..).zip(met.limits) {
            let cost = cost.of_limit(limit.limit());
            if !met.rule.postpaid() || cost == 0 {
                continue;
            }
            *group += 1;
            let tier = Tier { key, limit, cost, group: *group, attributes, rule };
            self.judged[place].advisory = true;
            if self.add_tier(place, tier) {
                // Never too much for ever: what is forced ends at twice the capacity.
                self.judged[place].verdict = Verdict::Denied;
            }
            if let Kind::Counted(numbers) = limit.limit().kind() {
                let tier =
                    AskTier { key, limit, numbers, cost, group: *group, attributes, owed: 0 };
                self.dues.push(Due { place, tier, change: Change::Force(cost) });
            }
        }
    }

    /// Asks for one tier, unless its limit keeps no state; answers whether it can never allow.
    fn add_tier(&mut self, place: usize, tier: Tier<'p>) -> bool {
        let Tier { key, limit, cost, group, attributes, rule } = tier;
        let judged = &mut self.judged[place];
        let capacity = limit.limit().capacity();
        judged.capacity = capacity.into();
        let hopeless = capacity.is_some_and(|capacity| cost.max(1) > capacity);
        if hopeless {
            judged.verdict = Verdict::Never;
            judged.remaining = Some(0).filter(|_| capacity == Some(0)).into();
            if group == 0 {
                self.ask.intent = Intent::Peek;
            }
        }
        match limit.limit().kind() {
            Kind::Unlimited => judged.retry_after_us = Some(0).into(),
            Kind::Nothing => {}
            Kind::Counted(numbers) => {
                let cost = if hopeless { 0 } else { cost };
                self.asked.push((place, rule));
                self.ask.tiers.push(AskTier {
                    key,
                    limit,
                    numbers,
                    cost,
                    group,
                    attributes,
                    owed: 0,
                });
            }
        }
        hopeless
    }
}

/// Where the answers of a store to a plan go, one for each tier asked, in order.
pub(crate) struct Answers<'a, 'p> {
    judged: &'a mut Tiers,
    asked: &'a [(usize, Option<&'p Rule>)],
    /// The answers before, where subjects go by two secrets and the tighter of two answers holds.
    twins: Option<Vec<ToldTier>>,
    number: usize,
}

impl Answers<'_, '_> {
    /// Takes over the next answer.
    #[inline]
    pub(crate) fn take(&mut self, told: ToldTier) {
        let place = self.asked[self.number].0;
        let mut tightest = told;
        if let Some(twins) = &mut self.twins {
            let before = self.asked[..self.number].iter().position(|(known, _)| *known == place);
            let twin = before.map(|before| twins[before]);
            tightest = twin.filter(|twin| twin.tightness() > told.tightness()).unwrap_or(told);
            twins.push(told);
        }
        self.judged[place].take(&tightest, Source::Store);
        self.number += 1;
    }
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
