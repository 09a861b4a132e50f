//! How much of a counter is worth taking ahead, and when: as much as is asked for in a part of the time
//! that a lease lasts, and nothing for a while where the store had nothing to spare.

/// What was asked of one counter lately.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    asked: u64,
    since_us: u64,
    /// When somebody asked last.
    pub(super) used_us: u64,
    /// The store is left alone until then.
    quiet_until_us: u64,
}

impl Demand {
    pub(super) fn new(now_us: u64) -> Demand {
        Demand { asked: 0, since_us: now_us, used_us: now_us, quiet_until_us: 0 }
    }

    /// Of a counter that is said to be hot before anybody asks: a part of the share is worth taking, and for
    /// as long as a lease lasts nobody need ask for it to be kept.
    pub(super) fn expected(share: u64, ttl_us: u64, now_us: u64) -> Demand {
        let part = (share / EXPECTED_PART).max(WORTH.min(share));
        // What was asked within the shortest look lets as much be wanted.
        let asked = (part * AHEAD / SHORTEST_LOOK).max(WORTH.min(share));
        Demand { asked, used_us: now_us.saturating_add(ttl_us), ..Demand::new(now_us) }
    }

    #[inline]
    pub(super) fn note(&mut self, cost: u64, now_us: u64) {
        self.asked = self.asked.saturating_add(cost);
        self.used_us = now_us;
    }

    /// As much as will be asked for within a part of `ttl_us`, going by what was lately; 0 where that is
    /// not worth a call, or the store was just asked.
    pub(super) fn wanted(&self, share: u64, ttl_us: u64, now_us: u64) -> u64 {
        let worth = WORTH.min(share);
        if now_us < self.quiet_until_us || self.asked < worth || self.is_over(ttl_us, now_us) {
            return 0;
        }
        // A burst of a moment says little of the time to come.
        let elapsed_us = now_us.saturating_sub(self.since_us).max(ttl_us / SHORTEST_LOOK);
        let ahead =
            u128::from(self.asked) * u128::from(ttl_us / AHEAD) / u128::from(elapsed_us.max(1));
        let wanted = u64::try_from(ahead).unwrap_or(u64::MAX).min(share);
        if wanted < worth { 0 } else { wanted }
    }

    /// Nobody has asked for a while: what is held would help others more.
    pub(super) fn is_over(&self, ttl_us: u64, now_us: u64) -> bool {
        now_us.saturating_sub(self.used_us) >= ttl_us / IDLE
    }

    /// Nobody has asked for so long that it need not be remembered.
    pub(super) fn is_forgotten(&self, ttl_us: u64, now_us: u64) -> bool {
        now_us.saturating_sub(self.used_us) >= 2 * ttl_us
    }

    /// Whether the store may be told of returns.
    pub(super) fn may_tell(&self, now_us: u64) -> bool {
        now_us >= self.quiet_until_us
    }

    /// The store was asked; half of what was seen counts on.
    pub(super) fn note_call(&mut self, ttl_us: u64, now_us: u64) {
        let elapsed_us = now_us.saturating_sub(self.since_us).min(ttl_us);
        self.since_us = now_us - elapsed_us / 2;
        self.asked /= 2;
        self.quiet_until_us = now_us + ttl_us / PACE;
    }

    /// It had nothing to spare, or did not answer.
    pub(super) fn note_nothing(&mut self, ttl_us: u64, now_us: u64) {
        self.quiet_until_us = now_us + ttl_us / QUIET;
    }
}

/// A lease is to serve half of the time that it lasts: its rest is returned seldom.
const AHEAD: u64 = 2;
/// So many processes may start at once, and each has a part.
const EXPECTED_PART: u64 = 4;
/// What is asked for is measured over an eighth of a lease at least.
const SHORTEST_LOOK: u64 = 8;
/// What nobody used for a quarter of a lease is returned.
const IDLE: u64 = 4;
/// No more than so many calls while a lease lasts: enough to bring 16 shares, which is most of a limit.
const PACE: u64 = 32;
/// After nothing was granted: a counter that is empty is not asked for more than it is drained by.
const QUIET: u64 = 4;
/// A lease of fewer tokens saves no work, and whoever asked for fewer says little of what will be asked for.
const WORTH: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const TTL_US: u64 = 1_000_000;

    #[test]
    fn of_what_is_expected_a_quarter_of_the_share_is_wanted_at_once_and_kept_for_a_lease() {
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
    fn as_much_is_wanted_as_half_a_lease_will_serve() {
        assert_eq!(asked(1_000, 1_000_000).wanted(10_000, TTL_US, 1_000_000), 500);
        assert_eq!(asked(1_000, 1_000_000).wanted(100, TTL_US, 1_000_000), 100);
    }

    #[test]
    fn a_burst_is_not_taken_for_a_rate() {
        assert_eq!(asked(10, 10).wanted(10_000, TTL_US, 10), 40);
    }

    #[test]
    fn the_first_few_are_not_taken_for_more() {
        assert_eq!(asked(3, 10).wanted(10_000, TTL_US, 10), 0);
        assert_eq!(asked(2, 10).wanted(2, TTL_US, 10), 2, "of a share of two");
    }

    #[test]
    fn what_is_asked_for_seldom_is_not_wanted() {
        assert_eq!(asked(2, 1_000_000).wanted(10_000, TTL_US, 1_000_000), 0);
        assert_eq!(asked(1_000, 100_000).wanted(10_000, TTL_US, 350_000), 0, "a while ago");
    }

    #[test]
    fn the_store_is_left_alone_for_a_while() {
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
