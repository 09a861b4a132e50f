//! Group commit: decisions that arrive while calls to a server are under way wait in a queue, and leave it together
//! in one call.
//!
//! No caller waits for a timer. If a call may begin, a decision is sent at once, by itself. When a call ends, the
//! decisions that wait leave the queue. Each is decided by itself, in the order of arrival, and has its own answer; equal
//! ones are sent as one ([`Crowds`]). A caller that is dropped before the call is sent is not charged; one that is
//! dropped later is.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::failure::Failure;
use super::link::Manner;
use super::program::{self, Call, Reply};
use super::shard::Shard;
use super::{Asked, Caller};
use crate::engine::{Ask, StoreError, Told};
use crate::time::Deadline;

pub(super) mod crowds;
mod gathering;
mod load;

use crowds::{Crowds, Spot};
use gathering::{Gathering, Ticket, Turn};
use load::{Given, Load, Sent, weight_of};

/// The calls under way to one server, and who waits for them to end.
#[derive(Debug)]
pub(super) struct Batches {
    gathering: Mutex<Gathering<Waiting>>,
    load: Arc<Load>,
}

/// How a decision goes out.
pub(super) enum Way {
    /// At once; others wait until this is dropped.
    Alone(Place),
    /// With others.
    Together(Seat),
}

/// Where a caller waits for its own part of an answer.
pub(super) struct Seat {
    shard: Arc<Shard>,
    ticket: Ticket,
    answer: oneshot::Receiver<Result<Part, Failure>>,
}

/// One who waits, with all that it takes to ask on its behalf.
#[derive(Debug)]
struct Waiting {
    asks: Vec<Ask>,
    caller: Arc<Caller>,
    deadline: Deadline,
    answer: oneshot::Sender<Result<Part, Failure>>,
    given: Given,
}

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

impl Batches {
    /// For a server that takes decisions of many subjects in one call.
    pub(super) fn new() -> Batches {
        Batches { gathering: Mutex::new(Gathering::new(PLACES)), load: Load::new() }
    }

    /// For one that does not: nobody ever waits.
    pub(super) fn none() -> Batches {
        Batches { gathering: Mutex::new(Gathering::new(usize::MAX)), load: Load::new() }
    }

    /// How decisions go out that arrive now; nothing where they would not be answered in time, or too many wait.
    pub(super) fn arrive(shard: &Arc<Shard>, asks: &[Ask], asked: &Asked<'_>) -> Option<Way> {
        let Batches { gathering, load } = shard.batches();
        let given = load.take_on(weight_of(asks), asked.deadline.left())?;
        let alone = |given| Way::Alone(Place::new(shard, given));
        if gathering.lock().begin() {
            return Some(alone(given));
        }
        let (sender, answer) = oneshot::channel();
        let asks = asks.to_vec();
        let (caller, deadline) = (Arc::clone(asked.caller), asked.deadline);
        let mut gathering = gathering.lock();
        // The last call may have ended meanwhile, and nobody would see to the queue.
        if gathering.begin() {
            return Some(alone(given));
        }
        let waiting = Waiting { asks, caller, deadline, answer: sender, given };
        let ticket = gathering.join(waiting)?;
        Some(Way::Together(Seat { shard: Arc::clone(shard), ticket, answer }))
    }

    /// Those who leave next, in one call; nobody: the place has been given up. None goes along that asks
    /// a tier with other numbers than one before it, nor whoever goes by another clock.
    fn next(&self) -> Batch {
        let mut gathering = self.gathering.lock();
        let count = gathering.will_leave();
        let (mut crowds, mut spots) = (Crowds::for_some(count), Vec::with_capacity(count));
        let now = Deadline::after(Duration::ZERO);
        let (waiting, gone) = gathering.leave(|leaving: &[Waiting], waiting| {
            let find = |(who, ask): (u32, u32)| match leaving.get(who as usize) {
                Some(leaving) => &leaving.asks[ask as usize],
                None => &waiting.asks[ask as usize],
            };
            if waiting.answer.is_closed() || waiting.deadline <= now {
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
        drop(gathering);
        for waiting in gone {
            waiting.fail(Failure::unsent_in_time("the time of the caller was over"));
        }
        Batch { waiting, crowds, spots }
    }

    /// The server is silent: releases all who wait here for a call to it. Nothing of theirs was sent.
    pub(super) fn release(&self) {
        let released = self.gathering.lock().release();
        for waiting in released {
            waiting.fail(Failure::NotSent("the server answers none of the calls before".into()));
        }
    }
}

impl Seat {
    /// What became of `asks`, for which this seat was taken.
    pub(super) async fn told(
        mut self,
        asks: &[Ask],
        deadline: Deadline,
    ) -> Result<Vec<Result<Told, StoreError>>, Failure> {
        let Part { reply, of_asks } = self.heard(deadline).await?;
        reply.told(asks, &of_asks).map_err(Failure::bug)
    }

    /// What the caller is told, once.
    async fn heard(&mut self, deadline: Deadline) -> Result<Part, Failure> {
        match deadline.bound(&mut self.answer).await {
            Some(Ok(heard)) => heard,
            Some(Err(_)) => self.leave("the call was given up"),
            None => self.leave("no answer in time"),
        }
    }

    /// Whether the decisions were sent is what matters. Once it is known, they are not sent any more.
    fn leave(&mut self, why: &str) -> Result<Part, Failure> {
        let gathering = self.shard.batches().gathering.lock();
        let sent = gathering.has_left(self.ticket);
        self.answer.close();
        drop(gathering);
        // It may have come just now.
        if let Ok(heard) = self.answer.try_recv() {
            return heard;
        }
        Err(self.shard.count(match sent {
            true => Failure::too_late(why),
            false => Failure::unsent_in_time(format!("{why}: other calls were under way")),
        }))
    }
}

/// A place among the calls under way to a server. Given up, it goes to those who wait. It goes with the call, and is given
/// up when that is answered, whether the caller is there or not.
pub(super) struct Place {
    shard: Arc<Shard>,
    _given: Given,
    _sent: Sent,
}

impl Place {
    fn new(shard: &Arc<Shard>, given: Given) -> Place {
        let sent = shard.batches().load.send(given.weight_us());
        Place { shard: Arc::clone(shard), _given: given, _sent: sent }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.shard.batches().gathering.lock().end() {
            return;
        }
        let carrier = Carrier { shard: Arc::clone(&self.shard), has_place: true };
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
                waiting.fail(Failure::NotSent(why));
            }
        }
    }
}

/// One call for all of a batch, until its answer comes or the server is found silent: its callers may leave before.
async fn carry(shard: &Shard, batch: Batch) {
    let Batch { waiting, crowds, spots } = batch;
    let Some(first) = waiting.first() else { return };
    let deadline = Deadline::none();
    let asked = Asked { caller: &first.caller, deadline, manner: Manner::Plainly };
    let weight_us = waiting.iter().map(|waiting| waiting.given.weight_us()).sum();
    let sent = shard.batches().load.send(weight_us);
    let first = |(who, ask): (u32, u32)| &waiting[who as usize].asks[ask as usize];
    let build = |header| {
        let mut call = Call::new(header);
        crowds.iter().for_each(|crowd| call.crowd(first(crowd.first), crowd.times));
        call
    };
    let answer = shard.run(build, &asked).await.map(Arc::new);
    drop(sent);
    let mut parts = program::Parts::new();
    let parts: Vec<program::Part> =
        crowds.iter().map(|crowd| parts.next(first(crowd.first), crowd.times)).collect();
    let mut spots = spots.into_iter();
    for waiting in waiting {
        let of_asks = spots.by_ref().take(waiting.asks.len());
        let of_asks = of_asks.map(|spot| parts[spot.crowd as usize].at(spot.place)).collect();
        match &answer {
            Ok(reply) => waiting.tell(reply, of_asks),
            Err(failure) => waiting.fail(failure.clone()),
        }
    }
}

impl Waiting {
    /// Hands the reply on. A caller that has left was charged, and gets no answer.
    fn tell(self, reply: &Arc<Reply>, of_asks: SmallVec<[program::Part; 1]>) {
        let _ = self.answer.send(Ok(Part { reply: Arc::clone(reply), of_asks }));
    }

    fn fail(self, failure: Failure) {
        let _ = self.answer.send(Err(failure));
    }
}

/// Calls under way to one server at once: while it works on one, the next is on its way. One to four were
/// equally fast; with more, calls are smaller than they need be.
const PLACES: usize = 2;
