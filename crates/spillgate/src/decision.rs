//! The answer: one verdict, and what it means for each tier that was asked.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::Charge;
use crate::limit::{Algorithm, Limit};
use crate::policy::{LimitPlace, Policy};
use crate::reservation::Receipt;

mod debug;
mod judged;
mod kept;
mod words;

pub(crate) use judged::Judged;
use kept::Kept;
pub use words::{Reason, Source, Verdict};

/// One verdict over every tier that a request met.
///
/// The numbers at the top are those of the tier that matters most: of the refusing one that takes
/// longest, else of the one nearest to its end. What is not known is `None`, never made up.
#[derive(Clone)]
pub struct Decision {
    verdict: Verdict,
    source: Source,
    top: Option<u16>,
    tiers: Kept,
    names: Names,
}

/// The tiers of a decision while it is made.
pub(crate) type Tiers = SmallVec<[Judged; 1]>;

/// Where the names of tiers are found.
#[derive(Clone)]
pub(crate) enum Names {
    Policy(Arc<Policy>),
    AdHoc(Limit),
}

/// One tier of a decision.
#[derive(Clone, Copy)]
pub struct TierDecision<'d> {
    tier: &'d Judged,
    names: &'d Names,
}

impl Decision {
    #[inline]
    pub(crate) fn new(tiers: Tiers, names: Names) -> Decision {
        let enforced = || tiers.iter().filter(|tier| !tier.shadow);
        let decisive = enforced().filter(|tier| !tier.advisory);
        let verdict = decisive.map(|tier| tier.verdict).max().unwrap_or(Verdict::Allowed);
        let source = enforced().map(|tier| tier.source).max().unwrap_or(Source::Store);
        // A decision is over 64 tiers at most.
        let top = top(&tiers, verdict).map(|top| top as u16);
        Decision { verdict, source, top, tiers: tiers.into(), names }
    }

    /// The decision over one enforced counter.
    #[inline]
    pub(crate) fn of_one(judged: Judged, names: Names) -> Decision {
        let (verdict, source) = (judged.verdict, judged.source);
        Decision { verdict, source, top: Some(0), tiers: Kept::One(judged), names }
    }

    pub(crate) fn with_receipt(mut self, receipt: Receipt) -> Decision {
        self.tiers.set_receipt(receipt);
        self
    }

    /// What a reservation is settled, cancelled, released or renewed by, and a check over a
    /// concurrency limit released or renewed: there if it was allowed.
    pub fn receipt(&self) -> Option<&Receipt> {
        self.tiers.receipt()
    }

    /// May it happen?
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Whether it may happen.
    pub fn allowed(&self) -> bool {
        self.verdict == Verdict::Allowed
    }

    /// Returns why it is not allowed, `None` if it is. Of several reasons, the first in the order of
    /// [`Reason`] is returned.
    pub fn reason(&self) -> Option<Reason> {
        if self.allowed() {
            return None;
        }
        let decisive = self.tiers().filter(|tier| !tier.shadow() && !tier.advisory());
        decisive.filter_map(|tier| tier.reason()).min()
    }

    /// How long to wait; zero if allowed, `None` if no wait helps or nobody knows.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.verdict {
            Verdict::Allowed => Some(Duration::ZERO),
            Verdict::Never => None,
            Verdict::Denied => self.top().and_then(|tier| tier.retry_after()),
        }
    }

    /// The rule of the tier that matters most.
    pub fn rule(&self) -> Option<&str> {
        self.top().and_then(|tier| tier.rule())
    }

    /// The limit of the tier that matters most.
    pub fn limit(&self) -> Option<&str> {
        self.top().map(|tier| tier.limit())
    }

    /// How much that tier holds when untouched.
    pub fn capacity(&self) -> Option<u64> {
        self.top().and_then(|tier| tier.capacity())
    }

    /// The largest cost that it would admit now.
    pub fn remaining(&self) -> Option<u64> {
        self.top().and_then(|tier| tier.remaining())
    }

    /// How long until it is untouched again.
    pub fn reset_after(&self) -> Option<Duration> {
        self.top().and_then(|tier| tier.reset_after())
    }

    /// Who judged: the worst of the enforced tiers' sources.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Whether the store had no part in it.
    pub fn degraded(&self) -> bool {
        self.source >= Source::Fallback
    }

    /// Every tier, in the order of the policy, shadow rules included.
    pub fn tiers(&self) -> impl ExactSizeIterator<Item = TierDecision<'_>> {
        self.tiers.as_slice().iter().map(|tier| TierDecision { tier, names: &self.names })
    }

    /// The tier that matters most, whose numbers are those of the decision: of the refusing ones the
    /// one with the longest wait, else the one with the least left of its capacity.
    pub fn top(&self) -> Option<TierDecision<'_>> {
        let tiers = self.tiers.as_slice();
        self.top.map(|top| TierDecision { tier: &tiers[usize::from(top)], names: &self.names })
    }
}

impl<'d> TierDecision<'d> {
    /// The rule; `None` for a limit that came with the request.
    pub fn rule(&self) -> Option<&'d str> {
        match self.names {
            Names::Policy(policy) => Some(policy.rule_name(self.place())),
            Names::AdHoc(_) => None,
        }
    }

    /// The limit's name: as given, else its position in the rule. A limit that the request asked for beside it is
    /// `NAME.request`.
    pub fn limit(&self) -> &'d str {
        if let Some(name) = self.tier.narrowed().and_then(Limit::name) {
            return name;
        }
        match self.names {
            Names::Policy(policy) => policy.limit_name(self.place()),
            Names::AdHoc(limit) => limit.name().unwrap_or("0"),
        }
    }

    /// What it counts.
    pub fn unit(&self) -> &'d str {
        self.definition().unit()
    }

    /// How it counts.
    pub fn algorithm(&self) -> Algorithm {
        self.definition().algorithm()
    }

    /// The limit itself.
    pub fn definition(&self) -> &'d Limit {
        if let Some(narrowed) = self.tier.narrowed() {
            return narrowed;
        }
        match self.names {
            Names::Policy(policy) => policy.limit(self.place()),
            Names::AdHoc(limit) => limit,
        }
    }

    /// What this tier alone would have said; a tier that nobody was asked about, because another
    /// had refused already, refused nothing, and has no numbers.
    pub fn verdict(&self) -> Verdict {
        self.tier.verdict
    }

    /// Returns why this tier denies, `None` if it does not.
    pub fn reason(&self) -> Option<Reason> {
        match (self.tier.verdict, self.tier.source) {
            (Verdict::Allowed, _) => None,
            (Verdict::Never, _) if self.capacity() == Some(0) => Some(Reason::Blocked),
            (Verdict::Never, _) => Some(Reason::CostExceedsLimit),
            (Verdict::Denied, Source::OutagePolicy) if self.tier.overloaded => {
                Some(Reason::Overloaded)
            }
            (Verdict::Denied, Source::OutagePolicy) => Some(Reason::StoreUnavailable),
            (Verdict::Denied, _) => Some(Reason::LimitExceeded),
        }
    }

    /// Who judged.
    pub fn source(&self) -> Source {
        self.tier.source
    }

    /// Whether its rule is only watched, and had no part in the verdict.
    pub fn shadow(&self) -> bool {
        self.tier.shadow
    }

    /// Whether it had no part in the verdict because nothing was asked of it: its rule is charged
    /// afterwards, or it was given back to. What it says is how it stands.
    pub fn advisory(&self) -> bool {
        self.tier.advisory
    }

    /// How much it holds when untouched; `None` if unlimited.
    pub fn capacity(&self) -> Option<u64> {
        self.tier.capacity.number()
    }

    /// The largest cost that it would admit now.
    pub fn remaining(&self) -> Option<u64> {
        self.tier.remaining.number()
    }

    /// How long until it would admit the cost; zero if it does, `None` if never or unknown.
    pub fn retry_after(&self) -> Option<Duration> {
        self.tier.retry_after_us.number().map(Duration::from_micros)
    }

    /// How long until it is untouched again.
    pub fn reset_after(&self) -> Option<Duration> {
        self.tier.reset_after_us.number().map(Duration::from_micros)
    }

    /// [`TierDecision::reset_after`] as it is kept.
    #[cfg(feature = "http")]
    pub(crate) fn reset_after_us(&self) -> Option<u64> {
        self.tier.reset_after_us.number()
    }

    /// What a receipt needs to give this tier's charge back.
    #[doc(hidden)]
    pub fn charge(&self) -> Option<Charge> {
        self.tier.charge()
    }

    /// Which rule of the policy it is of, and which limit of that rule, counted from 0.
    #[doc(hidden)]
    #[inline]
    pub fn position(&self) -> (usize, usize) {
        (self.tier.rule as usize, usize::from(self.tier.limit))
    }

    /// Where header fields keep what they say of the limit, unless another is in force in its place.
    #[cfg(feature = "http")]
    pub(crate) fn written_limit(
        &self,
        limit_is_named: bool,
    ) -> Option<&'d std::sync::OnceLock<bytes::Bytes>> {
        let Names::Policy(policy) = self.names else { return None };
        let is_whole = self.tier.narrowed().is_none()
            && policy.limit(self.place()).capacity() == self.capacity();
        policy.written_limit(self.place(), limit_is_named).filter(|_| is_whole)
    }

    fn place(&self) -> LimitPlace {
        let Judged { rule, overridden, limit, .. } = *self.tier;
        LimitPlace { rule, overridden: overridden.number(), limit: u32::from(limit) }
    }
}

/// The tier that speaks for all: the refusing one with the longest wait, unknown being longest;
/// else the one with the least left of its capacity; ties go to the first in the file.
fn top(tiers: &[Judged], verdict: Verdict) -> Option<usize> {
    let enforced = tiers.iter().enumerate().filter(|(_, tier)| !tier.shadow);
    if verdict == Verdict::Allowed {
        let mut least: Option<(usize, u64, u64)> = None;
        for (i, tier) in enforced {
            let numbers = tier.remaining.number().zip(tier.capacity.number());
            let Some((remaining, capacity)) = numbers else { continue };
            let is_less = |(_, other, of): (usize, u64, u64)| {
                u128::from(remaining) * u128::from(of) < u128::from(other) * u128::from(capacity)
            };
            if least.is_none_or(is_less) {
                least = Some((i, remaining, capacity));
            }
        }
        let first = || tiers.iter().position(|tier| !tier.shadow);
        return least.map(|(i, ..)| i).or_else(first);
    }
    let wait = |tier: &Judged| tier.retry_after_us.number().map_or((1, 0), |us| (0, us));
    let mut longest: Option<(usize, (u8, u64))> = None;
    for (i, tier) in enforced.filter(|(_, tier)| !tier.advisory && tier.verdict == verdict) {
        if longest.is_none_or(|(_, known)| wait(tier) > known) {
            longest = Some((i, wait(tier)));
        }
    }
    longest.map(|(i, _)| i)
}
