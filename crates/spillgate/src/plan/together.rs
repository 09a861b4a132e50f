//! Makes one plan of several requests. A counter that two of them match is charged once, for both
//! costs.

use smallvec::SmallVec;

use super::{FollowUp, Plan, keys_of};
use crate::algorithm::Refund;
use crate::counter::{Change, PlannedCharge};
use crate::decision::{CounterOutcome, CounterOutcomes};
use crate::limit::{Limit, NamedLimit};
use crate::policy::{Matched, Mode, Policy};
use crate::request::Cost;
use crate::subject::{Secret, SubjectKey};
use crate::together::Part;

/// A rule and a subject that one or more requests match.
#[derive(Debug)]
pub(crate) struct SharedMatch<'p> {
    matched: Matched<'p>,
    /// The subject's key, under each secret that is in use.
    keys: SmallVec<[SubjectKey; 1]>,
    /// The limits in force if a request asks for less than the rule allows.
    narrowed: Option<Narrowed>,
    cost: Cost<'static>,
    returned: Cost<'static>,
    /// Whether any request charges; the others only refund.
    asks: bool,
    /// The requests that match it, by index.
    parts: SmallVec<[usize; 2]>,
}

/// The limits of a rule, followed by the narrowed limits that requests add to them.
#[derive(Debug)]
struct Narrowed {
    limits: Box<[NamedLimit]>,
    /// For each narrowed limit, the position of the rule's limit that it was made from.
    beside: Box<[usize]>,
}

impl Narrowed {
    /// Returns the limits of a rule with those that `asked` adds, or lowers if an earlier request
    /// added them. Returns `None` if nothing is added.
    fn by(configured: &[NamedLimit], before: Option<&Narrowed>, asked: &Limit) -> Option<Narrowed> {
        let (mut limits, mut beside) = (configured.to_vec(), Vec::new());
        for (position, limit) in configured.iter().enumerate() {
            let added = before.and_then(|before| before.beside(position));
            let lowered = added.unwrap_or(limit).limit().narrowed(asked);
            // A limit that is not below the configured one adds nothing.
            let lowered = lowered.filter(|lowered| lowered.kind() != limit.limit().kind());
            let lowered = lowered.map(|lowered| NamedLimit::beside(limit, lowered));
            if let Some(limit) = lowered.or_else(|| added.cloned()) {
                limits.push(limit);
                beside.push(position);
            }
        }
        (!beside.is_empty()).then(|| Narrowed { limits: limits.into(), beside: beside.into() })
    }

    /// Returns the narrowed limit made from the rule's limit at `position`.
    fn beside(&self, position: usize) -> Option<&NamedLimit> {
        let index = self.beside.iter().position(|of| *of == position)?;
        self.limits.get(self.limits.len() - self.beside.len() + index)
    }
}

impl<'p> SharedMatch<'p> {
    /// Returns each rule and subject that the requests match, once.
    pub(crate) fn all(
        policy: &'p Policy,
        parts: &[Part<'_>],
        secret: &Secret,
    ) -> Vec<SharedMatch<'p>> {
        let mut shared_matches: Vec<SharedMatch<'p>> = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            for matched in policy.matched(part.request()) {
                let keys = keys_of(matched.rule, part.request(), secret).collect();
                // The keys name the rule too, so equal keys mean the same rule and subject.
                let known = shared_matches.iter().position(|known| known.keys == keys);
                let index = known.unwrap_or_else(|| {
                    shared_matches.push(SharedMatch::new(matched, keys));
                    shared_matches.len() - 1
                });
                shared_matches[index].add(number, part);
            }
        }
        shared_matches
    }

    /// Picks the counters that one request matches out of those of all requests.
    pub(crate) fn counters_of(
        part: usize,
        shared_matches: &[SharedMatch<'_>],
        judged: &CounterOutcomes,
    ) -> CounterOutcomes {
        let matched = placed(shared_matches).filter(|(_, shared)| shared.parts.contains(&part));
        matched
            .flat_map(|(first, shared)| &judged[first..first + shared.limits().len()])
            .cloned()
            .collect()
    }

    fn new(matched: Matched<'p>, keys: SmallVec<[SubjectKey; 1]>) -> SharedMatch<'p> {
        let nothing = || Cost::requests(0);
        let (cost, returned) = (nothing(), nothing());
        SharedMatch {
            matched,
            keys,
            narrowed: None,
            cost,
            returned,
            asks: false,
            parts: SmallVec::new(),
        }
    }

    fn add(&mut self, number: usize, part: &Part<'_>) {
        self.parts.push(number);
        if !part.refunds() {
            self.asks = true;
            self.cost.add(part.request().cost());
        } else if self.matched.rule.negative_hits() {
            self.returned.add(part.request().cost());
        }
        let Some(asked) = part.limit().filter(|_| self.matched.rule.request_limit()) else {
            return;
        };
        // If several requests bring a limit, the lowest of them applies to all.
        let before = self.narrowed.take();
        self.narrowed = Narrowed::by(self.matched.limits, before.as_ref(), asked);
    }

    fn limits(&self) -> &[NamedLimit] {
        self.narrowed.as_ref().map_or(self.matched.limits, |narrowed| &narrowed.limits)
    }

    /// Returns the outcome of a counter before it is evaluated. A narrowed limit has the position
    /// of the rule's limit that it was made from.
    fn unknown(&self, index: usize) -> CounterOutcome {
        let added = self.narrowed.as_ref().and_then(|narrowed| {
            let position = narrowed.beside.get(index.checked_sub(self.matched.limits.len())?)?;
            Some((*position, narrowed.limits[index].limit().clone().into()))
        });
        let (position, narrowed) = added.map_or((index, None), |(at, limit)| (at, Some(limit)));
        let mut judged = CounterOutcome {
            advisory: !self.asks,
            ..CounterOutcome::unknown(&self.matched, position)
        };
        if let Some(limit) = narrowed {
            judged.set_narrowed(limit);
        }
        judged
    }

    fn in_force(&self) -> Matched<'_> {
        Matched { limits: self.limits(), ..self.matched }
    }

    /// Returns whether it takes part in the decision.
    fn is_decisive(&self) -> bool {
        self.asks && self.matched.rule.mode() != Mode::Shadow
    }
}

impl Plan {
    /// Builds one plan from all matches.
    pub(crate) fn of_shared_matches(shared_matches: &[SharedMatch<'_>], secret: &Secret) -> Plan {
        let mut plan = Plan::under(secret);
        for shared in shared_matches {
            plan.counters.extend((0..shared.limits().len()).map(|index| shared.unknown(index)));
        }
        // As in `Plan::of_rules`. Matches that only refund get groups of their own, like shadow
        // rules, so that they cannot deny.
        let mut group = 0;
        for decisive in [true, false] {
            for (first, shared) in placed(shared_matches) {
                if shared.is_decisive() == decisive {
                    group += u16::from(!decisive);
                    for key in &shared.keys {
                        plan.add_rule(&shared.in_force(), first, *key, &shared.cost, group);
                    }
                }
            }
        }
        for (first, shared) in placed(shared_matches) {
            for key in &shared.keys {
                plan.add_postpaid(&shared.in_force(), first, *key, &shared.cost, &mut group);
                plan.add_returns(shared, first, *key);
            }
        }
        plan
    }

    fn add_returns(&mut self, shared: &SharedMatch<'_>, first: usize, key: SubjectKey) {
        // A decision has 64 counters at most.
        for (index, limit) in (first as u16..).zip(shared.limits()) {
            let returned = shared.returned.of_limit(limit.limit());
            if limit.params().is_some() && returned > 0 {
                let attributes = shared.matched.rule.key().len() as u8;
                let counter =
                    PlannedCharge { index, attributes, ..PlannedCharge::new(key, limit.clone()) };
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
        *next += shared.limits().len();
        Some((first, shared))
    })
}
