//! The counts at one instant, as applications read them.

use std::sync::Arc;

use super::Durations;
use crate::decision::Reason;
use crate::policy::Mode;

/// The counts of a limiter since it was built.
///
/// [`Limiter::counts`](crate::Limiter::counts) returns it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Counts {
    /// The rules in the order of the policy. Rules beyond the first 1,000 are counted together under the name `other`.
    /// Inline limits come last, under an empty name.
    pub rules: Vec<RuleCounts>,
    /// Requests that no rule matched.
    pub unmatched: u64,
    /// The times of decisions. A batch counts once; with state in memory one decision in 64 counts.
    pub decisions: Durations,
    /// The shards of the store; none if state is in memory.
    pub shards: Vec<ShardCounts>,
}

/// The decisions of one rule. Those that it made as a shadow rule are would-be decisions: a denial of these denied
/// nothing.
///
/// [`Limiter::counts`](crate::Limiter::counts) has one for each rule. A rule begins anew when its limits are named anew.
#[derive(Clone, Debug)]
pub struct RuleCounts {
    pub(crate) domain: Arc<str>,
    pub(crate) rule: Arc<str>,
    pub(crate) decisions: Vec<DecisionCount>,
    pub(crate) near_limit: u64,
    pub(crate) overloaded: u64,
}

/// The number of a rule's decisions that are alike.
///
/// [`RuleCounts::decisions`] has one for each kind of decision that was made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DecisionCount {
    /// The mode that the rule had.
    pub mode: Mode,
    /// The reason of a denial; `None` if allowed.
    pub reason: Option<Reason>,
    /// The name of the limit that denied: of several with the same reason the one with the longest wait. Empty if
    /// allowed, and for an inline limit.
    pub limit: Arc<str>,
    /// The part of Spillgate that decided. `none` if no source was asked, because the limit blocks or is unlimited, or
    /// another rule had denied before.
    pub source: &'static str,
    /// The number of decisions.
    pub count: u64,
}

/// The calls to one shard of the store.
///
/// [`Limiter::counts`](crate::Limiter::counts) has one for each shard.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ShardCounts {
    /// The node's name, or the address without credentials.
    pub shard: String,
    /// The times of the calls that were sent, answered or not.
    pub calls: Durations,
    /// The calls without a usable answer that were sent, or refused because the shard was overloaded.
    pub failed: u64,
    /// The calls that were not sent, because there was no connection.
    pub unsent: u64,
}

#[cfg(feature = "redis")]
impl ShardCounts {
    /// Reads the counts of a shard's meter.
    pub(crate) fn from_meter(meter: &spillgate_redis::meter::ShardMeter) -> ShardCounts {
        ShardCounts {
            shard: meter.shard.clone(),
            calls: meter.seconds.read(),
            failed: meter.failed(),
            unsent: meter.unsent(),
        }
    }
}

impl RuleCounts {
    /// Returns the domain of the rule.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Returns the name of the rule; empty for inline limits.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Returns the name of the rule as a shared text, so that keeping it copies nothing.
    pub fn shared_rule(&self) -> Arc<str> {
        Arc::clone(&self.rule)
    }

    /// Returns the kinds of decisions that were made, with the number of each.
    pub fn decisions(&self) -> &[DecisionCount] {
        &self.decisions
    }

    /// Returns the number of decisions that allowed. A shadow rule also allows what it would have denied, but that counts
    /// as [`would_deny`](Self::would_deny) only.
    pub fn allowed(&self) -> u64 {
        self.sum(|kind| kind.reason.is_none())
    }

    /// Returns the number of denials for this reason, without the would-be denials of a shadow rule.
    pub fn denied(&self, reason: Reason) -> u64 {
        self.sum(|kind| kind.reason == Some(reason) && kind.mode != Mode::Shadow)
    }

    /// Returns the number of requests that a shadow rule would have denied.
    pub fn would_deny(&self) -> u64 {
        self.sum(|kind| kind.reason.is_some() && kind.mode == Mode::Shadow)
    }

    /// Returns each source with the number of its decisions, `none` last.
    pub fn by_source(&self) -> impl ExactSizeIterator<Item = (&'static str, u64)> {
        SOURCES.into_iter().map(|source| (source, self.sum(|kind| kind.source == source)))
    }

    /// Returns the number of decisions that allowed and left a fifth of the limit or less.
    pub fn near_limit(&self) -> u64 {
        self.near_limit
    }

    /// Returns the number of decisions of one kind.
    pub(crate) fn sum(&self, is_of_kind: impl Fn(&DecisionCount) -> bool) -> u64 {
        let kinds = self.decisions.iter().filter(|kind| is_of_kind(kind));
        kinds.map(|kind| kind.count).sum()
    }
}

impl DecisionCount {
    /// Returns `allowed` or `denied`.
    pub fn decision(&self) -> &'static str {
        if self.reason.is_none() { "allowed" } else { "denied" }
    }
}

/// The modes of a rule that decides. A shadow rule has the second.
pub const MODES: [Mode; 2] = [Mode::Enforce, Mode::Shadow];

/// The reasons of a denial in the order of the enum.
pub const REASONS: [Reason; 5] = [
    Reason::Blocked,
    Reason::CostExceedsLimit,
    Reason::LimitExceeded,
    Reason::StoreUnavailable,
    Reason::Overloaded,
];

/// Values of the label `source`: those of `Source` in the order of the enum, then `none`.
pub const SOURCES: [&str; 6] =
    ["store", "lease", "denial-cache", "fallback", "outage-policy", "none"];
/// The place of `none`: the decisions for which no source was asked, because the limit blocks or is unlimited, or
/// another rule had denied before.
pub const NOT_ASKED: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Source;

    #[test]
    fn each_reason_and_source_has_the_place_that_its_enum_says() {
        for (place, reason) in REASONS.into_iter().enumerate() {
            assert_eq!(reason as usize, place);
        }
        let sources = [
            Source::Store,
            Source::Lease,
            Source::DenialCache,
            Source::Fallback,
            Source::OutagePolicy,
        ];
        for (place, source) in sources.into_iter().enumerate() {
            assert_eq!((source as usize, source.name()), (place, SOURCES[place]));
        }
        assert_eq!(SOURCES[NOT_ASKED], "none");
    }
}
