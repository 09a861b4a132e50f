//! The decisions of a rule in some time, small enough to keep many of them.

use super::RuleCounts;
use crate::decision::Reason;

/// The decisions of one rule, or of several, in some time.
///
/// [`RuleCounts::since`] returns them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decisions {
    /// In the order of [`RESULTS`].
    pub results: [u32; RESULTS.len()],
    /// Decisions that allowed and left a fifth of the limit or less.
    pub near_limit: u32,
}

impl Decisions {
    /// Adds others. A sum that is too large for its number stays at the largest.
    pub fn add(&mut self, more: Decisions) {
        for (sum, more) in self.results.iter_mut().zip(more.results) {
            *sum = sum.saturating_add(more);
        }
        self.near_limit = self.near_limit.saturating_add(more.near_limit);
    }

    /// Returns the number of decisions.
    pub fn all(&self) -> u64 {
        self.results.into_iter().map(u64::from).sum()
    }

    /// Returns the number of decisions that allowed, without those of [`would_deny`](Self::would_deny).
    pub fn allowed(&self) -> u64 {
        self.results[0].into()
    }

    /// Returns the number of requests that a shadow rule would have denied.
    pub fn would_deny(&self) -> u64 {
        self.results[RESULTS.len() - 1].into()
    }

    /// Returns the number of denials.
    pub fn denied(&self) -> u64 {
        self.all() - self.allowed() - self.would_deny()
    }
}

impl RuleCounts {
    /// Returns the decisions since an earlier reading, or since the limiter was built.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limit, Limiter, Policy, Request, Rule};
    /// let api = Rule::new("api").key(["user"]).limit(Limit::per_minute(2));
    /// let policy = Policy::builder().rule(api).build()?;
    /// let limiter = Limiter::builder().policy(policy).build().await?;
    /// let ada = Request::new().with("user", "ada");
    /// limiter.check_batch(&[ada.clone()]).await;
    /// let before = limiter.counts().rules[0].clone();
    /// limiter.check_batch(&[ada.clone(), ada.clone(), ada]).await;
    /// let since = limiter.counts().rules[0].since(Some(&before));
    /// assert_eq!((since.allowed(), since.denied()), (1, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn since(&self, before: Option<&RuleCounts>) -> Decisions {
        let count = |of: &dyn Fn(&RuleCounts) -> u64| grown(of(self), before.map_or(0, of));
        let mut results = [0; RESULTS.len()];
        results[0] = count(&RuleCounts::allowed);
        for (result, reason) in results[1..].iter_mut().zip(REASONS) {
            *result = count(&|counts| counts.denied(reason));
        }
        results[RESULTS.len() - 1] = count(&RuleCounts::would_deny);
        Decisions { results, near_limit: count(&RuleCounts::near_limit) }
    }

    /// Adds the decisions since an earlier reading to the sums of each source, in the order of
    /// [`by_source`](Self::by_source).
    pub fn add_sources_since(&self, before: Option<&RuleCounts>, sums: &mut [u32]) {
        let before = before.into_iter().flat_map(RuleCounts::by_source).map(|(_, count)| count);
        let before = before.chain(std::iter::repeat(0));
        for ((sum, (_, now)), before) in sums.iter_mut().zip(self.by_source()).zip(before) {
            *sum = sum.saturating_add(grown(now, before));
        }
    }
}

/// Returns the growth of a count. One that is smaller than before began anew.
fn grown(now: u64, before: u64) -> u32 {
    u32::try_from(now.checked_sub(before).unwrap_or(now)).unwrap_or(u32::MAX)
}

/// Allowed, the reasons of denials as every API spells them, and what shadow rules would have denied.
#[doc(hidden)]
pub const RESULTS: [&str; 7] = [
    "allowed",
    "limit-exceeded",
    "cost-exceeds-limit",
    "blocked",
    "store-unavailable",
    "overloaded",
    "would-deny",
];

/// The reasons in the order of [`RESULTS`].
const REASONS: [Reason; 5] = [
    Reason::LimitExceeded,
    Reason::CostExceedsLimit,
    Reason::Blocked,
    Reason::StoreUnavailable,
    Reason::Overloaded,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_the_order_of_their_names() {
        for (reason, name) in REASONS.into_iter().zip(&RESULTS[1..]) {
            assert_eq!(reason.as_str(), *name);
        }
    }
}
