//! The outcome of each charge of a plan, and its source: the store, this instance alone, or the
//! rule's `on_outage`.

use smallvec::SmallVec;

use crate::counter::ChargeReply;

/// The outcome of one charge, and its source.
#[derive(Clone, Copy, Debug)]
pub enum ChargeOutcome {
    /// The store evaluated it: Redis, or memory if there is none.
    Store(ChargeReply),
    /// This instance evaluated it, by its local share of the limit.
    Fallback(ChargeReply, Cause),
    /// The rule's `on_outage` decided.
    OutagePolicy {
        /// Whether it allows.
        passes: bool,
        /// Why the store did not evaluate the charge.
        cause: Cause,
    },
    /// The denial cache holds an earlier denial that still applies. Unknown numbers are `None`.
    Remembered {
        /// The rest of the wait.
        retry_after_us: Option<u64>,
        /// The quota left.
        remaining: Option<u64>,
        /// The time until the counter is full again.
        reset_after_us: Option<u64>,
    },
    /// The store charged it, and the charge was refunded because another counter denied. The
    /// counter's state since then is unknown.
    Refunded,
    /// It was not evaluated, because another counter had denied already.
    NotAsked,
}

/// Why the store did not evaluate a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The shard is out of reach.
    Outage,
    /// The shard works but did not answer in time.
    Overload,
}

impl ChargeOutcome {
    /// Returns the stricter of two outcomes of a counter that is kept at two locations; `other`
    /// comes from the older. A denial wins, then the longer wait, then the smaller remaining quota.
    /// An old owner that the ring gave up has no influence.
    pub fn and(self, other: ChargeOutcome) -> ChargeOutcome {
        match (self, other) {
            // A remembered denial is final, and a copy without a result has no influence.
            (ChargeOutcome::Remembered { .. }, _)
            | (_, ChargeOutcome::NotAsked | ChargeOutcome::OutagePolicy { passes: true, .. }) => {
                self
            }
            // The rule denies without the other copy's shard. A denial by a limit comes before that.
            (_, ChargeOutcome::OutagePolicy { passes: false, .. }) => {
                if self.refuses() {
                    self
                } else {
                    other
                }
            }
            // An outage policy that allows gives way to an older owner that denies, since that
            // owner knows the counter.
            (_, ChargeOutcome::Remembered { .. }) | (ChargeOutcome::NotAsked, _) => other,
            (_, ChargeOutcome::Refunded) => self,
            (ChargeOutcome::Refunded, _) => other,
            (ChargeOutcome::OutagePolicy { passes, .. }, _) => {
                if passes && other.refuses() {
                    other
                } else {
                    self
                }
            }
            (
                ChargeOutcome::Store(one) | ChargeOutcome::Fallback(one, _),
                ChargeOutcome::Store(older) | ChargeOutcome::Fallback(older, _),
            ) => {
                if older.tightness() > one.tightness() {
                    other
                } else {
                    self
                }
            }
        }
    }

    /// Returns whether an evaluation found no room.
    pub fn refuses(self) -> bool {
        matches!(self, ChargeOutcome::Store(counter) | ChargeOutcome::Fallback(counter, _) if !counter.fits)
    }
}

/// The outcome of each charge, in the order of the transaction.
pub type ChargeOutcomes = SmallVec<[ChargeOutcome; 1]>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Reading;

    fn policy(passes: bool) -> ChargeOutcome {
        ChargeOutcome::OutagePolicy { passes, cause: Cause::Outage }
    }

    fn store(fits: bool) -> ChargeOutcome {
        let reading = Reading { remaining: 0, retry_after_us: None, reset_after_us: 0 };
        ChargeOutcome::Store(ChargeReply { fits, reading, charge: None })
    }

    /// Once, the denial was lost: the request was allowed, and charged nowhere.
    #[test]
    fn a_copy_that_the_outage_policy_denies_denies_the_counter() {
        use ChargeOutcome::{NotAsked, OutagePolicy, Refunded};
        for one in [NotAsked, Refunded, store(true), policy(true), policy(false)] {
            let both = one.and(policy(false));
            assert!(matches!(both, OutagePolicy { passes: false, .. }), "{one:?}: {both:?}");
            let both = policy(false).and(one);
            assert!(matches!(both, OutagePolicy { passes: false, .. }), "{one:?}: {both:?}");
        }
        assert!(store(false).and(policy(false)).refuses());
        assert!(matches!(store(true).and(policy(true)), ChargeOutcome::Store(_)));
    }
}
