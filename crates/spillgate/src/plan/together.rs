//! Several requests as one plan: a tier that two of them meet is asked for once, for both costs.

use smallvec::SmallVec;

use super::{Due, Plan, keys_of};
use crate::algorithm::GiveBack;
use crate::counter::{AskTier, Change};
use crate::decision::{Judged, Tiers};
use crate::limit::{Limit, NamedLimit};
use crate::policy::{Met, Mode, Policy};
use crate::request::Cost;
use crate::subject::{Secret, SubjectKey};
use crate::together::Part;

/// A rule and a subject that some of the parts meet.
#[derive(Debug)]
pub(crate) struct Meeting<'p> {
    met: Met<'p>,
    /// One, or two where subjects go by two secrets.
    keys: SmallVec<[SubjectKey; 1]>,
    /// The limits in force where a part asks for less than the rule's.
    narrowed: Option<Narrowed>,
    cost: Cost<'static>,
    returned: Cost<'static>,
    /// Whether any part asks for room; the others only give back.
    asks: bool,
    /// Which parts meet it.
    parts: SmallVec<[usize; 2]>,
}

/// A rule's limits, and behind them those that parts ask for beside them.
#[derive(Debug)]
struct Narrowed {
    limits: Box<[NamedLimit]>,
    /// For each limit behind the rule's, the position of the limit that it stands beside.
    beside: Box<[usize]>,
}

impl Narrowed {
    /// The limits of a rule with those that `asked` adds, or lowers if they were added before.
    fn by(configured: &[NamedLimit], before: Option<&Narrowed>, asked: &Limit) -> Option<Narrowed> {
        let (mut limits, mut beside) = (configured.to_vec(), Vec::new());
        for (position, limit) in configured.iter().enumerate() {
            let added = before.and_then(|before| before.beside(position));
            let lowered = added.unwrap_or(limit).limit().narrowed(asked);
            let lowered = lowered.filter(|lowered| lowered.kind() != limit.limit().kind());
            let lowered = lowered.map(|lowered| NamedLimit::beside(limit, lowered));
            if let Some(limit) = lowered.or_else(|| added.cloned()) {
                limits.push(limit);
                beside.push(position);
            }
        }
        (!beside.is_empty()).then(|| Narrowed { limits: limits.into(), beside: beside.into() })
    }

    /// The limit beside the one at a position of the rule.
    fn beside(&self, position: usize) -> Option<&NamedLimit> {
        let place = self.beside.iter().position(|of| *of == position)?;
        self.limits.get(self.limits.len() - self.beside.len() + place)
    }
}

impl<'p> Meeting<'p> {
    /// Whom the parts meet, each once.
    pub(crate) fn all(policy: &'p Policy, parts: &[Part<'_>], secret: &Secret) -> Vec<Meeting<'p>> {
        let mut meetings: Vec<Meeting<'p>> = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            for met in policy.met(part.request()) {
                let keys = keys_of(met.rule, part.request(), secret).collect();
                let known = meetings.iter().position(|known| known.keys == keys);
                let place = known.unwrap_or_else(|| {
                    meetings.push(Meeting::new(met, keys));
                    meetings.len() - 1
                });
                meetings[place].add(number, part);
            }
        }
        meetings
    }

    /// The tiers that one part met, out of those of all.
    pub(crate) fn tiers_of(part: usize, meetings: &[Meeting<'_>], judged: &Tiers) -> Tiers {
        let met = placed(meetings).filter(|(_, meeting)| meeting.parts.contains(&part));
        met.flat_map(|(first, meeting)| &judged[first..first + meeting.limits().len()])
            .cloned()
            .collect()
    }

    fn new(met: Met<'p>, keys: SmallVec<[SubjectKey; 1]>) -> Meeting<'p> {
        let nothing = || Cost::requests(0);
        let (cost, returned) = (nothing(), nothing());
        Meeting { met, keys, narrowed: None, cost, returned, asks: false, parts: SmallVec::new() }
    }

    fn add(&mut self, number: usize, part: &Part<'_>) {
        self.parts.push(number);
        if !part.gives_back() {
            self.asks = true;
            self.cost.add(part.request().cost());
        } else if self.met.rule.negative_hits() {
            self.returned.add(part.request().cost());
        }
        let Some(asked) = part.limit().filter(|_| self.met.rule.request_limit()) else { return };
        let before = self.narrowed.take();
        self.narrowed = Narrowed::by(self.met.limits, before.as_ref(), asked);
    }

    fn limits(&self) -> &[NamedLimit] {
        self.narrowed.as_ref().map_or(self.met.limits, |narrowed| &narrowed.limits)
    }

    /// The tier of a limit before it is judged; one beside a rule's limit is shown in that one's place.
    fn unknown(&self, place: usize) -> Judged {
        let added = self.narrowed.as_ref().and_then(|narrowed| {
            let position = narrowed.beside.get(place.checked_sub(self.met.limits.len())?)?;
            Some((*position, narrowed.limits[place].limit().clone().into()))
        });
        let (position, narrowed) = added.map_or((place, None), |(at, limit)| (at, Some(limit)));
        let mut judged = Judged { advisory: !self.asks, ..Judged::unknown(&self.met, position) };
        if let Some(limit) = narrowed {
            judged.set_narrowed(limit);
        }
        judged
    }

    fn in_force(&self) -> Met<'_> {
        Met { limits: self.limits(), ..self.met }
    }

    /// Whether it has a part in the verdict.
    fn is_decisive(&self) -> bool {
        self.asks && self.met.rule.mode() != Mode::Shadow
    }
}

impl Plan {
    /// What all the meetings ask of the engine.
    pub(crate) fn of_meetings(meetings: &[Meeting<'_>], secret: &Secret) -> Plan {
        let mut plan = Plan::under(secret);
        for meeting in meetings {
            plan.judged.extend((0..meeting.limits().len()).map(|place| meeting.unknown(place)));
        }
        let mut group = 0;
        for decisive in [true, false] {
            for (first, meeting) in placed(meetings) {
                if meeting.is_decisive() == decisive {
                    group += u16::from(!decisive);
                    for key in &meeting.keys {
                        plan.add_rule(&meeting.in_force(), first, *key, &meeting.cost, group);
                    }
                }
            }
        }
        for (first, meeting) in placed(meetings) {
            for key in &meeting.keys {
                plan.add_postpaid(&meeting.in_force(), first, *key, &meeting.cost, &mut group);
                plan.add_returns(meeting, first, *key);
            }
        }
        plan
    }

    fn add_returns(&mut self, meeting: &Meeting<'_>, first: usize, key: SubjectKey) {
        // A decision has 64 tiers at most.
        for (place, limit) in (first as u16..).zip(meeting.limits()) {
            let returned = meeting.returned.of_limit(limit.limit());
            if limit.numbers().is_some() && returned > 0 {
                let attributes = meeting.met.rule.key().len() as u8;
                let tier = AskTier { place, attributes, ..AskTier::new(key, limit.clone()) };
                let change = Change::GiveBack(GiveBack::Amount(returned));
                self.dues.push(Due { tier, change });
            }
        }
    }
}

/// The meetings with the place of each one's first tier.
fn placed<'a, 'm>(meetings: &'a [Meeting<'m>]) -> impl Iterator<Item = (usize, &'a Meeting<'m>)> {
    meetings.iter().scan(0, |next, meeting| {
        let first = *next;
        *next += meeting.limits().len();
        Some((first, meeting))
    })
}
