//! One decision over tiers that live at several places: all or none, though no script spans them.
//!
//! The parts are asked one after another, the widest subject last, and a refusal gives back what the
//! parts before it were charged. So what is charged for a moment burdens the requester's own narrow
//! subject, never one that others share: somebody who is refused anyway cannot wear a shared tier
//! down. Nothing is ever admitted that one part refused.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use tokio::sync::Semaphore;

use super::topology::Place;
use super::{Redis, StoreError};
use crate::algorithm::{Charge, Intent};
use crate::engine::{Ask, AskTier, AtRecord, Told, ToldTier};
use crate::plan::{Cause, Heard, Heards, Order};
use crate::time::Deadline;

mod in_flight;
mod moved;
mod parts;
mod provisional;

use moved::Moved;
use parts::{Part, Parts};
use provisional::Provisional;

/// Who decides for tiers whose shard gives no answer.
pub(crate) trait StandIn: Sync {
    /// Why it might not.
    type Error: Send;

    /// Decides the tiers of `ask`, which stand at `places` in the whole decision.
    fn decide(&self, ask: &Ask, places: &[usize], error: StoreError)
    -> Result<Heards, Self::Error>;

    /// Takes back what that charged to the tier at a place; answers the tier as it is then.
    fn give_back(&self, tier: &AskTier, place: usize, charge: Charge) -> Option<ToldTier>;
}

/// One decision to make.
pub(crate) struct Question<'q, S> {
    pub(crate) ask: &'q Ask,
    pub(crate) order: Order,
    pub(crate) stand_in: S,
}

/// Decides one.
pub(crate) async fn decide<S: StandIn>(
    redis: &Redis,
    question: &Question<'_, S>,
) -> Result<Heards, S::Error> {
    let Question { ask, stand_in, .. } = question;
    let deadline = redis.deadline();
    match redis.only_place(ask) {
        Some(place) => heard(redis.decide_one_at(place, ask, deadline).await, question),
        None => {
            let moved = Moved::of(redis, ask);
            let unanswered = Mutex::default();
            let judge = Judge { redis, stand_in, deadline, moved: &moved, unanswered };
            let heard = judge.decide(ask, question.order).await?;
            moved.level(redis, ask, &heard);
            Ok(moved.joined(heard))
        }
    }
}

/// Decides each of several by itself: those that live at one place together, in order.
pub(crate) async fn decide_each<S: StandIn>(
    redis: &Redis,
    questions: &[Question<'_, S>],
) -> Vec<Result<Heards, S::Error>> {
    let mut together: BTreeMap<Place, (Vec<usize>, Vec<Ask>)> = BTreeMap::new();
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
    // A call's wait begins with its turn.
    let turns = &Semaphore::new(PLACES_AT_ONCE);
    let together = together.into_iter().map(|(place, (numbers, asks))| async move {
        let _turn = turns.acquire().await;
        let told = redis.decide_at(place, &asks).await;
        let heard = |(number, told)| (number, heard(told, &questions[number]));
        numbers.into_iter().zip(told).map(heard).collect::<Vec<_>>()
    });
    let alone = alone.into_iter().map(|number| async move {
        let _turn = turns.acquire().await;
        (number, decide(redis, &questions[number]).await)
    });
    let (together, alone) = tokio::join!(join_all(together), join_all(alone));
    let mut all: Vec<_> = together.into_iter().flatten().chain(alone).collect();
    all.sort_unstable_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, heard)| heard).collect()
}

/// What was told of every tier, by its own shard: those that a refusal left unasked are looked at.
pub(super) async fn told_fully(
    redis: &Redis,
    ask: &Ask,
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
    let tiers: SmallVec<[ToldTier; 1]> = tiers.collect();
    let enforced = ask.tiers.iter().zip(&tiers).filter(|(asked, _)| asked.group == 0);
    let allowed = enforced.fold(true, |all, (_, tier): (_, &ToldTier)| all && tier.fits);
    Ok(Told { allowed, tiers })
}

fn heard<S: StandIn>(
    told: Result<Told, StoreError>,
    question: &Question<'_, S>,
) -> Result<Heards, S::Error> {
    match told {
        Ok(told) => Ok(told.tiers.into_iter().map(Heard::Store).collect()),
        Err(error) => {
            let all: SmallVec<[usize; 4]> = (0..question.ask.tiers.len()).collect();
            question.stand_in.decide(question.ask, &all, error)
        }
    }
}

impl<'q> Question<'q, Nobody> {
    pub(super) fn without_stand_in(ask: &'q Ask) -> Self {
        Question { ask, order: Order::OneByOne, stand_in: Nobody }
    }
}

/// Without anybody to stand in, an error is an error.
pub(super) struct Nobody;

impl StandIn for Nobody {
    type Error = StoreError;

    fn decide(&self, _: &Ask, _: &[usize], error: StoreError) -> Result<Heards, StoreError> {
        Err(error)
    }

    fn give_back(&self, _: &AskTier, _: usize, _: Charge) -> Option<ToldTier> {
        None
    }
}

/// Asks parts, of shards or of who stands in for them.
struct Judge<'a, S> {
    redis: &'a Redis,
    stand_in: &'a S,
    deadline: Deadline,
    moved: &'a Moved,
    /// The places that gave no answer. Their servers are not asked again: the decision would wait for the time-out
    /// once for each of its parts.
    unanswered: Mutex<SmallVec<[Place; 1]>>,
}

/// Whether what a part charges stays charged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Charging {
    /// Whatever becomes of the rest, or it charges nothing.
    ForGood,
    /// Only if all parts agree and the caller is still there.
    UntilAllAgree,
}

impl<S: StandIn> Judge<'_, S> {
    async fn decide(&self, ask: &Ask, order: Order) -> Result<Heards, S::Error> {
        let mut heard = smallvec![Heard::Nobody; self.moved.heards()];
        let Parts { mut enforced, mut shadows } = Parts::of(self.redis, ask, self.moved);
        // What is only looked at may be charged when a reservation ends, so that has a record too.
        let opens = matches!(ask.record, AtRecord::Open(_));
        let charges =
            ask.intent != Intent::Peek && (opens || ask.tiers.iter().any(|tier| tier.cost > 0));
        if !charges {
            enforced.append(&mut shadows);
            self.all_at_once(&enforced, &mut heard, None).await?;
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
                self.all_at_once(&enforced, &mut heard, Some(&mut provisional)).await?;
                enforced.iter().all(|part| part.passes(&heard))
            }
        };
        if !allowed {
            provisional.give_back(self.deadline, &mut heard).await;
            return Ok(heard);
        }
        provisional.keep();
        if let AtRecord::Open(opening) = &ask.record
            && !opening.noted().charges_anew()
        {
            shadows.iter_mut().for_each(|part| part.ask.intent = Intent::Peek);
        }
        self.all_at_once(&shadows, &mut heard, None).await?;
        Ok(heard)
    }

    /// Until one refuses; answers whether none did.
    async fn one_by_one(
        &self,
        parts: &[Part],
        heard: &mut Heards,
        provisional: &mut Provisional<'_, S>,
    ) -> Result<bool, S::Error> {
        for part in parts {
            note(part, self.ask(part, heard, Charging::UntilAllAgree).await?, heard);
            if !part.passes(heard) {
                return Ok(false);
            }
            provisional.note(part, heard);
        }
        Ok(true)
    }

    /// Notes what was heard, also where one of them failed, and each charge as soon as it is known: a caller
    /// who leaves while others are still asked gets it back.
    async fn all_at_once(
        &self,
        parts: &[Part],
        heard: &mut Heards,
        mut provisional: Option<&mut Provisional<'_, S>>,
    ) -> Result<(), S::Error> {
        let mut failed = Ok(());
        let charging = match provisional {
            Some(_) => Charging::UntilAllAgree,
            None => Charging::ForGood,
        };
        let mut hear = |part, told, heard: &mut Heards| {
            match told {
                Ok(told) => note(part, told, heard),
                Err(error) => failed = Err(error),
            }
            if let Some(provisional) = &mut provisional {
                provisional.note(part, heard);
            }
        };
        if self.moved.is_none() {
            let before = heard.clone();
            let ask = async |part| (part, self.ask(part, &before, charging).await);
            let mut asked: FuturesUnordered<_> = parts.iter().map(ask).collect();
            while let Some((part, told)) = asked.next().await {
                hear(part, told, heard);
            }
        } else {
            // What the second of two owners does not execute is nobody's debt if the first one did.
            for part in parts {
                let told = self.ask(part, heard, charging).await;
                hear(part, told, heard);
            }
        }
        failed
    }

    /// Asks a part, with what was heard of the parts before it.
    async fn ask(
        &self,
        part: &Part,
        before: &Heards,
        charging: Charging,
    ) -> Result<Heards, S::Error> {
        let told = match charging {
            _ if self.is_unanswered(part.place) => {
                let why = "its server gave no answer to an earlier part of the decision";
                Err(StoreError::NotExecuted(why.into()))
            }
            Charging::UntilAllAgree => in_flight::ask(self.redis, part, self.deadline).await,
            Charging::ForGood => {
                self.redis.decide_one_at(part.place, &part.ask, self.deadline).await
            }
        };
        if let Err(StoreError::Unknown(_)) = told {
            self.unanswered.lock().push(part.place);
        }
        match told {
            Ok(told) => Ok(told.tiers.into_iter().map(Heard::Store).collect()),
            Err(error) if self.moved.is_none() => {
                self.stand_in.decide(&part.ask, &part.places, error)
            }
            Err(error) => self.decide_without_owner(part, before, error),
        }
    }

    fn is_unanswered(&self, place: Place) -> bool {
        let unanswered = self.unanswered.lock();
        unanswered.iter().any(|other| self.redis.are_on_one_server(place, *other))
    }

    /// A server that is gone leaves what it was the old owner of to the new ones alone. For the rest
    /// somebody stands in; whatever one owner did not execute is nobody's debt where the other has
    /// been charged, may have been, or will be: that one knows of it for as long as it counts.
    fn decide_without_owner(
        &self,
        part: &Part,
        before: &Heards,
        error: StoreError,
    ) -> Result<Heards, S::Error> {
        let is_old = |at: &usize| self.moved.is_old(part.places[*at]);
        let all = 0..part.places.len();
        let gone = all.clone().any(|at| is_old(&at)) && self.redis.gives_up(part.place);
        let given_up = Heard::OutagePolicy { passes: true, cause: Cause::Outage };
        let mut heard: Heards = smallvec![given_up; part.places.len()];
        for is_known in [false, true] {
            let here = |at: &usize| {
                let known = is_old(at) || self.moved.is_known(part.places[*at], before);
                known == is_known && !(gone && is_old(at))
            };
            let here: SmallVec<[usize; 4]> = all.clone().filter(here).collect();
            if here.is_empty() {
                continue;
            }
            let tiers = here.iter().map(|at| part.ask.tiers[*at].clone()).collect();
            let ask = Ask { intent: part.ask.intent, record: AtRecord::None, tiers };
            let places: SmallVec<[usize; 4]> =
                here.iter().map(|at| self.moved.tier_of(part.places[*at])).collect();
            let why = if is_known { as_charged(&error) } else { error.clone() };
            for (at, told) in here.iter().zip(self.stand_in.decide(&ask, &places, why)?) {
                heard[*at] = told;
            }
        }
        if !error.is_uncharged() {
            let old = all.filter(is_old).map(|at| self.moved.tier_of(part.places[at]));
            old.for_each(|number| self.moved.note_doubt(number));
        }
        Ok(heard)
    }
}

/// The same error, of a call that may have been executed.
fn as_charged(error: &StoreError) -> StoreError {
    match error {
        StoreError::Overloaded { admits_itself, why, .. } => {
            StoreError::Overloaded { sent: true, admits_itself: *admits_itself, why: why.clone() }
        }
        error => StoreError::Unknown(error.to_string()),
    }
}

fn note(part: &Part, told: Heards, heard: &mut Heards) {
    for (place, told) in part.places.iter().zip(told) {
        heard[*place] = told;
    }
}

/// Of one batch, as many places are asked at once: the rest of a large one leaves room for other callers.
const PLACES_AT_ONCE: usize = 64;
