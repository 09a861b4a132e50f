//! What was heard of each counter of a plan, and from whom: its shard, this process alone, or the rule.

use smallvec::SmallVec;

use crate::counter::ToldTier;

/// What was heard of one tier, and from whom.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heard {
    /// Its shard decided.
    Store(ToldTier),
    /// This process decided, by its share of the limit.
    Fallback(ToldTier, Cause),
    /// The rule decided, by what it says of an outage.
    OutagePolicy { passes: bool, cause: Cause },
    /// Its shard refused before, and that still holds; what is not known of it is absent.
    Refused { retry_after_us: Option<u64>, remaining: Option<u64>, reset_after_us: Option<u64> },
    /// Its shard had room, and what it charged was given back, for another tier refused; how it stands
    /// since then nobody has told.
    GivenBack,
    /// Nobody was asked, for another tier had refused already.
    Nobody,
}

/// Why the store had no part in a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It is out of reach.
    Outage,
    /// It works, and did not answer in time.
    Overload,
}

impl Heard {
    /// What counts where a tier is kept in two places, and `other` is what was heard of the older: the
    /// refusal, the longer wait, the smaller rest. An old owner that was given up says nothing.
    pub(crate) fn and(self, other: Heard) -> Heard {
        match (self, other) {
            (Heard::Refused { .. }, _) | (_, Heard::Nobody | Heard::OutagePolicy { .. }) => self,
            (_, Heard::Refused { .. }) | (Heard::Nobody, _) => other,
            (_, Heard::GivenBack) => self,
            (Heard::GivenBack, _) => other,
            (Heard::OutagePolicy { passes, .. }, _) => {
                if passes && other.refuses() {
                    other
                } else {
                    self
                }
            }
            (
                Heard::Store(one) | Heard::Fallback(one, _),
                Heard::Store(older) | Heard::Fallback(older, _),
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
        matches!(self, Heard::Store(tier) | Heard::Fallback(tier, _) if !tier.fits)
    }
}

/// What was heard of each tier, as asked.
pub(crate) type Heards = SmallVec<[Heard; 1]>;

/// In what order the parts are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The widest last.
    OneByOne,
    /// All at once: less waiting, and a refused request burdens shared tiers for a round trip.
    AtOnce,
}
