//! Shows and changes the state of one subject, for operators.

use super::super::{Inner, Limiter};
use super::named_by;
use crate::algorithm::Refund;
use crate::control::{AuditRecord, AuditedAction, ControlError};
use crate::counter::Change;
use crate::decision::{self, Decision, Names};
use crate::plan::{ChargeOutcome, ChargeOutcomes, Plan};
use crate::policy::{InvalidChange, Policy, Rule};
use crate::request::{Cost, Request};

/// The state of one subject. These calls need the store.
impl Limiter {
    /// Resets the counters of a rule for one subject, given by the rule's key attributes in
    /// `subject`.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limit, Limiter, Policy, Request, Rule};
    ///
    /// let api = Rule::new("api").key(["user"]).limit(Limit::per_day(2));
    /// let policy = Policy::builder().rule(api).build()?;
    /// let limiter = Limiter::builder().policy(policy).build().await?;
    /// let ada = Request::new().with("user", "ada");
    /// assert!(limiter.check(&ada.clone().costing(2)).await.allowed());
    ///
    /// limiter.reset("api", &ada).await?;
    /// assert_eq!(limiter.peek(&ada).await.remaining(), Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn reset(&self, rule: &str, subject: &Request<'_>) -> Result<(), ControlError> {
        let policy = self.policy();
        let found = rule_of(&policy, rule, subject)?;
        let subject = &*policy.typed(subject);
        let limits = policy.limits_ever_in_force(found, subject);
        let key = found.subject_key(subject, &self.inner.secret);
        let reset = self.inner.engine.reset(key, &limits).await;
        self.inner.note_room();
        reset.map_err(ControlError::Store)?;
        self.record(rule, subject, AuditedAction::ResetSubject).await;
        Ok(())
    }

    /// Returns the state of a rule's counters for one subject, given by the rule's key attributes.
    /// Nothing is written. It works for rules in any mode.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limit, Limiter, Policy, Request, Rule};
    ///
    /// let api = Rule::new("api").key(["user"]).limit(Limit::per_day(2));
    /// let policy = Policy::builder().rule(api).build()?;
    /// let limiter = Limiter::builder().policy(policy).build().await?;
    /// let ada = Request::new().with("user", "ada");
    /// assert_eq!(limiter.state("api", &ada).await?.remaining(), Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn state(&self, rule: &str, subject: &Request<'_>) -> Result<Decision, ControlError> {
        let policy = self.policy();
        let found = rule_of(&policy, rule, subject)?;
        let mut plan = self.inner.plan_of(&policy, found, subject);
        if plan.asks() {
            let reply = self.inner.engine.read(&plan.transaction).await;
            let replies = reply.map_err(ControlError::Store)?.replies;
            let outcomes: ChargeOutcomes = replies.into_iter().map(ChargeOutcome::Store).collect();
            plan.take(&outcomes);
        }
        Ok(decision::from_counters(plan.outcomes, Names::Policy(policy)))
    }

    /// Charges a rule's counters for one subject by force, each up to twice its capacity. Returns
    /// their state after it.
    ///
    /// Counters are charged one by one, so an error may leave some charged.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limit, Limiter, Policy, Request, Rule};
    ///
    /// let api = Rule::new("api").key(["user"]).limit(Limit::per_day(2));
    /// let policy = Policy::builder().rule(api).build()?;
    /// let limiter = Limiter::builder().policy(policy).build().await?;
    /// let ada = Request::new().with("user", "ada");
    /// let state = limiter.charge("api", &ada, 3).await?;
    /// assert_eq!(state.remaining(), Some(0), "more than the limit allows");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn charge<'a>(
        &self,
        rule: &str,
        subject: &Request<'_>,
        cost: impl Into<Cost<'a>>,
    ) -> Result<Decision, ControlError> {
        let cost = cost.into();
        let action = AuditedAction::Charge(owned(&cost));
        self.change(rule, subject, &cost, Change::Force, action).await
    }

    /// Refunds to a rule's counters for one subject, until they are full. Returns their state after
    /// it.
    ///
    /// It may admit more than the limit allows. Counters are refunded one by one, so an error may
    /// leave some refunded.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limit, Limiter, Policy, Request, Rule};
    ///
    /// let api = Rule::new("api").key(["user"]).limit(Limit::per_day(2));
    /// let policy = Policy::builder().rule(api).build()?;
    /// let limiter = Limiter::builder().policy(policy).build().await?;
    /// let ada = Request::new().with("user", "ada");
    /// assert!(limiter.check(&ada.clone().costing(2)).await.allowed());
    /// let state = limiter.refund("api", &ada, 1).await?;
    /// assert_eq!(state.remaining(), Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn refund<'a>(
        &self,
        rule: &str,
        subject: &Request<'_>,
        cost: impl Into<Cost<'a>>,
    ) -> Result<Decision, ControlError> {
        let cost = cost.into();
        let action = AuditedAction::Refund(owned(&cost));
        let refund = |amount| Change::Refund(Refund::Amount(amount));
        self.change(rule, subject, &cost, refund, action).await
    }

    async fn change(
        &self,
        rule: &str,
        subject: &Request<'_>,
        cost: &Cost<'_>,
        change: impl Fn(u64) -> Change,
        action: AuditedAction,
    ) -> Result<Decision, ControlError> {
        let policy = self.policy();
        let found = rule_of(&policy, rule, subject)?;
        check_units(&policy, found, subject, cost)?;
        let plan = self.inner.plan_of(&policy, found, subject);
        for counter in &plan.transaction.charges {
            let amount = cost.amount(counter.limit.limit().unit());
            if amount > 0 {
                let changed = self.inner.engine.change(counter, change(amount)).await;
                self.inner.note_room();
                let (refunded, _) = changed.map_err(ControlError::Store)?;
                self.inner.note_refunded(refunded);
            }
        }
        self.record(rule, subject, action).await;
        self.state(rule, subject).await
    }

    /// Records a change of one subject's state.
    async fn record(&self, rule: &str, subject: &Request<'_>, action: AuditedAction) {
        let record = |at_us| AuditRecord {
            at_us,
            note: self.note(),
            rule: rule.into(),
            subject: named_by(subject),
            action,
            expires_at_us: None,
        };
        self.inner.record(record).await;
    }
}

impl Inner {
    fn plan_of(&self, policy: &Policy, rule: &Rule, subject: &Request<'_>) -> Box<Plan> {
        let subject = &*policy.typed(subject);
        let matched = policy.matched_by_subject(rule, subject);
        let matched = matched.expect("the rule is the policy's");
        Box::new(Plan::of_subject(&matched, subject, &self.secret))
    }
}

/// Returns the rule if the subject, as given, names one subject of it.
pub fn rule_of<'p>(
    policy: &'p Policy,
    rule: &str,
    subject: &Request<'_>,
) -> Result<&'p Rule, ControlError> {
    let found = policy.rule(rule).ok_or_else(|| policy.unknown_rule(rule))?;
    if let Some(missing) = found.missing_from(subject) {
        return Err(ControlError::MissingAttribute(missing.to_owned()));
    }
    policy.names_one_subject(found, subject)?;
    Ok(found)
}

/// Checks that each unit of a cost is that of some limit, which may have state for the subject.
fn check_units(
    policy: &Policy,
    rule: &Rule,
    subject: &Request<'_>,
    cost: &Cost<'_>,
) -> Result<(), InvalidChange> {
    let limits = policy.limits_ever_in_force(rule, &policy.typed(subject));
    let mut units: Vec<String> = limits.iter().map(|it| it.limit().unit().to_owned()).collect();
    let mut amounts = cost.amounts().filter(|(_, amount)| *amount > 0);
    let Some((unit, _)) = amounts.find(|(unit, _)| !units.iter().any(|known| known == unit)) else {
        return Ok(());
    };
    units.sort_unstable();
    units.dedup();
    Err(InvalidChange::UnknownUnit { unit: unit.to_owned(), units })
}

fn owned(cost: &Cost<'_>) -> Cost<'static> {
    let mut owned = Cost::requests(0);
    owned.add(cost);
    owned
}
