//! Refusals that are remembered, told at once: without a future, a plan or an allocation. A crowd at a key
//! that is used up asks for little else.

use std::slice::from_ref;

use super::Inner;
use crate::decision::{Decision, Judged, Names, Source, Verdict};
use crate::denial_cache::Sent;
use crate::engine::{Heard, Redis};
use crate::limit::Limit;
use crate::metrics::Began;
use crate::plan::{Alone, Asking};
use crate::request::{Cost, Request};

impl Inner {
    /// What a request is told that meets one limit of one rule, where the store refused it a moment ago.
    pub(super) fn refused_at_once(&self, redis: &Redis, request: &Request<'_>) -> Option<Decision> {
        let (began, sent) = self.begin_refusing(redis)?;
        let policy = self.policy.load_full();
        let rules = policy.met(request);
        let tier = Alone::of_rules(&rules, request, &self.secret, Asking::ToCharge)?;
        let judged = self.refused_alone(&tier, Judged::unknown(&rules[0], 0), sent)?;
        drop(rules);
        self.metrics.watch(&policy, request, &self.secret, from_ref(&judged), false);
        self.metrics.count_drawn(began, Some(&policy), &judged);
        Some(Decision::alone(judged, Names::Policy(policy)))
    }

    /// The same for a limit that comes with its key.
    pub(super) fn limit_refused_at_once(
        &self,
        redis: &Redis,
        name: &str,
        limit: &Limit,
        cost: &Cost<'_>,
    ) -> Option<Decision> {
        let (began, sent) = self.begin_refusing(redis)?;
        let key = self.secret.ad_hoc_key(name);
        let tier = Alone::ad_hoc(key, limit, cost)?;
        let judged = self.refused_alone(&tier, Judged::ad_hoc(), sent)?;
        self.metrics.watch_ad_hoc(name, key, tier.cost, judged.verdict);
        self.metrics.count_drawn(began, None, &judged);
        Some(Decision::alone(judged, Names::AdHoc(limit.clone())))
    }

    /// Nothing where a tier may be in two places, or where nothing is refused that long.
    fn begin_refusing(&self, redis: &Redis) -> Option<(Began, Sent)> {
        if self.secret.previous().is_some() || !redis.keeps_tiers_at_one_place() {
            return None;
        }
        let began = self.metrics.begin_drawn();
        Some((began, self.denials.begin(redis)))
    }

    fn refused_alone(&self, tier: &Alone<'_>, unknown: Judged, sent: Sent) -> Option<Judged> {
        let heard = self.denials.refuses_alone(tier, sent)?;
        let Heard::Refused { retry_after_us, remaining, reset_after_us } = heard else {
            return None;
        };
        self.counters.count_alone(false);
        Some(Judged {
            source: Source::DenialCache,
            verdict: Verdict::Denied,
            capacity: Some(tier.numbers.capacity()),
            remaining,
            retry_after_us,
            reset_after_us,
            ..unknown
        })
    }
}
