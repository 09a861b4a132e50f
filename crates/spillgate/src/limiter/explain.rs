//! Explains a decision: which rules match and which do not, how each counter stands, and what a
//! raise would change. Nothing is charged or counted.

use super::{Inner, Limiter};
use crate::algorithm::Intent;
use crate::counter::PlannedCharge;
use crate::decision::{self, CounterOutcomes, Decision, LimitDecision};
use crate::limit::NamedLimit;
use crate::plan::{Plan, PlanMode, RecordAction, Transaction};
use crate::policy::{Mode, NotMatched, Policy, Rule};
use crate::request::{Cost, Request, Value};

mod sentence;
pub(crate) mod wait;

/// The answer that a request would get, with the reasons.
///
/// [`Limiter::explain`] returns it.
#[derive(Clone, Debug)]
pub struct Explanation {
    decision: Decision,
    remembered: Option<Decision>,
    leased: Option<Decision>,
    rules: Vec<ExplainedRule>,
    left_out: usize,
    domain: String,
    elsewhere: Vec<(String, String)>,
    /// The attributes that are paths with two readings, each with its sentence.
    paths: Vec<String>,
    counters: Vec<Notes>,
}

/// One rule of the request's domain.
///
/// [`Limiter::explain`] shows each.
#[derive(Clone, Debug)]
pub struct ExplainedRule {
    name: String,
    mode: Mode,
    not_matched: Option<NotMatched>,
    overridden: Option<OverriddenBy>,
}

/// The origin of an override that replaces a rule's limits for a subject.
///
/// [`Limiter::explain`] shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverriddenBy {
    /// The policy file.
    File,
    /// An operator, by a runtime change.
    Operator,
}

/// One counter of the decision, with the notes on it.
///
/// [`Limiter::explain`] shows each counter.
#[derive(Clone, Copy, Debug)]
pub struct ExplainedLimit<'e> {
    decision: LimitDecision<'e>,
    notes: &'e Notes,
}

/// The state of a counter under twice its limit.
///
/// [`Limiter::explain`] shows it for a denied request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raise {
    quota: String,
    remaining: u64,
    fits: bool,
}

/// Details of a counter that its decision does not have.
#[derive(Clone, Debug)]
struct Notes {
    cost: u64,
    raise: Option<Raise>,
    /// What a rule without any limit does not do, if another one limits the request.
    exempts_not: Option<String>,
}

impl Limiter {
    /// Returns the answer that this request would get now, with the reasons. Nothing is charged or
    /// counted.
    ///
    /// If no other request comes between, the next check has the result of [`Explanation::answer`].
    /// Deferred charges of this instance are not foreseen: after an outage the store gets them with
    /// the next call, or within a second.
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
    ///     "login/0 (5/minute) has room: 5 of 5 requests are left, and this costs 1."
    /// );
    /// assert_eq!(limiter.check(&request).await.remaining(), Some(4), "nothing was charged before");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn explain(&self, request: &Request<'_>) -> Explanation {
        let inner = &self.inner;
        let bound = inner.bind(request);
        let plan = || inner.plan(&bound, PlanMode::Charge);
        let decision = |counters| decision::from_counters(counters, bound.names());
        let (remembered, leased) = match inner.engine.store() {
            None => (None, None),
            Some(store) => (
                store.remembered(plan()).map(decision),
                store.would_pay(plan(), bound.policy()).map(decision),
            ),
        };
        let decided = decision(inner.looked_at(plan(), bound.policy()).await);
        let nothing = Cost::requests(0);
        let cost = if request.refunds() { &nothing } else { request.cost() };
        let raises = inner.raises(&plan(), cost).await;
        let notes = decided.limits().zip(raises).map(|(counter, raise)| Notes {
            cost: cost.of_limit(counter.definition()),
            raise,
            exempts_not: exempts_not(bound.policy(), bound.request(), counter),
        });
        let counters = notes.collect();
        let (rules, left_out) = bound
            .policy()
            .map(|policy| explained_rules(policy, bound.request()))
            .unwrap_or_default();
        let domain = request.domain().to_owned();
        let elsewhere = bound.policy().map(|policy| matched_elsewhere(policy, bound.request()));
        let elsewhere = elsewhere.unwrap_or_default();
        let several = |value: &Value<'_>| value.other_readings().next().is_some();
        let paths = bound.request().values().filter(|(_, value)| several(value));
        let paths = paths.map(|(name, value)| sentence::of_readings(name, value));
        let paths = paths.collect();
        Explanation {
            decision: decided,
            remembered,
            leased,
            rules,
            left_out,
            domain,
            elsewhere,
            paths,
            counters,
        }
    }
}

impl Explanation {
    /// Returns the decision by the stored state alone.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns the answer of a check through this instance: allowed if its leases pay, denied if a
    /// remembered denial still applies, else the decision by the stored state. The numbers are
    /// those before a charge.
    pub fn answer(&self) -> &Decision {
        self.leased.as_ref().or(self.remembered.as_ref()).unwrap_or(&self.decision)
    }

    /// Returns the admission that this instance's leases would pay for, if they do.
    pub fn leased(&self) -> Option<&Decision> {
        self.leased.as_ref()
    }

    /// Returns the denial that this instance remembers, if it still applies.
    pub fn remembered(&self) -> Option<&Decision> {
        self.remembered.as_ref()
    }

    /// Returns the rules of the request's domain, matching ones first. If there are many, only some
    /// of the others are listed. There are none for an inline limit, to which no rule applies.
    pub fn rules(&self) -> &[ExplainedRule] {
        &self.rules
    }

    /// Returns the number of rules in the domain that are not listed. None of them matches the
    /// request.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Returns rules of other domains, each with its domain, that would match the request there.
    pub fn elsewhere(&self) -> &[(String, String)] {
        &self.elsewhere
    }

    /// Returns every counter of the request, in the order of the policy.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = ExplainedLimit<'_>> {
        let counters = self.decision.limits().zip(&self.counters);
        counters.map(|(decision, notes)| ExplainedLimit { decision, notes })
    }

    /// Returns a summary in one sentence.
    pub fn sentence(&self) -> String {
        sentence::of_all(self)
    }
}

impl ExplainedRule {
    /// Returns the name of the rule.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the mode in force.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the reason why the rule does not match the request; `None` if it does.
    pub fn not_matched(&self) -> Option<&NotMatched> {
        self.not_matched.as_ref()
    }

    /// Returns the origin of the override that is in force for this subject; `None` if the rule's
    /// own limits are.
    pub fn overridden(&self) -> Option<OverriddenBy> {
        self.overridden
    }
}

impl<'e> ExplainedLimit<'e> {
    /// Returns the decision of this counter alone, with its numbers before any charge.
    pub fn decision(&self) -> LimitDecision<'e> {
        self.decision
    }

    /// Returns the cost that the request would charge here, in the limit's unit.
    pub fn cost(&self) -> u64 {
        self.notes.cost
    }

    /// Returns the used part of the capacity; `None` if unknown.
    pub fn used(&self) -> Option<u64> {
        Some(self.decision.capacity()?.saturating_sub(self.decision.remaining()?))
    }

    /// Returns the state under twice the limit; `None` if it is unknown.
    pub fn raise(&self) -> Option<&'e Raise> {
        self.notes.raise.as_ref()
    }

    /// Returns a description in plain sentences.
    pub fn sentence(&self) -> String {
        sentence::of_counter(self)
    }
}

impl Raise {
    /// Returns the larger limit.
    pub fn quota(&self) -> &str {
        &self.quota
    }

    /// Returns the quota that would be left under the larger limit.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Returns whether this request would have room under the larger limit.
    pub fn fits(&self) -> bool {
        self.fits
    }
}

impl Inner {
    /// Evaluates a plan without charging it.
    async fn looked_at(&self, mut plan: Box<Plan>, policy: Option<&Policy>) -> CounterOutcomes {
        plan.transaction.intent = Intent::Peek;
        plan.follow_ups.clear();
        self.evaluate(plan, policy, None).await.plan.outcomes
    }

    /// Returns, for each counter of a plan, its state under twice its limit. The parameters of a
    /// limit may change over live state, so the state is read under other parameters.
    async fn raises(&self, plan: &Plan, cost: &Cost<'_>) -> Vec<Option<Raise>> {
        let mut raises: Vec<Option<Raise>> = plan.outcomes.iter().map(|_| None).collect();
        let cost = |limit: &NamedLimit| cost.of_limit(limit.limit());
        let raised = plan.transaction.charges.iter().filter_map(|counter| {
            let limit = counter.limit.raised()?;
            // A charge must not exceed the capacity. A larger cost is read as 0, and denied by
            // `fits` below.
            let cost = Some(cost(&limit)).filter(|cost| Some(*cost) <= limit.limit().capacity());
            let cost = cost.unwrap_or_default();
            Some(PlannedCharge { cost, group: 0, ..counter.under(limit) })
        });
        let transaction = Transaction {
            intent: Intent::Peek,
            record: RecordAction::None,
            charges: raised.collect(),
        };
        if transaction.charges.is_empty() {
            return raises;
        }
        let Ok(reply) = self.engine.read(&transaction).await else { return raises };
        for (PlannedCharge { index, limit, .. }, reply) in
            transaction.charges.iter().zip(reply.replies)
        {
            let fits = reply.fits && limit.limit().capacity() >= Some(cost(limit));
            let (quota, remaining) = (limit.limit().to_string(), reply.reading.remaining);
            raises[usize::from(*index)] = Some(Raise { quota, remaining, fits });
        }
        raises
    }
}

/// Returns the first rules of other domains that would match the request there, each with its
/// domain.
fn matched_elsewhere(policy: &Policy, request: &Request<'_>) -> Vec<(String, String)> {
    let others = policy.rules().filter(|rule| rule.domain() != request.domain());
    let would_match = others.filter(|rule| rule.not_matched_by(request).is_none());
    let named = would_match.map(|rule| (rule.name().to_owned(), rule.domain().to_owned()));
    named.take(ELSEWHERE_MAX).collect()
}

/// Returns that the counter's rule, which has no limit, does not exempt the request from another
/// rule that limits it, with the pattern that would.
fn exempts_not(
    policy: Option<&Policy>,
    request: &Request<'_>,
    counter: LimitDecision<'_>,
) -> Option<String> {
    let policy = policy?;
    let rule = policy.rule(counter.rule()?)?;
    let is_unlimited = |rule: &Rule| rule.limits().all(|limit| limit.capacity().is_none());
    let matched = policy.matched(request);
    let other = matched
        .iter()
        .map(|matched| matched.rule)
        .find(|other| other.mode() == Mode::Enforce && !is_unlimited(other));
    let other = other.filter(|_| is_unlimited(rule))?.name();
    let exemption = rule.exemption();
    let exemption = exemption.as_deref().unwrap_or("a `not` pattern in its match");
    Some(format!(
        " It does not exempt them from rule {other:?}: for that, write {exemption} there."
    ))
}

/// Returns the rules to list, and the number of those left out.
fn explained_rules(policy: &Policy, request: &Request<'_>) -> (Vec<ExplainedRule>, usize) {
    let matched = policy.matched(request).into_iter().map(|matched| {
        let overridden = matched.overridden.map(|place| match policy.is_set_while_running(place) {
            true => OverriddenBy::Operator,
            false => OverriddenBy::File,
        });
        ExplainedRule { overridden, ..ExplainedRule::new(matched.rule, None) }
    });
    let mut rules: Vec<ExplainedRule> = matched.collect();
    let mut left_out = 0;
    for rule in policy.rules().filter(|rule| rule.domain() == request.domain()) {
        match rule.not_matched_by(request) {
            None => {}
            Some(_) if rules.len() >= RULES_MAX => left_out += 1,
            not_matched => rules.push(ExplainedRule::new(rule, not_matched)),
        }
    }
    (rules, left_out)
}

impl ExplainedRule {
    fn new(rule: &Rule, not_matched: Option<NotMatched>) -> ExplainedRule {
        ExplainedRule {
            name: rule.name().to_owned(),
            mode: rule.mode(),
            not_matched,
            overridden: None,
        }
    }
}

/// The most rules of other domains that are named.
const ELSEWHERE_MAX: usize = 8;
/// Longer lists help no reader.
const RULES_MAX: usize = 64;
