//! Determines how many tokens of a counter to take, and when: enough for part of a lease's
//! duration, and none for a while after the store granted nothing.

/// The recent demand for one counter.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    asked: u64,
    since_us: u64,
    /// The time of the last request.
    pub(crate) used_us: u64,
    /// No call is made before this time.
    quiet_until_us: u64,
}

impl Demand {
    pub fn new(now_us: u64) -> Demand {
        Demand { asked: 0, since_us: now_us, used_us: now_us, quiet_until_us: 0 }
    }

    /// Returns the demand for a counter that the policy lists as hot. Part of the share is wanted
    /// at once, and is kept for one lease without any request.
    pub fn expected(share: u64, ttl_us: u64, now_us: u64) -> Demand {
        let part = (share / EXPECTED_PART).max(WORTH.min(share));
        // Set so that `wanted`, which measures over the shortest look, returns `part`.
        let asked = (part * AHEAD / SHORTEST_LOOK).max(WORTH.min(share));
        Demand { asked, used_us: now_us.saturating_add(ttl_us), ..Demand::new(now_us) }
    }

    pub fn note(&mut self, cost: u64, now_us: u64) {
        self.asked = self.asked.saturating_add(cost);
        self.used_us = now_us;
    }

    /// Returns the tokens expected to be requested within part of `ttl_us`, by recent demand.
    /// Returns 0 if they are not worth a call, or if the store was called just now.
    pub fn wanted(&self, share: u64, ttl_us: u64, now_us: u64) -> u64 {
        let worth = WORTH.min(share);
        if now_us < self.quiet_until_us || self.asked < worth || self.is_over(ttl_us, now_us) {
            return 0;
        }
        // A short burst does not show the rate to come.
        let elapsed_us = now_us.saturating_sub(self.since_us).max(ttl_us / SHORTEST_LOOK);
        let ahead =
            u128::from(self.asked) * u128::from(ttl_us / AHEAD) / u128::from(elapsed_us.max(1));
        let wanted = u64::try_from(ahead).unwrap_or(u64::MAX).min(share);
        if wanted < worth { 0 } else { wanted }
    }

    /// Returns whether there was no request for a while. Then other instances can use the tokens
    /// better.
    pub fn is_over(&self, ttl_us: u64, now_us: u64) -> bool {
        now_us.saturating_sub(self.used_us) >= ttl_us / IDLE
    }

    /// Returns whether there was no request for `2 * ttl_us`. Then the counter can be dropped.
    pub fn is_forgotten(&self, ttl_us: u64, now_us: u64) -> bool {
        now_us.saturating_sub(self.used_us) >= 2 * ttl_us
    }

    /// Returns whether a call that returns tokens may be made.
    pub fn may_report(&self, now_us: u64) -> bool {
        now_us >= self.quiet_until_us
    }

    /// Notes a call to the store. Half of the measured demand is carried over.
    pub fn note_call(&mut self, ttl_us: u64, now_us: u64) {
        let elapsed_us = now_us.saturating_sub(self.since_us).min(ttl_us);
        self.since_us = now_us - elapsed_us / 2;
        self.asked /= 2;
        self.quiet_until_us = now_us + ttl_us / PACE;
    }

    /// Notes that the store granted nothing or did not answer.
    pub fn note_nothing(&mut self, ttl_us: u64, now_us: u64) {
        self.quiet_until_us = now_us + ttl_us / QUIET;
    }
}

/// A lease should be spent in half of its duration, so that little of it is returned.
const AHEAD: u64 = 2;
/// Up to 4 instances can start at once, and each gets a part.
const EXPECTED_PART: u64 = 4;
/// Demand is measured over an eighth of a lease or more.
const SHORTEST_LOOK: u64 = 8;
/// Tokens that were not used for a quarter of a lease are returned.
const IDLE: u64 = 4;
/// The most calls during one lease. They can bring 16 shares, which is most of a limit.
const PACE: u64 = 32;
/// The pause after a call without a grant, as a part of a lease. It keeps calls for a counter
/// without quota rare.
const QUIET: u64 = 4;
/// A lease of fewer tokens saves no work, and fewer requests do not show the demand to come.
const WORTH: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const TTL_US: u64 = 1_000_000;

    #[test]
    fn wants_a_quarter_of_the_share_of_an_expected_counter_for_one_lease() {
        for (share, wanted) in [(1_000_000, 250_000), (100, 24), (5, 5), (4, 4), (1, 1)] {
            let demand = Demand::expected(share, TTL_US, 7);
            assert_eq!(demand.wanted(share, TTL_US, 7), wanted, "of {share}");
        }
        let demand = Demand::expected(100, TTL_US, 0);
        assert!(!demand.is_over(TTL_US, TTL_US) && demand.is_over(TTL_US, 2 * TTL_US));
    }

    fn asked(count: u64, over_us: u64) -> Demand {
        let mut demand = Demand::new(0);
        (1..=count).for_each(|turn| demand.note(1, turn * over_us / count));
        demand
    }

    #[test]
    fn wants_the_demand_of_half_a_lease() {
        assert_eq!(asked(1_000, 1_000_000).wanted(10_000, TTL_US, 1_000_000), 500);
        assert_eq!(asked(1_000, 1_000_000).wanted(100, TTL_US, 1_000_000), 100);
    }

    #[test]
    fn a_burst_is_not_taken_for_a_rate() {
        assert_eq!(asked(10, 10).wanted(10_000, TTL_US, 10), 40);
    }

    #[test]
    fn a_few_requests_are_not_worth_a_lease() {
        assert_eq!(asked(3, 10).wanted(10_000, TTL_US, 10), 0);
        assert_eq!(asked(2, 10).wanted(2, TTL_US, 10), 2, "of a share of two");
    }

    #[test]
    fn rare_requests_are_not_worth_a_lease() {
        assert_eq!(asked(2, 1_000_000).wanted(10_000, TTL_US, 1_000_000), 0);
        assert_eq!(asked(1_000, 100_000).wanted(10_000, TTL_US, 350_000), 0, "a while ago");
    }

    #[test]
    fn pauses_after_each_call() {
        let mut demand = asked(1_000, 1_000_000);
        demand.note_call(TTL_US, 1_000_000);
        demand.note(100, 1_001_000);
        assert_eq!(demand.wanted(10_000, TTL_US, 1_001_000), 0);
        assert!(demand.wanted(10_000, TTL_US, 1_032_000) > 0);
        demand.note_nothing(TTL_US, 1_032_000);
        demand.note(100, 1_250_000);
        assert_eq!(demand.wanted(10_000, TTL_US, 1_250_000), 0);
        assert!(demand.wanted(10_000, TTL_US, 1_290_000) > 0);
    }
}
