//! Why a request would be decided as it would: which rules it meets and which not, how each counter stands,
//! and what a raise would change. Nothing is charged and nothing is counted.

use std::sync::Arc;

use super::{Inner, Limiter};
use crate::algorithm::Intent;
use crate::counter::PlannedCharge;
use crate::decision::{CounterOutcomes, Decision, LimitDecision, Names};
use crate::engine::Engine;
#[cfg(feature = "redis")]
use crate::engine::Redis;
use crate::limit::NamedLimit;
use crate::plan::{Plan, PlanMode, RecordAction, Transaction};
use crate::policy::{Mode, NotMatched, Policy, Rule};
use crate::request::Request;

mod sentence;
pub(crate) mod wait;

/// What a request would be told, and why.
#[derive(Clone, Debug)]
pub struct Explanation {
    decision: Decision,
    remembered: Option<Decision>,
    leased: Option<Decision>,
    rules: Vec<ExplainedRule>,
    left_out: usize,
    domain: String,
    counters: Vec<Notes>,
}

/// One rule of the request's domain.
#[derive(Clone, Debug)]
pub struct ExplainedRule {
    name: String,
    mode: Mode,
    unmet: Option<NotMatched>,
    overridden: Option<OverriddenBy>,
}

/// Who gave a subject other limits than the rule's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverriddenBy {
    /// The policy file.
    File,
    /// An operator, while running.
    Operator,
}

/// One counter of the decision, and what there is to say of it.
#[derive(Clone, Copy, Debug)]
pub struct ExplainedLimit<'e> {
    decision: LimitDecision<'e>,
    notes: &'e Notes,
}

/// What would be so under twice the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raise {
    quota: String,
    remaining: u64,
    fits: bool,
}

/// What a counter's decision does not say.
#[derive(Clone, Debug)]
struct Notes {
    cost: u64,
    raise: Option<Raise>,
}

impl Limiter {
    /// What this request would be told now, and why; nothing is charged, and nothing counted.
    ///
    /// With nobody asking in between, the next check has the verdict of [`Explanation::answer`]. What
    /// this process still owes the store after an outage is not foreseen: it is charged with the next
    /// call, or within a second.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limiter, Policy, Request};
    /// let policy = "[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"5/minute\"]";
    /// let limiter = Limiter::builder().policy(Policy::from_toml(policy)?).build().await?;
    /// let request = Request::new().with("ip", "203.0.113.7");
    /// let explained = limiter.explain(&request).await;
    /// assert_eq!(
    ///     explained.limits().next().unwrap().sentence(),
    ///     "login/0 (5/1m) has room: 5 of 5 requests are left, and this costs 1."
    /// );
    /// assert_eq!(limiter.check(&request).await.remaining(), Some(4), "nothing was charged before");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn explain(&self, request: &Request<'_>) -> Explanation {
        let inner = &self.inner;
        let policy = self.policy();
        let plan = || Box::new(Plan::of_request(&policy, request, &inner.secret, PlanMode::Charge));
        let decision = |judged| Decision::new(judged, Names::Policy(Arc::clone(&policy)));
        let remembered = inner.remembered(plan()).map(decision);
        #[cfg(feature = "redis")]
        let leased = inner.would_pay(*plan(), &policy).map(decision);
        #[cfg(not(feature = "redis"))]
        let leased = None;
        let decided = decision(inner.looked_at(plan(), &policy).await);
        let raises = inner.raises(&plan(), request).await;
        let notes = decided.limits().zip(raises).map(|(counter, raise)| Notes {
            cost: request.cost().of_limit(counter.definition()),
            raise,
        });
        let counters = notes.collect();
        let (rules, left_out) = explained_rules(&policy, request);
        let domain = request.domain().to_owned();
        Explanation { decision: decided, remembered, leased, rules, left_out, domain, counters }
    }
}

impl Explanation {
    /// What the state says, wherever it lives.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// What a check through this process would be told: yes where its leases pay, a remembered refusal
    /// where one holds still, else what the state says. The numbers are those before a charge.
    pub fn answer(&self) -> &Decision {
        self.leased.as_ref().or(self.remembered.as_ref()).unwrap_or(&self.decision)
    }

    /// The admission that this process would make by what it has taken ahead.
    pub fn leased(&self) -> Option<&Decision> {
        self.leased.as_ref()
    }

    /// The refusal that this process remembers, if one holds still.
    pub fn remembered(&self) -> Option<&Decision> {
        self.remembered.as_ref()
    }

    /// The rules of the request's domain, those that it meets first; some of the others where they are
    /// many.
    pub fn rules(&self) -> &[ExplainedRule] {
        &self.rules
    }

    /// How many rules of the domain are not listed; the request meets none of them.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Every counter that the request meets, in the order of the policy.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = ExplainedLimit<'_>> {
        let counters = self.decision.limits().zip(&self.counters);
        counters.map(|(decision, notes)| ExplainedLimit { decision, notes })
    }

    /// The whole of it in one sentence.
    pub fn sentence(&self) -> String {
        sentence::of_all(self)
    }
}

impl ExplainedRule {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its mode in force.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Why the request does not meet it; `None` if it does.
    pub fn unmet(&self) -> Option<&NotMatched> {
        self.unmet.as_ref()
    }

    /// Whether other limits than the rule's are in force for this subject.
    pub fn overridden(&self) -> Option<OverriddenBy> {
        self.overridden
    }
}

impl<'e> ExplainedLimit<'e> {
    /// What it would have said, and its numbers before any charge.
    pub fn decision(&self) -> LimitDecision<'e> {
        self.decision
    }

    /// What the request would cost it.
    pub fn cost(&self) -> u64 {
        self.notes.cost
    }

    /// How much of it is used.
    pub fn used(&self) -> Option<u64> {
        Some(self.decision.capacity()?.saturating_sub(self.decision.remaining()?))
    }

    /// What would be so under twice the limit; `None` where nobody could say.
    pub fn raise(&self) -> Option<&'e Raise> {
        self.notes.raise.as_ref()
    }

    /// All of that for people.
    pub fn sentence(&self) -> String {
        sentence::of_counter(self)
    }
}

impl Raise {
    /// The larger limit.
    pub fn quota(&self) -> &str {
        &self.quota
    }

    /// What would be left of it now.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Whether this request would have room.
    pub fn fits(&self) -> bool {
        self.fits
    }
}

impl Inner {
    /// What a plan would be told, without charging it.
    async fn looked_at(&self, mut plan: Box<Plan>, policy: &Policy) -> CounterOutcomes {
        plan.transaction.intent = Intent::Peek;
        plan.follow_ups.clear();
        self.evaluate(plan, Some(policy)).await.counters
    }

    /// What this process would refuse by itself, because the store has.
    fn remembered(&self, plan: Box<Plan>) -> Option<CounterOutcomes> {
        match &self.engine {
            Engine::Memory(_) => None,
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => self.remembered_of(redis, plan),
        }
    }

    #[cfg(feature = "redis")]
    fn remembered_of(&self, redis: &Redis, mut plan: Box<Plan>) -> Option<CounterOutcomes> {
        if !plan.asks() || !plan.follow_ups.is_empty() {
            return None;
        }
        let outcomes =
            self.denials.would_refuse(redis, &plan.transaction, self.denials.begin(redis))?;
        plan.take(&outcomes);
        Some(plan.counters)
    }

    /// For each counter of a plan, how it would stand under twice its limit: a limit's numbers may change
    /// over live state, so the state is looked at under others.
    async fn raises(&self, plan: &Plan, request: &Request<'_>) -> Vec<Option<Raise>> {
        let mut raises: Vec<Option<Raise>> = plan.counters.iter().map(|_| None).collect();
        let cost = |limit: &NamedLimit| request.cost().of_limit(limit.limit());
        let raised = plan.transaction.counters.iter().filter_map(|counter| {
            let limit = counter.limit.raised()?;
            let cost = Some(cost(&limit)).filter(|cost| Some(*cost) <= limit.limit().capacity());
            let cost = cost.unwrap_or_default();
            Some(PlannedCharge { cost, group: 0, ..counter.under(limit) })
        });
        let transaction = Transaction {
            intent: Intent::Peek,
            record: RecordAction::None,
            counters: raised.collect(),
        };
        if transaction.counters.is_empty() {
            return raises;
        }
        let Ok(reply) = self.engine.decide_one(&transaction).await else { return raises };
        for (PlannedCharge { index, limit, .. }, reply) in
            transaction.counters.iter().zip(reply.counters)
        {
            let raise = &mut raises[usize::from(*index)];
            let fits = reply.fits && limit.limit().capacity() >= Some(cost(limit));
            let (quota, remaining) = (limit.limit().to_string(), reply.reading.remaining);
            // A subject that goes by two secrets is judged by both.
            let (remaining, fits) = raise.take().map_or((remaining, fits), |other| {
                (remaining.min(other.remaining), fits && other.fits)
            });
            *raise = Some(Raise { quota, remaining, fits });
        }
        raises
    }
}

/// The rules of the domain, as far as they are told.
fn explained_rules(policy: &Policy, request: &Request<'_>) -> (Vec<ExplainedRule>, usize) {
    let matched = policy.matched(request).into_iter().map(|matched| {
        let overridden = matched.overridden.map(|place| match policy.is_set_while_running(place) {
            true => OverriddenBy::Operator,
            false => OverriddenBy::File,
        });
        ExplainedRule { overridden, ..ExplainedRule::of(matched.rule, None) }
    });
    let mut rules: Vec<ExplainedRule> = matched.collect();
    let mut left_out = 0;
    for rule in policy.rules().filter(|rule| rule.domain() == request.domain()) {
        match rule.unmet_by(request) {
            None => {}
            Some(_) if rules.len() >= RULES_MAX => left_out += 1,
            unmet => rules.push(ExplainedRule::of(rule, unmet)),
        }
    }
    (rules, left_out)
}

impl ExplainedRule {
    fn of(rule: &Rule, unmet: Option<NotMatched>) -> ExplainedRule {
        ExplainedRule { name: rule.name().to_owned(), mode: rule.mode(), unmet, overridden: None }
    }
}

/// More than anybody reads.
const RULES_MAX: usize = 64;
