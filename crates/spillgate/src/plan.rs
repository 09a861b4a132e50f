//! From a request to the tiers that it asks for, and from the engine's answer back to them.

use smallvec::SmallVec;

use crate::algorithm::Intent;
use crate::decision::{Judged, Source, Tiers, Verdict};
use crate::engine::{Ask, AskTier, Told};
use crate::limit::{Kind, NamedLimit};
use crate::policy::{Met, Mode, OnOutage, Policy};
use crate::request::{Cost, Request};
use crate::subject::{Secret, SubjectKey};

/// What one request asks of the engine, and what is known without asking.
#[derive(Debug)]
pub(crate) struct Plan<'p> {
    pub(crate) ask: Ask<'p>,
    /// Every tier in file order; those that are asked for get their numbers from the answer.
    pub(crate) judged: Tiers,
    /// For each tier asked, its place in `judged` and what its rule says of an outage.
    asked: SmallVec<[(usize, OnOutage); 1]>,
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
        let met = policy.met(request);
        let free = Cost::requests(0);
        let cost = if asking == Asking::ToPeek { &free } else { request.cost() };
        let mut plan = Plan::empty();
        for met in &met {
            for position in 0..met.limits.len() {
                plan.judged.push(Judged::unknown(met, position));
            }
        }
        let mut group = 0;
        for shadow in [false, true] {
            let mut place = 0;
            for met in &met {
                if (met.rule.mode() == Mode::Shadow) == shadow {
                    group += u16::from(shadow);
                    let key = met.rule.subject_key(request, secret);
                    plan.add_rule(met, place, key, cost, group);
                }
                place += met.limits.len();
            }
        }
        plan
    }

    pub(crate) fn ad_hoc(
        domain: &str,
        key: &str,
        limit: &'p NamedLimit,
        cost: &Cost<'_>,
        secret: &Secret,
    ) -> Plan<'p> {
        let id = secret.hash_ad_hoc(domain, key);
        let mut plan = Plan::empty();
        plan.judged.push(Judged::ad_hoc());
        let cost = cost.of(limit.limit().unit());
        plan.add_tier(0, SubjectKey { tag: id, id, rule: 0 }, limit, cost, 0, OnOutage::Local);
        plan
    }

    /// Whether there is anything that only the engine knows.
    pub(crate) fn asks(&self) -> bool {
        !self.ask.tiers.is_empty()
    }

    /// What the rules of the asked tiers say of an outage, in the order of the ask.
    pub(crate) fn on_outage(&self) -> impl Iterator<Item = OnOutage> {
        self.asked.iter().map(|(_, on_outage)| *on_outage)
    }

    /// The tiers with their numbers, as an engine told them.
    pub(crate) fn judged_by(mut self, told: &Told, source: Source) -> Tiers {
        for (tier, (place, _)) in told.tiers.iter().zip(&self.asked) {
            let judged = &mut self.judged[*place];
            judged.source = source;
            judged.remaining = Some(tier.reading.remaining);
            judged.reset_after_us = Some(tier.reading.reset_after_us);
            judged.charge = tier.charge;
            if judged.verdict != Verdict::Never {
                judged.verdict = if tier.fits { Verdict::Allowed } else { Verdict::Denied };
                judged.retry_after_us = tier.reading.retry_after_us;
            }
        }
        self.judged
    }

    /// The tiers where no engine answers: whatever `judge` says of each that was asked.
    pub(crate) fn judged_with(
        mut self,
        mut judge: impl FnMut(usize, OnOutage, &mut Judged),
    ) -> Tiers {
        for (i, (place, on_outage)) in self.asked.iter().enumerate() {
            judge(i, *on_outage, &mut self.judged[*place]);
        }
        self.judged
    }

    fn empty() -> Plan<'p> {
        let ask = Ask { intent: Intent::Charge, tiers: SmallVec::new() };
        Plan { ask, judged: SmallVec::new(), asked: SmallVec::new() }
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
        let mut hopeless = false;
        for (position, limit) in met.limits.iter().enumerate() {
            let cost = cost.of(limit.limit().unit());
            let on_outage = met.rule.on_outage();
            hopeless |= self.add_tier(first + position, key, limit, cost, group, on_outage);
        }
        if hopeless && group > 0 {
            self.ask.tiers[asked_before..].iter_mut().for_each(|tier| tier.cost = 0);
        }
    }

    /// Asks for one tier, unless its limit keeps no state; answers whether it can never allow.
    fn add_tier(
        &mut self,
        place: usize,
        key: SubjectKey,
        limit: &'p NamedLimit,
        cost: u64,
        group: u16,
        on_outage: OnOutage,
    ) -> bool {
        let judged = &mut self.judged[place];
        judged.capacity = limit.limit().capacity();
        let hopeless = judged.capacity.is_some_and(|capacity| cost.max(1) > capacity);
        if hopeless {
            judged.verdict = Verdict::Never;
            judged.remaining = Some(0).filter(|_| judged.capacity == Some(0));
            if group == 0 {
                self.ask.intent = Intent::Peek;
            }
        }
        match limit.limit().kind() {
            Kind::Unlimited => judged.retry_after_us = Some(0),
            Kind::Nothing => {}
            Kind::Counted(numbers) => {
                let cost = if hopeless { 0 } else { cost };
                self.asked.push((place, on_outage));
                self.ask.tiers.push(AskTier { key, limit, numbers, cost, group });
            }
        }
        hopeless
    }
}
