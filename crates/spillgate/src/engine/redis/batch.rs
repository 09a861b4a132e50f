//! Group commit: decisions that arrive while calls to a server are under way gather, and leave
//! together in one call.
//!
//! Nobody waits for a timer. With a place free a caller's decision goes out at once, by itself and
//! borrowed; the end of a call, however it ended, lets those go that gathered meanwhile. Each is judged
//! by itself, in the order of arrival, and gets its own answer; those that are alike are asked as one
//! ([`Crowds`]). Whoever goes away before the call has left is not sent; whoever goes away later is charged.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::failure::Failure;
use super::link::Manner;
use super::program::{self, Call, Reply};
use super::shard::Shard;
use super::{Asked, Caller};
use crate::algorithm::{Intent, Numbers};
use crate::engine::{Ask, AskTier, AtRecord, StoreError, Told, ToldTier};
use crate::limit::NamedLimit;
use crate::reservation::{Closing, Opening};
use crate::subject::SubjectKey;
use crate::time::Deadline;

pub(super) mod crowds;
mod gathering;

use crowds::{Crowds, Decides, Spot};
use gathering::{Gathering, Ticket, Turn};

/// The calls under way to one server, and who waits for them to end.
#[derive(Debug)]
pub(super) struct Batches {
    gathering: Mutex<Gathering<Waiting>>,
}

/// How a decision goes out.
pub(super) enum Way<'b> {
    /// At once; others wait until this is dropped.
    Alone(Place<'b>),
    /// With others.
    Together(Seat<Part>),
}

/// Where a caller waits for its own part of an answer.
pub(super) struct Seat<T> {
    shard: Arc<Shard>,
    ticket: Ticket,
    answer: oneshot::Receiver<Result<T, Failure>>,
}

/// One who waits, with all that it takes to ask on its behalf.
#[derive(Debug)]
struct Waiting {
    asks: SmallVec<[OwnedAsk; 1]>,
    caller: Arc<Caller>,
    deadline: Deadline,
    answer: Teller,
}

/// To whom the answer goes, and how much of it.
#[derive(Debug)]
enum Teller {
    /// Whoever asked reads its decisions itself: there may be records to be noted.
    Several(oneshot::Sender<Result<Part, Failure>>),
    /// One decision over one tier, and nothing else.
    One(oneshot::Sender<Result<ToldAlone, Failure>>),
}

/// What became of the one tier of a decision.
pub(super) type ToldAlone = Result<ToldTier, StoreError>;

/// Of a call's answer, the parts that are one caller's.
#[derive(Debug)]
pub(super) struct Part {
    reply: Arc<Reply>,
    of_asks: SmallVec<[program::Part; 1]>,
}

/// Those who leave together.
struct Batch {
    waiting: Vec<Waiting>,
    /// By who was first, and which of its asks.
    crowds: Crowds<(u32, u32)>,
    /// Of all asks of all who leave, in order.
    spots: Vec<Spot>,
}

#[derive(Debug)]
struct OwnedAsk {
    intent: Intent,
    record: OwnedRecord,
    tiers: SmallVec<[OwnedTier; 1]>,
}

/// What is to be done with a record; what was heard of it whoever waits will note.
#[derive(Debug)]
enum OwnedRecord {
    None,
    Open(Box<Opening>),
    Close(Box<Closing>),
}

#[derive(Debug)]
struct OwnedTier {
    key: SubjectKey,
    limit: NamedLimit,
    /// None where they are the limit's own.
    other_numbers: Option<Box<Numbers>>,
    cost: u64,
    group: u16,
    attributes: u8,
    owed: u64,
}

impl Batches {
    /// For a server that takes decisions of many subjects in one call.
    pub(super) fn new() -> Batches {
        Batches { gathering: Mutex::new(Gathering::new(PLACES)) }
    }

    /// For one that does not: nobody ever waits.
    pub(super) fn none() -> Batches {
        Batches { gathering: Mutex::new(Gathering::new(usize::MAX)) }
    }

    /// How decisions go out that arrive now; nothing where too many wait.
    pub(super) fn arrive<'b>(
        shard: &'b Arc<Shard>,
        asks: &[Ask<'_>],
        asked: &Asked<'_>,
    ) -> Option<Way<'b>> {
        let gathering = &shard.batches().gathering;
        if gathering.lock().begin() {
            return Some(Way::Alone(Place { shard }));
        }
        let (sender, answer) = oneshot::channel();
        let asks = asks.iter().map(OwnedAsk::of).collect();
        let (caller, deadline) = (Arc::clone(asked.caller), asked.deadline);
        let mut gathering = gathering.lock();
        // The last call may have ended meanwhile, and nobody would see to the queue.
        if gathering.begin() {
            return Some(Way::Alone(Place { shard }));
        }
        let answered = Teller::Several(sender);
        let ticket = gathering.join(Waiting { asks, caller, deadline, answer: answered })?;
        Some(Way::Together(Seat { shard: Arc::clone(shard), ticket, answer }))
    }

    /// A seat among those who wait already, for a decision over one tier; nothing where it would go out at
    /// once, or too many wait.
    pub(super) fn join(
        shard: &Arc<Shard>,
        tier: &AskTier<'_>,
        asked: &Asked<'_>,
    ) -> Option<Seat<ToldAlone>> {
        let gathering = &shard.batches().gathering;
        if gathering.lock().has_place() {
            return None;
        }
        let (sender, answer) = oneshot::channel();
        let tiers = SmallVec::from_buf([OwnedTier::of(tier)]);
        let ask = OwnedAsk { intent: Intent::Charge, record: OwnedRecord::None, tiers };
        let waiting = Waiting {
            asks: SmallVec::from_buf([ask]),
            caller: Arc::clone(asked.caller),
            deadline: asked.deadline,
            answer: Teller::One(sender),
        };
        let mut gathering = gathering.lock();
        // The last call may have ended meanwhile, and nobody would see to the queue.
        if gathering.has_place() {
            return None;
        }
        let ticket = gathering.join(waiting)?;
        Some(Seat { shard: Arc::clone(shard), ticket, answer })
    }

    /// Those who leave next, in one call; nobody: the place has been given up. None goes along that asks
    /// a tier with other numbers than one before it, nor whoever goes by another clock.
    fn next(&self) -> Batch {
        let mut gathering = self.gathering.lock();
        let count = gathering.will_leave();
        let (mut crowds, mut spots) = (Crowds::for_some(count), Vec::with_capacity(count));
        let waiting = gathering.leave(|leaving: &[Waiting], waiting| {
            let find = |(who, ask): (u32, u32)| match leaving.get(who as usize) {
                Some(leaving) => &leaving.asks[ask as usize],
                None => &waiting.asks[ask as usize],
            };
            if waiting.answer.is_closed() {
                return Turn::IsGone;
            }
            let is_alike = |first: &Waiting| Arc::ptr_eq(&first.caller, &waiting.caller);
            if !leaving.first().is_none_or(is_alike) {
                return Turn::Stays;
            }
            // No more than can wait.
            let who = leaving.len() as u32;
            if let [ask] = &waiting.asks[..] {
                let spot = crowds.take_in_if_fits(ask, (who, 0), find);
                spots.extend(spot);
                return if spot.is_some() { Turn::Goes } else { Turn::Stays };
            }
            if !crowds.has_room_for(&waiting.asks, find) {
                return Turn::Stays;
            }
            let asks = waiting.asks.iter().zip(0..);
            spots.extend(asks.map(|(ask, number)| crowds.take_in(ask, (who, number), find)));
            Turn::Goes
        });
        Batch { waiting, crowds, spots }
    }
}

impl Seat<Part> {
    /// What became of `asks`, for which this seat was taken.
    pub(super) async fn told(
        mut self,
        asks: &[Ask<'_>],
        deadline: Deadline,
    ) -> Result<Vec<Result<Told, StoreError>>, Failure> {
        let Part { reply, of_asks } = self.heard(deadline).await?;
        reply.told(asks, &of_asks).map_err(Failure::bug)
    }
}

impl<T> Seat<T> {
    /// What the caller is told, once.
    pub(super) async fn heard(&mut self, deadline: Deadline) -> Result<T, Failure> {
        match deadline.bound(&mut self.answer).await {
            Some(Ok(heard)) => heard,
            Some(Err(_)) => Err(self.leave("the call was given up")),
            None => Err(self.leave("no answer in time")),
        }
    }

    /// Whether the decisions were sent is what matters. Once it is known, they are not sent any more.
    fn leave(&mut self, why: &str) -> Failure {
        let gathering = self.shard.batches().gathering.lock();
        let sent = gathering.has_left(self.ticket);
        self.answer.close();
        drop(gathering);
        self.shard.unanswered(match sent {
            true => Failure::Unknown(why.into()),
            false => Failure::NotSent(format!("{why}: other calls were under way")),
        })
    }
}

/// A place among the calls under way to a server. Given up, it goes to those who wait.
pub(super) struct Place<'b> {
    shard: &'b Arc<Shard>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.shard.batches().gathering.lock().end() {
            return;
        }
        let carrier = Carrier { shard: Arc::clone(self.shard), has_place: true };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(carrier.carry_all());
        }
    }
}

/// Sends those that gather, over a place of its own, until nobody waits. Cut off, it gives them up.
struct Carrier {
    shard: Arc<Shard>,
    has_place: bool,
}

impl Carrier {
    async fn carry_all(mut self) {
        loop {
            let batch = self.shard.batches().next();
            if batch.waiting.is_empty() {
                self.has_place = false;
                return;
            }
            carry(&self.shard, batch).await;
            // Whoever was told asks again at once, more often than not: those leave together.
            tokio::task::yield_now().await;
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        if self.has_place {
            let given_up = self.shard.batches().gathering.lock().abandon();
            for waiting in given_up {
                let why = "the runtime that was to send it ended".into();
                waiting.answer.fail(Failure::NotSent(why));
            }
        }
    }
}

/// One call for all of a batch, until the last of them stops waiting.
async fn carry(shard: &Shard, batch: Batch) {
    let Batch { waiting, crowds, spots } = batch;
    let Some(latest) = waiting.iter().map(|waiting| waiting.deadline).max() else { return };
    let asked = Asked { caller: &waiting[0].caller, deadline: latest, manner: Manner::Plainly };
    let first = |(who, ask): (u32, u32)| waiting[who as usize].asks[ask as usize].borrowed();
    let build = |header| {
        let mut call = Call::new(header);
        crowds.iter().for_each(|crowd| call.crowd(&first(crowd.first), crowd.times));
        call
    };
    let answer = shard.run(build, &asked).await.map(Arc::new);
    let mut parts = program::Parts::new();
    let parts: Vec<program::Part> =
        crowds.iter().map(|crowd| parts.next(&first(crowd.first), crowd.times)).collect();
    let mut spots = spots.into_iter();
    for waiting in waiting {
        let of_asks = spots.by_ref().take(waiting.asks.len());
        let of_asks = of_asks.map(|spot| parts[spot.crowd as usize].at(spot.place)).collect();
        match &answer {
            Ok(reply) => waiting.tell(reply, of_asks),
            Err(failure) => waiting.answer.fail(failure.clone()),
        }
    }
}

impl Waiting {
    /// Whoever is gone was charged, and gets no answer.
    fn tell(self, reply: &Arc<Reply>, of_asks: SmallVec<[program::Part; 1]>) {
        match self.answer {
            Teller::Several(teller) => {
                let _ = teller.send(Ok(Part { reply: Arc::clone(reply), of_asks }));
            }
            Teller::One(teller) => {
                let told = reply.told_alone(&self.asks[0].borrowed(), of_asks[0]);
                let _ = teller.send(told.map_err(Failure::bug));
            }
        }
    }
}

impl Teller {
    fn is_closed(&self) -> bool {
        match self {
            Teller::Several(teller) => teller.is_closed(),
            Teller::One(teller) => teller.is_closed(),
        }
    }

    fn fail(self, failure: Failure) {
        match self {
            Teller::Several(teller) => drop(teller.send(Err(failure))),
            Teller::One(teller) => drop(teller.send(Err(failure))),
        }
    }
}

impl OwnedAsk {
    fn of(ask: &Ask<'_>) -> OwnedAsk {
        let record = match ask.record {
            AtRecord::None => OwnedRecord::None,
            AtRecord::Open(opening) => {
                let opening = Opening::new(opening.id, opening.body, opening.lasting_us);
                OwnedRecord::Open(Box::new(opening))
            }
            AtRecord::Close(closing) => {
                OwnedRecord::Close(Box::new(Closing::new(closing.id, closing.how, closing.mark)))
            }
        };
        let tiers = ask.tiers.iter().map(OwnedTier::of).collect();
        OwnedAsk { intent: ask.intent, record, tiers }
    }

    fn borrowed(&self) -> Ask<'_> {
        let record = match &self.record {
            OwnedRecord::None => AtRecord::None,
            OwnedRecord::Open(opening) => AtRecord::Open(opening),
            OwnedRecord::Close(closing) => AtRecord::Close(closing),
        };
        let tiers = self.tiers.iter().map(OwnedTier::borrowed).collect();
        Ask { intent: self.intent, record, tiers }
    }
}

impl Decides for OwnedAsk {
    fn intent(&self) -> Intent {
        self.intent
    }

    fn does_more(&self) -> bool {
        !matches!(self.record, OwnedRecord::None) || self.tiers.iter().any(|tier| tier.owed > 0)
    }

    fn tiers(&self) -> impl ExactSizeIterator<Item = AskTier<'_>> {
        self.tiers.iter().map(OwnedTier::borrowed)
    }
}

impl OwnedTier {
    fn of(tier: &AskTier<'_>) -> OwnedTier {
        let AskTier { key, limit, numbers, cost, group, attributes, owed } = *tier;
        let are_its_own = limit.numbers().is_some_and(|own| std::ptr::eq(own, numbers));
        let other_numbers = (!are_its_own).then(|| Box::new(numbers.clone()));
        OwnedTier { key, limit: limit.clone(), other_numbers, cost, group, attributes, owed }
    }

    fn borrowed(&self) -> AskTier<'_> {
        let OwnedTier { key, limit, other_numbers, cost, group, attributes, owed } = self;
        let own = || limit.numbers().expect("a limit that keeps no state is not asked about");
        AskTier {
            key: *key,
            limit,
            numbers: other_numbers.as_deref().unwrap_or_else(own),
            cost: *cost,
            group: *group,
            attributes: *attributes,
            owed: *owed,
        }
    }
}

/// Calls under way to one server at once: while it works on one, the next is on its way. One to four were
/// equally fast; with more, calls are smaller than they need be.
const PLACES: usize = 2;
