//! The counts at one instant, as applications read them.

use std::sync::Arc;

use super::Durations;
use crate::decision::Reason;

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

/// The decisions of one rule. A shadow rule counts as if it were enforced.
///
/// [`Limiter::counts`](crate::Limiter::counts) has one for each rule.
#[derive(Clone, Debug)]
pub struct RuleCounts {
    pub(crate) domain: Arc<str>,
    pub(crate) rule: Arc<str>,
    pub(crate) by_result: [u64; RESULTS.len()],
    pub(crate) by_source: [u64; SOURCES.len()],
    pub(crate) near_limit: u64,
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

    /// Returns the number of decisions that allowed.
    pub fn allowed(&self) -> u64 {
        self.by_result[index(None)]
    }

    /// Returns the number of denials for this reason.
    pub fn denied(&self, reason: Reason) -> u64 {
        self.by_result[index(Some(reason))]
    }

    /// Returns each reason with the number of its denials.
    pub fn by_reason(&self) -> impl Iterator<Item = (Reason, u64)> {
        let results = RESULTS.into_iter().zip(self.by_result);
        results.filter_map(|(reason, count)| Some((reason?, count)))
    }

    /// Returns each source with the number of its decisions. `none` comes last: no source was asked, because the limit
    /// blocks or is unlimited, or another rule had denied before.
    pub fn by_source(&self) -> impl ExactSizeIterator<Item = (&'static str, u64)> {
        SOURCES.into_iter().zip(self.by_source)
    }

    /// Returns the number of decisions that allowed and left a fifth of the limit or less.
    pub fn near_limit(&self) -> u64 {
        self.near_limit
    }
}

/// Returns the place of a result in [`RESULTS`].
pub fn index(reason: Option<Reason>) -> usize {
    reason.map_or(0, |reason| reason as usize + 1)
}

/// Allowed, then each reason of a denial in the order of its enum.
pub const RESULTS: [Option<Reason>; 6] = [
    None,
    Some(Reason::Blocked),
    Some(Reason::CostExceedsLimit),
    Some(Reason::LimitExceeded),
    Some(Reason::StoreUnavailable),
    Some(Reason::Overloaded),
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
    fn each_result_has_the_place_that_its_index_says() {
        for (place, reason) in RESULTS.into_iter().enumerate() {
            assert_eq!(index(reason), place);
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
