//! Waiting for room: the order of waiting callers, their attempts, and the answer to those that
//! wait in vain.

use std::time::Duration;

use tokio::time::Instant;

use super::bound::BoundRequest;
use super::{Inner, Limiter};
use crate::algorithm::LimitParams;
use crate::control::random;
use crate::decision::{self, Decision, Reason, Source};
use crate::limit::Kind;
use crate::metrics::{Metrics, Took};
use crate::plan::{Evaluated, PlanMode};
use crate::request::Request;
use crate::waiting::{KnownDenial, TooMany, Wanted, Wants, deadline_after};

impl Limiter {
    /// Waits until the request is allowed, for at most `within`.
    ///
    /// A request is denied at once if its wait cannot fit or if it can never be allowed. Callers of
    /// one subject are admitted in the order of their calls in this instance. Checks do not queue
    /// behind them. For a permit the limiter asks repeatedly until one is free. A caller that another
    /// limit denies meanwhile moves behind the callers that wait for that limit.
    ///
    /// Dropping the future gives up the place in the queue. In memory nothing has been charged
    /// then. On a store a call may be under way, and its charge stays, as with
    /// [`check`](Self::check). But a permit that it took is released when the store has replied.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use spillgate::{Limiter, Policy, Request, Reason};
    ///
    /// let policy = "[[rule]]\nname = \"upstream\"\nkey = []\nlimits = [\"50/second\"]";
    /// let policy = Policy::from_toml(policy).unwrap();
    /// let limiter = Limiter::builder().policy(policy).build().await.unwrap();
    /// for _ in 0..55 {
    ///     let decision = limiter.acquire(&Request::new(), Duration::from_secs(5)).await;
    ///     assert!(decision.allowed(), "the last five waited, a fiftieth of a second each");
    /// }
    /// let all = Request::new().costing(50);
    /// let denied = limiter.acquire(&all, Duration::from_millis(100)).await;
    /// assert_eq!(denied.reason(), Some(Reason::LimitExceeded), "that would take a second");
    /// # });
    /// ```
    ///
    /// A bucket with a burst of 1 acts as a leaky bucket: it admits one call after the other, at an
    /// even pace.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # use std::time::Duration;
    /// # use spillgate::{Limit, Limiter, Request};
    /// # let limiter = Limiter::builder().build().await.unwrap();
    /// let leaky = Limit::per_second(10).burst(1);
    /// let upstream = Request::keyed("upstream", leaky);
    /// let decision = limiter.acquire(&upstream, Duration::from_secs(5)).await;
    /// # assert!(decision.allowed());
    /// # });
    /// ```
    pub async fn acquire(&self, request: &Request<'_>, within: Duration) -> Decision {
        let inner = &self.inner;
        // Patience counts from here: it bounds every wait below, the calls to the store included.
        let mut patience = inner.waiting.patience(deadline_after(within));
        let mut wanted = inner.wanted(request);
        // Callers that find a queue join it without a claim of their own. Otherwise a newcomer
        // could take the quota that the first in the queue waits for.
        let place = match inner.waiting.behind_others(&wanted) {
            Some(place) => place,
            None => {
                let claim = inner.claim(request).await;
                let pause = claim.pause(patience.left());
                let Some(counter) = pause.and_then(|pause| pause.counter(&wanted)) else {
                    return inner.answer_claim(claim);
                };
                inner.waiting.join(counter)
            }
        };
        let mut place = match place {
            Ok(place) => place,
            Err(TooMany(counter)) => {
                return inner.denied_in_queue(request, &wanted, counter, None).await;
            }
        };
        loop {
            // The caller behind others knows its earliest turn. If that is too late, it is denied
            // now instead of at its deadline.
            let earliest = place.earliest().filter(|_| !place.is_first());
            let in_time = earliest.is_none_or(|earliest| patience.lasts_until(earliest));
            if !in_time || patience.bound(place.first()).await.is_none() {
                return inner.denied_in_queue(request, &wanted, place.counter(), earliest).await;
            }
            if let Some(counter) = place.followed(&wanted) {
                place.move_to(counter);
                continue;
            }
            if patience.bound(inner.poll_turn(&wanted)).await.is_none() {
                return inner.denied_in_queue(request, &wanted, place.counter(), None).await;
            }
            // It begins before the attempt, so that room made during the attempt ends the pause.
            let room = inner.waiting.room();
            let claim = inner.claim(request).await;
            let Some(pause) = claim.pause(patience.left()) else {
                return inner.answer_claim(claim);
            };
            // Another policy may be in force since the caller joined, with other counters.
            wanted = inner.wanted(request);
            let denying = pause.counter(&wanted);
            if let Some(other) = denying.filter(|wanted| wanted.counter != place.counter()) {
                place.move_to(other);
                if !place.is_first() {
                    continue;
                }
            }
            // Callers behind this one derive their earliest turn from it.
            place.note(KnownDenial { params: pause.params, until: Instant::now() + pause.wait });
            if patience.pause(pause.wait, room).await.is_none() {
                return inner.answer_claim(claim);
            }
        }
    }

    /// Denies all waiting callers, now and from now on. A service calls this before it stops.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use spillgate::{Limit, Limiter, Request};
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// let request = Request::keyed("user:42", Limit::per_day(1));
    /// assert!(limiter.check(&request).await.allowed());
    ///
    /// limiter.end_waiting();
    /// let day = Duration::from_secs(86_400);
    /// assert!(!limiter.acquire(&request, day).await.allowed(), "denied without a wait");
    /// # });
    /// ```
    pub fn end_waiting(&self) {
        self.inner.waiting.end();
    }
}

impl Inner {
    /// Waits until a waiting caller may call the store again. In memory there is no such wait.
    async fn poll_turn(&self, wanted: &[Wanted]) {
        // The first shard stands for all of the plan's shards.
        if let (Some(store), Some(first)) = (self.engine.store(), wanted.first()) {
            store.poll_turn(first.tag).await;
        }
    }

    /// Tries once to get room. The attempt is counted only if it is answered.
    async fn claim<'q, 'a>(&self, request: &'q Request<'a>) -> Claim<'q, 'a> {
        let began = self.metrics.begin();
        let bound = self.bind(request);
        let plan = self.plan_to_charge(&bound);
        let evaluated = self.evaluate(plan, bound.policy(), None).await;
        let took = Metrics::stop(began);
        let decision = decision::from_counters(evaluated.plan.outcomes.clone(), bound.names());
        Claim { decision, bound, evaluated, took }
    }

    fn answer_claim(&self, claim: Claim<'_, '_>) -> Decision {
        let Claim { bound, evaluated, took, .. } = claim;
        self.metrics.add(took);
        self.answer(&bound, evaluated)
    }

    /// Returns the counters that the request needs room in; none if it can never have room.
    fn wanted(&self, request: &Request<'_>) -> Wants {
        Wanted::all_of(&self.plan(&self.bind(request), PlanMode::Charge))
    }

    /// Denies a request whose turn comes too late. The answer has the counters' current numbers,
    /// and the counter with the queue denies, at least until `earliest`.
    async fn denied_in_queue(
        &self,
        request: &Request<'_>,
        wanted: &[Wanted],
        counter: u128,
        earliest: Option<Instant>,
    ) -> Decision {
        let began = self.metrics.begin();
        let bound = self.bind(request);
        let plan = self.plan(&bound, PlanMode::Peek);
        let mut evaluated = self.evaluate(plan, bound.policy(), None).await;
        self.metrics.end(began);
        let its_counter = wanted.iter().find(|wanted| wanted.counter == counter);
        let index = its_counter.map_or(0, |wanted| wanted.index);
        // A policy with fewer counters may have come into force meanwhile.
        let index = index.min(evaluated.plan.outcomes.len().saturating_sub(1));
        if let Some(denying) = evaluated.plan.outcomes.get_mut(index) {
            denying.denied.get_or_insert(Reason::LimitExceeded);
            let wait = earliest.map(|at| at.saturating_duration_since(Instant::now()));
            let wait_us = wait.and_then(|wait| u64::try_from(wait.as_micros()).ok());
            denying.retry_after_us = wait_us.into();
        }
        self.answer(&bound, evaluated)
    }
}

/// The result of one attempt to get room.
struct Claim<'q, 'a> {
    decision: Decision,
    bound: BoundRequest<'q, 'a>,
    evaluated: Evaluated,
    /// The time of the decision itself, without the wait before it.
    took: Took,
}

impl Claim<'_, '_> {
    /// Returns when to try again, or `None` if that is later than `left`.
    fn pause(&self, left: Duration) -> Option<Pause> {
        Pause::from_decision(&self.decision).filter(|pause| pause.wait <= left)
    }
}

/// The time until a denied request may try again, and the limit that imposes it.
struct Pause {
    wait: Duration,
    params: LimitParams,
    /// The index in the decision of the denying counter with the longest wait.
    index: usize,
}

impl Pause {
    /// Returns `None` if the wait is unknown or waiting does not help.
    fn from_decision(decision: &Decision) -> Option<Pause> {
        if decision.reason().is_none_or(Reason::is_permanent) {
            return None;
        }
        let mut longest: Option<Pause> = None;
        for (index, counter) in decision.limits().enumerate() {
            if !counter.denies() {
                continue;
            }
            let Kind::Counted(params) = counter.definition().kind() else { return None };
            let wait = match counter.source() {
                // A permit may be released at any time.
                _ if counter.algorithm().counts_permits() => soon(),
                // The denial cache knows no wait for a larger cost than it remembers, but forgets soon.
                Source::DenialCache => counter.retry_after().unwrap_or_else(soon),
                _ => counter.retry_after()?,
            };
            if longest.as_ref().is_none_or(|longest| longest.wait < wait) {
                longest = Some(Pause { wait, params: *params, index });
            }
        }
        longest
    }

    fn counter(&self, wanted: &[Wanted]) -> Option<Wanted> {
        wanted.iter().copied().find(|wanted| wanted.index == self.index)
    }
}

/// Returns the time until the next attempt if nothing shows when there will be room. It is random,
/// so that instances do not attempt in step.
fn soon() -> Duration {
    let half_us = SOON.as_micros() as u64 / 2;
    Duration::from_micros(half_us + random() % half_us)
}

/// The longest time between two attempts of the first caller in a queue for a permit.
const SOON: Duration = Duration::from_millis(40);
