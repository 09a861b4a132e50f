//! Makes one plan of several requests, or of one request that refunds or asks for a limit. A counter that
//! several requests charge is charged once, for the sum of their costs.

use std::slice;

use smallvec::SmallVec;

use super::{Charged, FollowUp, Plan, PlanMode};
use crate::algorithm::Refund;
use crate::counter::{Change, PlannedCharge};
use crate::decision::{CounterOutcome, CounterOutcomes};
use crate::limit::{Limit, NamedLimit};
use crate::policy::{Matched, Mode, Policy, RequestLimit};
use crate::request::{Cost, Request};
use crate::subject::{Secret, SubjectKey};

/// The limits of one rule or of one inline limit, for one subject of one or more requests.
#[derive(Debug)]
pub struct SharedMatch<'p> {
    limits: MatchedLimits<'p>,
    /// The subject's key.
    key: SubjectKey,
    cost: Cost<'static>,
    returned: Cost<'static>,
    /// Whether any request charges; the others only refund.
    asks: bool,
    /// The requests that match it, by index.
    parts: SmallVec<[usize; 2]>,
}

/// The limits that requests match.
#[derive(Debug)]
enum MatchedLimits<'p> {
    /// Those of a rule, or those that requests make of them.
    Rule {
        matched: Matched<'p>,
        asked: Option<AskedLimits>,
    },
    Inline(NamedLimit),
}

/// The limits in force for a rule if requests ask for limits of their own.
#[derive(Debug)]
struct AskedLimits {
    /// The rule's limits that stay in force, followed by those of requests.
    in_force: Box<[NamedLimit]>,
    /// For each limit of requests, the position of the rule's limit that it was made from.
    made_from: Box<[usize]>,
}

impl AskedLimits {
    /// Returns the limits of a rule with those that `asked` adds, or lowers if an earlier request
    /// added them. Returns `None` if nothing is added.
    fn lower(
        configured: &[NamedLimit],
        before: Option<&AskedLimits>,
        asked: &Limit,
    ) -> Option<AskedLimits> {
        let (mut in_force, mut made_from) = (configured.to_vec(), Vec::new());
        for (position, limit) in configured.iter().enumerate() {
            let added = before.and_then(|before| before.made_from(position));
            let lowered = added.unwrap_or(limit).limit().narrowed(asked);
            // A limit that is not below the configured one adds nothing.
            let lowered = lowered.filter(|lowered| lowered.kind() != limit.limit().kind());
            let lowered = lowered.map(|lowered| NamedLimit::beside(limit, lowered));
            if let Some(limit) = lowered.or_else(|| added.cloned()) {
                in_force.push(limit);
                made_from.push(position);
            }
        }
        let made_from = Some(made_from).filter(|made_from| !made_from.is_empty())?;
        Some(AskedLimits { in_force: in_force.into(), made_from: made_from.into() })
    }

    /// Returns the limit that `asked` puts in place of a rule's only one. If an earlier request
    /// replaced it, the lower of both. Returns `None` if the rule's limit stays.
    fn replacing(
        configured: &NamedLimit,
        before: Option<AskedLimits>,
        asked: &Limit,
    ) -> Option<AskedLimits> {
        let limit = match before.as_ref().and_then(|before| before.made_from(0)) {
            Some(earlier) => match earlier.limit().narrowed(asked) {
                Some(lower) => lower,
                None => return before,
            },
            None => configured.limit().replaced_by(asked)?,
        };
        let in_force = [NamedLimit::in_place_of(configured, limit)].into();
        Some(AskedLimits { in_force, made_from: [0].into() })
    }

    /// Returns the number of the rule's limits that stay in force.
    fn kept(&self) -> usize {
        self.in_force.len() - self.made_from.len()
    }

    /// Returns the limit of requests made from the rule's limit at `position`.
    fn made_from(&self, position: usize) -> Option<&NamedLimit> {
        let index = self.made_from.iter().position(|of| *of == position)?;
        self.in_force.get(self.kept() + index)
    }

    /// Returns the limit at `index`, with the position of the rule's limit that it was made from;
    /// `None` if the limit at `index` is the rule's.
    fn of_requests(&self, index: usize) -> Option<(usize, &NamedLimit)> {
        let number = index.checked_sub(self.kept())?;
        Some((*self.made_from.get(number)?, self.in_force.get(index)?))
    }
}

impl<'p> SharedMatch<'p> {
    /// Returns each rule or inline limit and subject that the requests match, once. `policy` may be
    /// `None` if all of them bring an inline limit.
    pub fn all(
        policy: Option<&'p Policy>,
        requests: &[Request<'_>],
        secret: &Secret,
        mode: PlanMode,
    ) -> Vec<SharedMatch<'p>> {
        let mut all: Vec<SharedMatch<'p>> = Vec::new();
        for (number, request) in requests.iter().enumerate() {
            if let Some((key, limit)) = request.inline_limit() {
                let domain = request.domain();
                let limit = NamedLimit::new(limit.clone(), 0);
                let key = limit.inline_key(secret.inline_key_in(domain, key));
                let limits = MatchedLimits::Inline(limit);
                SharedMatch::known_or_new(&mut all, limits, key).add(number, request, mode);
                continue;
            }
            let Some(policy) = policy else { continue };
            let request = &*policy.typed(request);
            for matched in policy.matched(request) {
                let key = matched.rule.subject_key(request, secret);
                let limits = MatchedLimits::Rule { matched, asked: None };
                SharedMatch::known_or_new(&mut all, limits, key).add(number, request, mode);
            }
        }
        all
    }

    /// Picks the counters that one request matches out of those of all requests.
    pub fn counters_of(
        part: usize,
        shared_matches: &[SharedMatch<'_>],
        outcomes: &CounterOutcomes,
    ) -> CounterOutcomes {
        let matched = placed(shared_matches).filter(|(_, shared)| shared.parts.contains(&part));
        matched
            .flat_map(|(first, shared)| &outcomes[first..first + shared.limits.in_force().len()])
            .cloned()
            .collect()
    }

    /// Returns the match with these limits and this subject, which is added if it is new.
    fn known_or_new<'m>(
        all: &'m mut Vec<SharedMatch<'p>>,
        limits: MatchedLimits<'p>,
        key: SubjectKey,
    ) -> &'m mut SharedMatch<'p> {
        // A key names the rule too, so equal keys mean the same rule and subject. One inline key has a
        // counter for each period and algorithm.
        let is_known = |known: &SharedMatch<'_>| {
            known.key == key && known.limits.inline_mix() == limits.inline_mix()
        };
        let index = all.iter().position(is_known).unwrap_or(all.len());
        if index == all.len() {
            let nothing = || Cost::requests(0);
            let (cost, returned) = (nothing(), nothing());
            let parts = SmallVec::new();
            all.push(SharedMatch { limits, key, cost, returned, asks: false, parts });
        }
        &mut all[index]
    }

    fn add(&mut self, number: usize, request: &Request<'_>, mode: PlanMode) {
        self.parts.push(number);
        if mode == PlanMode::Peek {
            self.asks = true;
        } else if !request.refunds() {
            self.asks = true;
            self.cost.add(request.cost());
        } else if self.limits.take_refunds() {
            self.returned.add(request.cost());
        }
        if let Some(asked) = request.request_limit() {
            self.limits.take_request_limit(asked);
        }
    }

    /// Returns the outcome of a counter before it is evaluated. A request's limit has the position
    /// of the rule's limit that it was made from.
    fn unknown(&self, index: usize) -> CounterOutcome {
        let (outcome, brought) = match &self.limits {
            MatchedLimits::Inline(limit) => (CounterOutcome::inline(), Some(limit)),
            MatchedLimits::Rule { matched, asked } => {
                let brought = asked.as_ref().and_then(|asked| asked.of_requests(index));
                let (position, brought) =
                    brought.map_or((index, None), |(position, limit)| (position, Some(limit)));
                (CounterOutcome::unknown(matched, position), brought)
            }
        };
        let mut outcome = CounterOutcome { advisory: !self.asks, ..outcome };
        if let Some(limit) = brought {
            outcome.brought = Some(limit.limit().clone().into());
        }
        outcome
    }

    /// Returns whether it takes part in the decision.
    fn is_decisive(&self) -> bool {
        self.asks && !self.limits.are_in_shadow()
    }
}

impl MatchedLimits<'_> {
    /// Returns the limits in force, those of requests included.
    fn in_force(&self) -> &[NamedLimit] {
        match self {
            MatchedLimits::Inline(limit) => slice::from_ref(limit),
            MatchedLimits::Rule { asked: Some(asked), .. } => &asked.in_force,
            MatchedLimits::Rule { matched, asked: None } => matched.limits,
        }
    }

    fn charged(&self) -> Charged<'_> {
        match self {
            MatchedLimits::Inline(limit) => Charged::inline(limit),
            MatchedLimits::Rule { matched, .. } => {
                Charged { limits: self.in_force(), ..Charged::by_rule(matched) }
            }
        }
    }

    /// Returns the hash that distinguishes the counters of one inline key; `None` for a rule.
    fn inline_mix(&self) -> Option<u128> {
        match self {
            MatchedLimits::Inline(limit) => Some(limit.mix()),
            MatchedLimits::Rule { .. } => None,
        }
    }

    /// Returns whether a caller may refund without a receipt.
    fn take_refunds(&self) -> bool {
        match self {
            MatchedLimits::Inline(_) => true,
            MatchedLimits::Rule { matched, .. } => matched.rule.negative_hits(),
        }
    }

    fn are_in_shadow(&self) -> bool {
        match self {
            MatchedLimits::Inline(_) => false,
            MatchedLimits::Rule { matched, .. } => matched.rule.mode() == Mode::Shadow,
        }
    }

    /// Takes the limit that a request asks for, as the rule says. If several requests ask for one,
    /// the lowest of them applies to all.
    fn take_request_limit(&mut self, limit: &Limit) {
        let MatchedLimits::Rule { matched, asked } = self else { return };
        *asked = match (matched.rule.request_limit(), matched.limits) {
            (RequestLimit::Ignore, _) => None,
            // An operator's override is the last word, so it can only be lowered.
            (RequestLimit::Replace, [configured]) if matched.overridden.is_none() => {
                AskedLimits::replacing(configured, asked.take(), limit)
            }
            (RequestLimit::Lower | RequestLimit::Replace, configured) => {
                AskedLimits::lower(configured, asked.as_ref(), limit)
            }
        };
    }
}

impl Plan {
    /// Builds one plan from all matches.
    pub fn of_shared_matches(shared_matches: &[SharedMatch<'_>]) -> Plan {
        let mut plan = Plan::empty();
        for shared in shared_matches {
            let indexes = 0..shared.limits.in_force().len();
            plan.outcomes.extend(indexes.map(|index| shared.unknown(index)));
        }
        // As in `Plan::add_rules`. Matches that only refund get groups of their own, like shadow
        // rules, so that they cannot deny.
        let mut group = 0;
        for decisive in [true, false] {
            for (first, shared) in placed(shared_matches) {
                if shared.is_decisive() == decisive {
                    group += u16::from(!decisive);
                    let charged = shared.limits.charged();
                    plan.add_charged(charged, first, shared.key, &shared.cost, group);
                }
            }
        }
        for (first, shared) in placed(shared_matches) {
            let charged = shared.limits.charged();
            plan.add_postpaid(charged, first, shared.key, &shared.cost, &mut group);
            plan.add_returns(shared, first);
        }
        plan
    }

    fn add_returns(&mut self, shared: &SharedMatch<'_>, first: usize) {
        let Charged { limits, attributes, .. } = shared.limits.charged();
        // A decision has 64 counters at most.
        for (index, limit) in (first as u16..).zip(limits) {
            let returned = shared.returned.of_limit(limit.limit());
            if limit.params().is_some() && returned > 0 {
                let counter = PlannedCharge {
                    index,
                    attributes,
                    ..PlannedCharge::new(shared.key, limit.clone())
                };
                let change = Change::Refund(Refund::Amount(returned));
                self.follow_ups.push(FollowUp { counter, change });
            }
        }
    }
}

/// Returns each match with the index of its first counter.
fn placed<'a, 'm>(
    shared_matches: &'a [SharedMatch<'m>],
) -> impl Iterator<Item = (usize, &'a SharedMatch<'m>)> {
    shared_matches.iter().scan(0, |next, shared| {
        let first = *next;
        *next += shared.limits.in_force().len();
        Some((first, shared))
    })
}
