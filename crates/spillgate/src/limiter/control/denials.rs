//! Records the subjects of denials, and finds them for operators.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::super::{Inner, Limiter};
use super::state::rule_of;
use crate::control::ControlError;
use crate::decision::CounterOutcome;
use crate::denials::{Denials, Denied, Fit, HOURS_KEPT, MINUTE_US, MINUTES};
use crate::engine::Engine;
use crate::error::StoreError;
use crate::policy::{LimitPlace, Policy, Rule};
use crate::request::Request;
use crate::subject::{Encoding, Secret, SubjectKey};

mod store;

/// The subjects that were denied, if [`LimiterBuilder::denials`](crate::LimiterBuilder::denials) is on.
///
/// A minute is listed once it is over: at once with state in memory, and within another minute on a store, where all
/// instances write theirs one after the other. With state in memory a restart loses the record.
impl Limiter {
    /// Returns when a subject was denied since a time within the last 48 hours, and by which limits. `subject` has the
    /// key attributes of the rule; without a rule, all rules count whose key attributes it has.
    ///
    /// # Errors
    /// Returns [`ControlError::Refused`] if there is no such rule, [`ControlError::MissingAttribute`] if the subject
    /// lacks an attribute of its key, and [`ControlError::Store`] if the store does not answer.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::{Duration, UNIX_EPOCH};
    ///
    /// use spillgate::testing::ManualClock;
    /// use spillgate::{Limit, Limiter, Policy, Request, Rule};
    ///
    /// let api = Rule::new("api").key(["tenant"]).limit(Limit::per_day(1));
    /// let policy = Policy::builder().rule(api).build()?;
    /// let clock = ManualClock::new();
    /// let limiter = Limiter::builder().policy(policy).manual_clock(&clock).denials(true).build().await?;
    /// let acme = Request::new().with("tenant", "acme");
    /// let began = UNIX_EPOCH + clock.now();
    /// limiter.check_batch(&[acme.clone(), acme.clone(), acme.clone()]).await;
    ///
    /// clock.advance(Duration::from_secs(60));
    /// let denials = limiter.denials_of(None, &acme, began).await?;
    /// assert_eq!(denials.subjects[0].denied, 2);
    /// assert_eq!(denials.subjects[0].allowed, Some(1), "about, in these minutes");
    /// assert_eq!(denials.subjects[0].minutes, [began]);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn denials_of(
        &self,
        rule: Option<&str>,
        subject: &Request<'_>,
        since: SystemTime,
    ) -> Result<Denials, ControlError> {
        let fields = self.inner.fields_of(rule, subject)?;
        let since = self.inner.since(since);
        self.inner.denials.settle();
        let found = match &self.inner.engine {
            Engine::Memory(_) => {
                let _searching = self.inner.denials.searching.lock().await;
                self.inner.denials.hours.lock().of(&fields, since)
            }
            Engine::Redis(store) => self.inner.stored_denials_of(store, &fields, since).await?,
        };
        Ok(Denials { is_recording: self.inner.denials.is_on(), ..found })
    }

    /// Returns the subjects with a value that has this part, in capitals or not, if they were denied since a time within
    /// the last 48 hours.
    ///
    /// On a store this reads the whole record, for at most 4 seconds. [`Denials::unread_hours`] says whether that
    /// was enough; the next call goes on.
    ///
    /// # Errors
    /// Returns [`ControlError::Store`] if the store does not answer.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::UNIX_EPOCH;
    ///
    /// use spillgate::Limiter;
    ///
    /// let limiter = Limiter::builder().build().await?;
    /// let denials = limiter.denials_like("acme", UNIX_EPOCH).await?;
    /// assert!(!denials.is_recording, "it is off by default");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn denials_like(
        &self,
        part: &str,
        since: SystemTime,
    ) -> Result<Denials, ControlError> {
        let part = part.to_owned();
        self.inner.search(since, move |subject| subject.fit(part.as_bytes())).await
    }

    /// Returns the most denied subjects since a time within the last 48 hours: of all rules, or of one.
    ///
    /// On a store this reads the whole record since then, like [`denials_like`](Self::denials_like).
    ///
    /// # Errors
    /// Returns [`ControlError::Refused`] if there is no such rule, and [`ControlError::Store`] if the store does not
    /// answer.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::{Duration, UNIX_EPOCH};
    ///
    /// use spillgate::testing::ManualClock;
    /// use spillgate::{Limit, Limiter, Policy, Request, Rule};
    ///
    /// let api = Rule::new("api").key(["tenant"]).limit(Limit::per_day(1));
    /// let policy = Policy::builder().rule(api).build()?;
    /// let clock = ManualClock::new();
    /// let limiter = Limiter::builder().policy(policy).manual_clock(&clock).denials(true).build().await?;
    /// let (acme, globex) = (Request::new().with("tenant", "acme"), Request::new().with("tenant", "globex"));
    /// limiter.check_batch(&[acme.clone(), acme, globex.clone(), globex.clone(), globex]).await;
    ///
    /// clock.advance(Duration::from_secs(60));
    /// let denials = limiter.most_denied(Some("api"), UNIX_EPOCH + clock.now() - Duration::from_secs(900)).await?;
    /// let counts = denials.subjects.iter().map(|subject| (&*subject.attributes[0].1, subject.denied));
    /// assert_eq!(counts.collect::<Vec<_>>(), [(&b"globex"[..], 2), (&b"acme"[..], 1)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn most_denied(
        &self,
        rule: Option<&str>,
        since: SystemTime,
    ) -> Result<Denials, ControlError> {
        if let Some(name) = rule {
            let policy = &self.inner.in_force.load().policy;
            policy.rule(name).ok_or_else(|| policy.unknown_rule(name))?;
        }
        let rule = rule.map(str::to_owned);
        let fit = move |subject: &Denied| {
            let is_wanted = rule.as_deref().is_none_or(|it| it == &*subject.rule);
            is_wanted.then_some(Fit::Part)
        };
        self.inner.search(since, fit).await
    }
}

impl Inner {
    /// Counts a denial at each limit that denied it.
    #[cold]
    #[inline(never)]
    pub fn note_denials(
        &self,
        policy: &Policy,
        request: &Request<'_>,
        counters: &[CounterOutcome],
    ) {
        self.denials.turn();
        let request = &*policy.typed(request);
        for counter in counters {
            let (Some(reason), true, Some((rule, limit))) =
                (counter.denied, counter.denies(), limit_of(policy, counter))
            else {
                continue;
            };
            let field =
                field_of(rule, limit, rule.subject_key(request, &self.secret), &self.secret);
            let values = || rule.key().map(|name| (name, rule.subject_value(request, name)));
            self.denials.counts.count(field, reason, || Denied::new(rule.name(), limit, values()));
        }
    }

    /// Counts a sampled request that was allowed at each of its limits. It stands for `weight` requests.
    #[cold]
    #[inline(never)]
    pub fn note_allowed(
        &self,
        weight: u64,
        policy: &Policy,
        request: &Request<'_>,
        counters: &[CounterOutcome],
    ) {
        self.denials.turn();
        let request = &*policy.typed(request);
        for counter in counters.iter().filter(|counter| counter.decides()) {
            let Some((rule, limit)) = limit_of(policy, counter) else { continue };
            let key = rule.subject_key(request, &self.secret);
            self.denials.counts.allowed.add(field_of(rule, limit, key, &self.secret), weight);
        }
    }

    /// Searches the whole record since a time.
    async fn search(
        self: &Arc<Self>,
        since: SystemTime,
        fit: impl Fn(&Denied) -> Option<Fit> + Send + 'static,
    ) -> Result<Denials, ControlError> {
        let since = self.since(since);
        self.denials.settle();
        // The next question waits here, and not for a lock that blocks its thread.
        let _searching = self.denials.searching.lock().await;
        let unread_hours = match &self.engine {
            Engine::Memory(_) => 0,
            Engine::Redis(store) => self.read_denials(store, since).await?,
        };
        let inner = Arc::clone(self);
        // A full record has half a million subjects.
        let search = tokio::task::spawn_blocking(move || inner.search_denials(since, fit));
        let ended = |error: tokio::task::JoinError| StoreError::Foreign(error.to_string().into());
        let found = search.await.map_err(|error| ControlError::Store(ended(error)))?;
        Ok(Denials { is_recording: self.denials.is_on(), unread_hours, ..found })
    }

    /// Returns the minute from which an answer begins.
    fn since(&self, since: SystemTime) -> u64 {
        let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
        let since = since.as_secs() / (MINUTE_US / 1_000_000);
        let hour = self.denials.now_us() / MINUTE_US / MINUTES;
        since.max((hour + 1).saturating_sub(HOURS_KEPT) * MINUTES)
    }

    /// Returns the fields of a subject at each limit that may have denied it.
    fn fields_of(
        &self,
        rule: Option<&str>,
        subject: &Request<'_>,
    ) -> Result<Vec<u64>, ControlError> {
        let policy = Arc::clone(&self.in_force.load().policy);
        let is_covered = |rule: &&Rule| rule.missing_from(subject).is_none();
        let rules: Vec<&Rule> = match rule {
            Some(name) => vec![rule_of(&policy, name, subject)?],
            None => policy.rules().filter(is_covered).collect(),
        };
        if rules.is_empty() {
            let missing = policy.rules().find_map(|rule| rule.missing_from(subject));
            return missing.map_or(Ok(Vec::new()), |name| {
                Err(ControlError::MissingAttribute(name.to_owned()))
            });
        }
        let subject = &*policy.typed(subject);
        let mut fields = Vec::new();
        for rule in rules {
            let key = rule.subject_key(subject, &self.secret);
            for limit in policy.limits_ever_in_force(rule, subject) {
                let beside = format!("{}.request", limit.name());
                fields.extend(
                    [limit.name(), &beside].map(|limit| field_of(rule, limit, key, &self.secret)),
                );
            }
        }
        fields.sort_unstable();
        fields.dedup();
        Ok(fields)
    }
}

/// Returns the rule of a counter, and the name of its limit. `None` for an inline limit.
fn limit_of<'p>(policy: &'p Policy, counter: &'p CounterOutcome) -> Option<(&'p Rule, &'p str)> {
    let rule = counter.rule.number()?;
    let name = match counter.brought() {
        Some(limit) => limit.name().unwrap_or("0"),
        None => {
            let (overridden, limit) = (counter.overridden.number(), u32::from(counter.limit));
            policy.named_limit(LimitPlace { rule, overridden, limit }).name()
        }
    };
    Some((policy.rule_at(rule), name))
}

/// Returns the hash of rule, limit and subject. A reset of the rule does not change it, unlike the keys of counters.
fn field_of(rule: &Rule, limit: &str, key: SubjectKey, secret: &Secret) -> u64 {
    let subject = (key.id ^ key.rule).to_le_bytes();
    let mut text = Encoding::new();
    for part in [b"#denials".as_slice(), rule.name().as_bytes(), limit.as_bytes(), &subject] {
        text.part(part);
    }
    secret.hash(&text) as u64
}
