//! What was heard of each counter of a plan, and from whom: its shard, this process alone, or the rule.

use smallvec::SmallVec;

use crate::counter::ChargeReply;

/// What was heard of one counter, and from whom.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChargeOutcome {
    /// Its shard decided.
    Store(ChargeReply),
    /// This process decided, by its share of the limit.
    Fallback(ChargeReply, Cause),
    /// The rule decided, by what it says of an outage.
    OutagePolicy { passes: bool, cause: Cause },
    /// Its shard refused before, and that still holds; what is not known of it is absent.
    Remembered { retry_after_us: Option<u64>, remaining: Option<u64>, reset_after_us: Option<u64> },
    /// Its shard had room, and what it charged was refunded, for another counter refused; how it stands
    /// since then nobody has told.
    Refunded,
    /// Nobody was asked, for another counter had refused already.
    NotAsked,
}

/// Why the store had no part in a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It is out of reach.
    Outage,
    /// It works, and did not answer in time.
    Overload,
}

impl ChargeOutcome {
    /// What counts where a counter is kept in two places, and `other` is what was heard of the older: the
    /// refusal, the longer wait, the smaller rest. An old owner that was given up says nothing.
    pub(crate) fn and(self, other: ChargeOutcome) -> ChargeOutcome {
        match (self, other) {
            (ChargeOutcome::Remembered { .. }, _)
            | (_, ChargeOutcome::NotAsked | ChargeOutcome::OutagePolicy { .. }) => self,
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

    pub(crate) fn refuses(self) -> bool {
        matches!(self, ChargeOutcome::Store(counter) | ChargeOutcome::Fallback(counter, _) if !counter.fits)
    }
}

/// What was heard of each counter, as asked.
pub(crate) type ChargeOutcomes = SmallVec<[ChargeOutcome; 1]>;

/// In what order the parts are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The widest last.
    OneByOne,
    /// All at once: less waiting, and a refused request burdens shared counters for a round trip.
    AtOnce,
}
