//! One decision over tiers that live at several places: all or none, though no script spans them.
//!
//! The parts are asked one after another, the widest subject last, and a refusal gives back what the
//! parts before it were charged. So what is charged for a moment burdens the requester's own narrow
//! subject, never one that others share: somebody who is refused anyway cannot wear a shared tier
//! down. Nothing is ever admitted that one part refused.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};

use super::topology::Place;
use super::{Redis, StoreError};
use crate::algorithm::{Charge, Intent};
use crate::engine::{Ask, AskTier, AtRecord, TIERS_INLINE, Told, ToldTier};
use crate::time::Deadline;

mod moved;
mod provisional;

use moved::Moved;
use provisional::Provisional;

/// What was heard of one tier, and from whom.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heard {
    /// Its shard decided.
    Store(ToldTier),
    /// This process decided, by its share of the limit.
    Fallback(ToldTier),
    /// The rule decided, by what it says of an outage.
    OutagePolicy { passes: bool },
    /// Its shard refused before, and that still holds; what is not known of it is absent.
    Refused { retry_after_us: Option<u64>, remaining: Option<u64>, reset_after_us: Option<u64> },
    /// Its shard had room, and what it charged was given back, for another tier refused; how it stands
    /// since then nobody has told.
    GivenBack,
    /// Nobody was asked, for another tier had refused already.
    Nobody,
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
            (Heard::OutagePolicy { passes }, _) => {
                if passes && other.refuses() {
                    other
                } else {
                    self
                }
            }
            (
                Heard::Store(one) | Heard::Fallback(one),
                Heard::Store(older) | Heard::Fallback(older),
            ) => {
                if older.tightness() > one.tightness() {
                    other
                } else {
                    self
                }
            }
        }
    }

    fn refuses(self) -> bool {
        matches!(self, Heard::Store(tier) | Heard::Fallback(tier) if !tier.fits)
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

/// Who decides for tiers whose shard gives no answer.
pub(crate) trait StandIn: Sync {
    /// Why it might not.
    type Error: Send;

    /// Decides the tiers of `ask`, which stand at `places` in the whole decision.
    fn decide(
        &self,
        ask: &Ask<'_>,
        places: &[usize],
        error: StoreError,
    ) -> Result<Heards, Self::Error>;

    /// Takes back what that charged to the tier at a place; answers the tier as it is then.
    fn give_back(&self, tier: &AskTier<'_>, place: usize, charge: Charge) -> Option<ToldTier>;
}

/// One decision to make.
pub(crate) struct Question<'q, 'a, S> {
    pub(crate) ask: &'q Ask<'a>,
    pub(crate) order: Order,
    pub(crate) stand_in: S,
}

/// Decides one.
pub(crate) async fn decide<S: StandIn>(
    redis: &Redis,
    question: &Question<'_, '_, S>,
) -> Result<Heards, S::Error> {
    let Question { ask, stand_in, .. } = question;
    let deadline = redis.deadline();
    match redis.only_place(ask) {
        Some(place) => heard(redis.decide_one_at(place, ask, deadline).await, question),
        None => {
            let moved = Moved::of(redis, ask);
            let judge = Judge { redis, stand_in, deadline, moved: &moved };
            Ok(moved.joined(judge.decide(ask, question.order).await?))
        }
    }
}

/// Decides each of several by itself: those that live at one place together, in order.
pub(crate) async fn decide_each<S: StandIn>(
    redis: &Redis,
    questions: &[Question<'_, '_, S>],
) -> Vec<Result<Heards, S::Error>> {
    let deadline = redis.deadline();
    let mut together: BTreeMap<Place, (Vec<usize>, Vec<Ask<'_>>)> = BTreeMap::new();
    let mut alone = Vec::new();
    for (number, Question { ask, .. }) in questions.iter().enumerate() {
        match redis.only_place(ask) {
            None => alone.push(number),
            Some(place) => {
                let (numbers, asks) = together.entry(place).or_default();
                numbers.push(number);
                asks.push((*ask).clone());
            }
        }
    }
    let together = together.into_iter().map(|(place, (numbers, asks))| async move {
        let told = redis.decide_at(place, &asks, deadline).await;
        let heard = |(number, told)| (number, heard(told, &questions[number]));
        numbers.into_iter().zip(told).map(heard).collect::<Vec<_>>()
    });
    let alone = alone
        .into_iter()
        .map(|number| async move { (number, decide(redis, &questions[number]).await) });
    let (together, alone) = tokio::join!(join_all(together), join_all(alone));
    let mut all: Vec<_> = together.into_iter().flatten().chain(alone).collect();
    all.sort_unstable_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, heard)| heard).collect()
}

/// What was told of every tier, by its own shard: those that a refusal left unasked are looked at.
pub(super) async fn told_fully(
    redis: &Redis,
    ask: &Ask<'_>,
    mut heard: Heards,
) -> Result<Told, StoreError> {
    let untold = |heard: &Heard| matches!(heard, Heard::Nobody | Heard::GivenBack);
    if heard.iter().any(untold) {
        let look = Ask { intent: Intent::Peek, ..ask.clone() };
        let seen = decide(redis, &Question::without_stand_in(&look)).await?;
        for (heard, seen) in heard.iter_mut().zip(seen) {
            if untold(heard) {
                *heard = seen;
            }
        }
    }
    let tiers = heard.iter().filter_map(|heard| match heard {
        Heard::Store(tier) => Some(*tier),
        _ => None,
    });
    let tiers: SmallVec<[ToldTier; TIERS_INLINE]> = tiers.collect();
    let enforced = ask.tiers.iter().zip(&tiers).filter(|(asked, _)| asked.group == 0);
    let allowed = enforced.fold(true, |all, (_, tier): (_, &ToldTier)| all && tier.fits);
    Ok(Told { allowed, tiers })
}

fn heard<S: StandIn>(
    told: Result<Told, StoreError>,
    question: &Question<'_, '_, S>,
) -> Result<Heards, S::Error> {
    match told {
        Ok(told) => Ok(told.tiers.into_iter().map(Heard::Store).collect()),
        Err(error) => {
            let all: SmallVec<[usize; 4]> = (0..question.ask.tiers.len()).collect();
            question.stand_in.decide(question.ask, &all, error)
        }
    }
}

impl<'q, 'a> Question<'q, 'a, Nobody> {
    pub(super) fn without_stand_in(ask: &'q Ask<'a>) -> Self {
        Question { ask, order: Order::OneByOne, stand_in: Nobody }
    }
}

/// Without anybody to stand in, an error is an error.
pub(super) struct Nobody;

impl StandIn for Nobody {
    type Error = StoreError;

    fn decide(&self, _: &Ask<'_>, _: &[usize], error: StoreError) -> Result<Heards, StoreError> {
        Err(error)
    }

    fn give_back(&self, _: &AskTier<'_>, _: usize, _: Charge) -> Option<ToldTier> {
        None
    }
}

/// Asks parts, of shards or of who stands in for them.
struct Judge<'a, S> {
    redis: &'a Redis,
    stand_in: &'a S,
    deadline: Deadline,
    moved: &'a Moved,
}

impl<S: StandIn> Judge<'_, S> {
    async fn decide(&self, ask: &Ask<'_>, order: Order) -> Result<Heards, S::Error> {
        let mut heard = smallvec![Heard::Nobody; self.moved.heards()];
        let Parts { mut enforced, mut shadows } = Parts::of(self.redis, ask, self.moved);
        // What is only looked at may be charged when a reservation ends, so that has a record too.
        let opens = matches!(ask.record, AtRecord::Open(_));
        let charges =
            ask.intent != Intent::Peek && (opens || ask.tiers.iter().any(|tier| tier.cost > 0));
        if !charges {
            enforced.append(&mut shadows);
            self.all_at_once(&enforced, &mut heard).await?;
            return Ok(heard);
        }
        let mut provisional = Provisional::new(self.redis, self.stand_in, self.moved);
        let allowed = match order {
            Order::OneByOne => {
                if let Some((last, earlier)) = enforced.split_last_mut() {
                    earlier.iter_mut().for_each(|part| part.ask_for_receipts(self.redis));
                    last.take_along(&mut shadows);
                }
                self.one_by_one(&enforced, &mut heard, &mut provisional).await?
            }
            Order::AtOnce => {
                enforced.iter_mut().for_each(|part| part.ask_for_receipts(self.redis));
                let asked = self.all_at_once(&enforced, &mut heard).await;
                enforced.iter().for_each(|part| provisional.note(part, &heard));
                asked?;
                enforced.iter().all(|part| part.passes(&heard))
            }
        };
        if !allowed {
            provisional.give_back(self.deadline, &mut heard).await;
            return Ok(heard);
        }
        provisional.keep();
        self.all_at_once(&shadows, &mut heard).await?;
        Ok(heard)
    }

    /// Until one refuses; answers whether none did.
    async fn one_by_one(
        &self,
        parts: &[Part<'_>],
        heard: &mut Heards,
        provisional: &mut Provisional<'_, S>,
    ) -> Result<bool, S::Error> {
        for part in parts {
            note(part, self.ask(part, heard).await?, heard);
            if !part.passes(heard) {
                return Ok(false);
            }
            provisional.note(part, heard);
        }
        Ok(true)
    }

    /// Notes what was heard, also where one of them failed.
    async fn all_at_once(&self, parts: &[Part<'_>], heard: &mut Heards) -> Result<(), S::Error> {
        let mut failed = Ok(());
        let told = join_all(parts.iter().map(|part| self.ask(part, heard))).await;
        for (part, told) in parts.iter().zip(told) {
            match told {
                Ok(told) => note(part, told, heard),
                Err(error) => failed = Err(error),
            }
        }
        failed
    }

    /// Asks a part, with what was heard of the parts before it.
    async fn ask(&self, part: &Part<'_>, before: &Heards) -> Result<Heards, S::Error> {
        match self.redis.decide_one_at(part.place, &part.ask, self.deadline).await {
            Ok(told) => Ok(told.tiers.into_iter().map(Heard::Store).collect()),
            Err(error) if self.moved.is_none() => {
                self.stand_in.decide(&part.ask, &part.places, error)
            }
            Err(error) => self.decide_without_owner(part, before, error),
        }
    }

    /// A server that is gone leaves what it was the old owner of to the new ones alone. For the rest
    /// somebody stands in; whatever one owner did not execute is nobody's debt where the other has
    /// been charged, or will be: that one knows of it for as long as it counts.
    fn decide_without_owner(
        &self,
        part: &Part<'_>,
        before: &Heards,
        error: StoreError,
    ) -> Result<Heards, S::Error> {
        let is_old = |at: &usize| self.moved.is_old(part.places[*at]);
        let all = 0..part.places.len();
        let gone = all.clone().any(|at| is_old(&at)) && self.redis.gives_up(part.place);
        let mut heard: Heards = smallvec![Heard::OutagePolicy { passes: true }; part.places.len()];
        for is_known in [false, true] {
            let here = |at: &usize| {
                let known = is_old(at) || self.moved.is_known(part.places[*at], before);
                known == is_known && !(gone && is_old(at))
            };
            let here: SmallVec<[usize; 4]> = all.clone().filter(here).collect();
            if here.is_empty() {
                continue;
            }
            let tiers = here.iter().map(|at| part.ask.tiers[*at]).collect();
            let ask = Ask { intent: part.ask.intent, record: AtRecord::None, tiers };
            let places: SmallVec<[usize; 4]> =
                here.iter().map(|at| self.moved.tier_of(part.places[*at])).collect();
            let why = if is_known { StoreError::Unknown(error.to_string()) } else { error.clone() };
            for (at, told) in here.iter().zip(self.stand_in.decide(&ask, &places, why)?) {
                heard[*at] = told;
            }
        }
        Ok(heard)
    }
}

fn note(part: &Part<'_>, told: Heards, heard: &mut Heards) {
    for (place, told) in part.places.iter().zip(told) {
        heard[*place] = told;
    }
}

/// The tiers of a decision that live at one place.
struct Part<'a> {
    place: Place,
    ask: Ask<'a>,
    /// Where what is heard of its tiers stands: for new owners, as in the whole decision.
    places: SmallVec<[usize; 4]>,
}

/// A decision by places.
struct Parts<'a> {
    /// The narrowest first.
    enforced: Vec<Part<'a>>,
    shadows: Vec<Part<'a>>,
}

impl<'a> Parts<'a> {
    fn of(redis: &Redis, ask: &Ask<'a>, moved: &Moved) -> Parts<'a> {
        let mut parts = Parts { enforced: Vec::new(), shadows: Vec::new() };
        for (number, tier) in ask.tiers.iter().enumerate() {
            // The old owner first: it is the one that knows all.
            if let Some((place, copy)) = moved.old(number) {
                parts.add(ask, tier, place, copy);
            }
            parts.add(ask, tier, redis.topology.place(tier.key.tag), number);
        }
        parts.enforced.sort_by_key(|part| part.width(moved));
        parts
    }

    fn add(&mut self, whole: &Ask<'a>, tier: &AskTier<'a>, place: Place, heard: usize) {
        let of_kind = if tier.group == 0 { &mut self.enforced } else { &mut self.shadows };
        // A shadow rule that lives elsewhere than what is enforced keeps its estimate.
        let record = if tier.group == 0 { whole.record } else { AtRecord::None };
        let known = of_kind.iter().position(|part| part.place == place);
        let part = known.unwrap_or_else(|| {
            let ask = Ask { intent: whole.intent, record, tiers: SmallVec::new() };
            of_kind.push(Part { place, ask, places: SmallVec::new() });
            of_kind.len() - 1
        });
        of_kind[part].ask.tiers.push(*tier);
        of_kind[part].places.push(heard);
    }
}

impl<'a> Part<'a> {
    /// So that its charge can be given back.
    fn ask_for_receipts(&mut self, redis: &Redis) {
        if self.ask.intent == Intent::Charge {
            self.ask.intent = Intent::Reserve { nonce: redis.caller.nonces.next() };
        }
    }

    /// As wide as its widest charged tier: fewer key attributes are wider, and of two rules with as
    /// many the later in the file. A part that charges nothing goes first.
    fn width(&self, moved: &Moved) -> Option<(Reverse<u8>, usize)> {
        let charged = self.ask.tiers.iter().zip(&self.places).filter(|(tier, _)| tier.cost > 0);
        charged.map(|(tier, place)| (Reverse(tier.attributes), moved.tier_of(*place))).max()
    }

    /// The script judges shadow rules that live here in the same call, if all before them passed.
    fn take_along(&mut self, shadows: &mut Vec<Part<'a>>) {
        if let Some(here) = shadows.iter().position(|shadow| shadow.place == self.place) {
            let shadow = shadows.swap_remove(here);
            self.ask.tiers.extend(shadow.ask.tiers);
            self.places.extend(shadow.places);
        }
    }

    /// Whether no enforced tier of it refused.
    fn passes(&self, heard: &Heards) -> bool {
        self.places.iter().zip(&self.ask.tiers).all(|(place, tier)| {
            tier.group > 0
                || match heard[*place] {
                    Heard::Store(tier) | Heard::Fallback(tier) => tier.fits,
                    Heard::OutagePolicy { passes } => passes,
                    Heard::Refused { .. } => false,
                    Heard::GivenBack | Heard::Nobody => true,
                }
        })
    }
}
