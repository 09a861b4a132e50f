//! Decides requests: passes each one, at its own instant, to a limiter of each policy.
//!
//! The limiters are the product's own, with a clock that the replay sets, so that they decide as `spillgate serve`
//! would have.

use std::collections::BTreeSet;
use std::time::Duration;

use spillgate::testing::ManualClock;
use spillgate::{Decision, Limiter, Policy, Request};
use tokio::runtime::Runtime;

use super::tally::{Denied, Tally};
use crate::Failure;

/// The policies, and what was decided so far.
pub struct Replay {
    runtime: Runtime,
    pub(crate) policies: Vec<PolicyReplay>,
    /// The instants of the first and the last request.
    pub(crate) span_us: Option<(u64, u64)>,
    /// The attributes that any request had.
    pub(crate) seen: BTreeSet<String>,
}

/// A policy with its limiter and its counts.
pub struct PolicyReplay {
    limiter: Limiter,
    clock: ManualClock,
    pub(crate) tally: Tally,
    /// Where it decides otherwise than the first policy; empty for the first itself.
    pub(crate) difference: Difference,
}

/// Where a policy and the first one decide differently.
#[derive(Default)]
pub struct Difference {
    /// Denied by the first policy and not by this one.
    pub(crate) only_first_denies: u64,
    pub(crate) only_this_denies: u64,
    /// The subjects that only the first policy denies.
    pub(crate) subjects: Denied,
}

impl Replay {
    /// Opens a limiter for each policy.
    pub fn new(policies: &[Policy]) -> Result<Replay, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let open = |policy: &Policy| -> Result<PolicyReplay, Failure> {
            let clock = ManualClock::new();
            let tally = Tally::new(policy);
            let limiter = Limiter::builder().policy(policy.clone()).manual_clock(&clock).top(false);
            let limiter = runtime.block_on(limiter.build())?;
            Ok(PolicyReplay { limiter, clock, tally, difference: Difference::default() })
        };
        let policies = policies.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Replay { runtime, policies, span_us: None, seen: BTreeSet::new() })
    }

    /// Passes a request, which is no earlier than the last one, to every policy.
    pub fn decide(&mut self, at_us: u64, request: &Request<'_>) {
        self.span_us = Some((self.span_us.map_or(at_us, |(from_us, _)| from_us), at_us));
        for (name, _) in request.attributes() {
            if !self.seen.contains(name) {
                self.seen.insert(name.to_owned());
            }
        }
        let [first, others @ ..] = self.policies.as_mut_slice() else { return };
        // A decision in memory never waits, so this only polls.
        let decision = self.runtime.block_on(first.check(at_us, request));
        for other in others {
            let others_decision = self.runtime.block_on(other.check(at_us, request));
            other.difference.note(&decision, &others_decision, first, request);
        }
    }
}

impl PolicyReplay {
    /// Returns how many counters in use were evicted for want of room. Their subjects may have been admitted too often.
    pub fn evicted(&self) -> u64 {
        let stats = self.limiter.stats();
        stats.evictions + stats.overflows
    }

    async fn check(&mut self, at_us: u64, request: &Request<'_>) -> Decision {
        self.clock.set(Duration::from_micros(at_us));
        let decision = self.limiter.check(request).await;
        // The subject of an IPv6 address is its network, as the limiter counts it.
        self.tally.note(at_us, &self.limiter.policy().typed(request), &decision);
        decision
    }
}

impl Difference {
    fn note(
        &mut self,
        decision: &Decision,
        this: &Decision,
        first: &PolicyReplay,
        request: &Request<'_>,
    ) {
        match (decision.allowed(), this.allowed()) {
            (false, true) => {
                self.only_first_denies += 1;
                if let Some(counter) = decision.top() {
                    let (rule, policy) = (counter.rule_index(), first.limiter.policy());
                    let typed = policy.typed(request);
                    first.tally.name_denied(rule, &typed, &mut self.subjects);
                }
            }
            (true, false) => self.only_this_denies += 1,
            _ => {}
        }
    }
}
