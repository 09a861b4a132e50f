//! Queues of callers that wait for room, one for each counter that has denied a waiting caller.
//!
//! The first caller of a queue tries again when its wait is over. Callers behind it do not try
//! before it has left. So callers in one instance are admitted in the order of their arrival, and
//! small requests do not overtake a large one for ever. A queue knows no times, except when its
//! first caller will try again.
//!
//! If another counter denies the first caller of a queue, it moves to that counter's queue.
//! Otherwise callers behind it would wait for a limit that is not theirs.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::algorithm::{Intent, LimitParams};
use crate::counter::{LimitHandle, PlannedCharge};
use crate::plan::Plan;

/// All waiting callers of this instance.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    queues: Mutex<Queues>,
    /// Notified when room was made, so that the first caller of a queue can try early.
    pub(crate) room: Arc<Notify>,
    /// Set when no caller may wait any longer.
    ended: watch::Sender<bool>,
}

/// The time that a caller is willing to wait.
#[derive(Debug)]
pub(crate) struct Patience {
    deadline: Instant,
    ended: watch::Receiver<bool>,
}

#[derive(Debug, Default)]
struct Queues {
    by_counter: HashMap<u128, Queue>,
    /// The number of waiting callers in all queues.
    waiting: usize,
    last_ticket: u64,
}

/// The callers that wait for one counter, in order.
#[derive(Debug, Default)]
struct Queue {
    waiters: VecDeque<Waiter>,
    /// The sum of their costs.
    cost: u64,
    /// The denial that the first caller waits out.
    denial: Option<KnownDenial>,
    /// The counter to whose queue the last first caller moved. The next caller may follow it.
    moved_to: Option<u128>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    cost: u64,
    /// Notified when this caller becomes the first.
    turn: Arc<Notify>,
}

/// A denial of the first caller in a queue. It is not admitted before `until`.
#[derive(Clone, Debug)]
pub(crate) struct KnownDenial {
    /// The limit that has no room.
    pub(crate) params: LimitParams,
    /// The time at which the limit has room for the first caller.
    pub(crate) until: Instant,
}

/// A counter in which a caller needs room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Its index in the decision.
    pub(crate) index: usize,
    pub(crate) counter: u128,
    /// The hash that chooses its shard.
    pub(crate) tag: u128,
    pub(crate) cost: u64,
}

/// The counters in which a caller needs room.
pub(crate) type Wants = SmallVec<[Wanted; 4]>;

impl Wanted {
    /// Returns the enforced counters of a plan that need room; none if the plan can never have room.
    pub(crate) fn all_of<L: LimitHandle>(plan: &Plan<L>) -> Wants {
        if plan.transaction.intent == Intent::Peek {
            return Wants::new();
        }
        let enforced = plan.transaction.charges.iter().filter(|counter| counter.group == 0);
        let wanted = |counter: &PlannedCharge<L>| Wanted {
            index: usize::from(counter.index),
            counter: counter.name(),
            tag: counter.key.tag,
            cost: counter.cost,
        };
        enforced.map(wanted).collect()
    }
}

/// A place in a queue. Dropping it gives it up, and the next caller moves up.
#[derive(Debug)]
pub(crate) struct Place<'w> {
    waiting: &'w Waiting,
    counter: u128,
    ticket: u64,
    turn: Arc<Notify>,
}

/// The error that the largest number of callers is waiting already. Holds the counter that the
/// caller needs room in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TooMany(pub(crate) u128);

impl Waiting {
    /// Joins the queue of one of the `wanted` counters, if one has a queue.
    pub(crate) fn behind_others(&self, wanted: &[Wanted]) -> Option<Result<Place<'_>, TooMany>> {
        let mut queues = self.queues.lock();
        // Mostly no caller waits, and then no map is searched.
        if queues.waiting == 0 {
            return None;
        }
        let waited_for = |wanted: &&Wanted| queues.by_counter.contains_key(&wanted.counter);
        let wanted = *wanted.iter().find(waited_for)?;
        Some(queues.join(self, wanted))
    }

    /// Joins the queue of a counter, and starts it if needed.
    pub(crate) fn join(&self, wanted: Wanted) -> Result<Place<'_>, TooMany> {
        self.queues.lock().join(self, wanted)
    }

    /// Returns the patience of a caller that waits until `deadline`, or until all waiting ends.
    pub(crate) fn patience(&self, deadline: Instant) -> Patience {
        Patience { deadline, ended: self.ended.subscribe() }
    }

    /// Ends all waiting, now and from now on.
    pub(crate) fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Lets the first caller of every queue try again.
    pub(crate) fn note_room(&self) {
        self.room.notify_waiters();
    }

    /// Returns a future that ends when room is made after this call, even before its first poll.
    pub(crate) fn room(&self) -> Notified<'_> {
        self.room.notified()
    }

    /// Forgets the denials of all queues, because other limits are in force.
    pub(crate) fn forget_denials(&self) {
        self.queues.lock().by_counter.values_mut().for_each(|queue| queue.denial = None);
    }

    /// Returns the number of waiting callers.
    pub(crate) fn count(&self) -> usize {
        self.queues.lock().waiting
    }
}

impl Patience {
    /// Returns the time left, or zero once all waiting has ended.
    pub(crate) fn left(&self) -> Duration {
        if *self.ended.borrow() {
            Duration::ZERO
        } else {
            self.deadline.saturating_duration_since(Instant::now())
        }
    }

    /// Returns whether the caller would wait until `instant`.
    pub(crate) fn lasts_until(&self, instant: Instant) -> bool {
        instant <= self.deadline && !*self.ended.borrow()
    }

    /// Waits for `future`; returns `None` if patience ends first.
    pub(crate) async fn bound<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let Patience { deadline, ended } = self;
        tokio::select! {
            output = timeout_at(*deadline, future) => output.ok(),
            _ = ended.wait_for(|ended| *ended) => None,
        }
    }

    /// Waits for `pause`, or until room was made; returns `None` if patience ends first.
    pub(crate) async fn pause(&mut self, pause: Duration, room: Notified<'_>) -> Option<()> {
        self.bound(timeout(pause, room)).await.map(|_| ())
    }
}

/// Returns the end of a wait that begins now. The longest wait is [`WAIT_MAX`].
pub(crate) fn deadline_after(within: Duration) -> Instant {
    Instant::now() + within.min(WAIT_MAX)
}

impl Queues {
    fn join<'w>(&mut self, waiting: &'w Waiting, wanted: Wanted) -> Result<Place<'w>, TooMany> {
        if self.waiting == WAITING_MAX {
            return Err(TooMany(wanted.counter));
        }
        let (ticket, turn) = self.add(wanted);
        Ok(Place { waiting, counter: wanted.counter, ticket, turn })
    }

    /// Adds a caller to the end of a queue. Returns its ticket, and the notification of its turn.
    fn add(&mut self, wanted: Wanted) -> (u64, Arc<Notify>) {
        self.waiting += 1;
        self.last_ticket += 1;
        let Wanted { counter, cost, .. } = wanted;
        let (ticket, turn) = (self.last_ticket, Arc::new(Notify::new()));
        let queue = self.by_counter.entry(counter).or_default();
        queue.cost = queue.cost.saturating_add(cost);
        queue.waiters.push_back(Waiter { ticket, cost, turn: Arc::clone(&turn) });
        (ticket, turn)
    }

    /// Removes a caller from a queue; `moved_to` is the counter to whose queue it moves, if any.
    fn leave(&mut self, counter: u128, ticket: u64, moved_to: Option<u128>) {
        let Some(queue) = self.by_counter.get_mut(&counter) else { return };
        // Tickets ascend along a queue.
        let Ok(at) = queue.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket) else {
            return;
        };
        self.waiting -= 1;
        let left = queue.waiters.remove(at);
        queue.cost = queue.cost.saturating_sub(left.map_or(0, |waiter| waiter.cost));
        // Only if the first caller left does the next one get its turn.
        if at > 0 {
            return;
        }
        queue.denial = None;
        queue.moved_to = moved_to;
        match queue.waiters.front() {
            Some(first) => first.turn.notify_one(),
            None => drop(self.by_counter.remove(&counter)),
        }
    }
}

impl Place<'_> {
    /// Waits until this caller is the first.
    pub(crate) async fn first(&self) {
        // `notify_one` is kept until it is awaited, so a turn that comes between check and wait is
        // not lost.
        while !self.is_first() {
            self.turn.notified().await;
        }
    }

    /// Moves this caller to the end of another counter's queue.
    pub(crate) fn move_to(&mut self, wanted: Wanted) {
        let waiting = self.waiting;
        let mut queues = waiting.queues.lock();
        queues.leave(self.counter, self.ticket, Some(wanted.counter));
        (self.ticket, self.turn) = queues.add(wanted);
        self.counter = wanted.counter;
    }

    /// Returns the counter to whose queue the caller before this one moved, if that counter still
    /// denies and is one of `wanted`. Following spares a call that would be denied, too.
    pub(crate) fn followed(&self, wanted: &[Wanted]) -> Option<Wanted> {
        let queues = self.waiting.queues.lock();
        let moved_to = queues.by_counter.get(&self.counter)?.moved_to?;
        let denial = queues.by_counter.get(&moved_to)?.denial.as_ref()?;
        if denial.until <= Instant::now() {
            return None;
        }
        wanted.iter().copied().find(|wanted| wanted.counter == moved_to)
    }

    /// Returns the counter of the queue.
    pub(crate) fn counter(&self) -> u128 {
        self.counter
    }

    /// Returns whether this caller is the first.
    pub(crate) fn is_first(&self) -> bool {
        let queues = self.waiting.queues.lock();
        let first = queues.by_counter.get(&self.counter).and_then(|queue| queue.waiters.front());
        first.is_some_and(|first| first.ticket == self.ticket)
    }

    /// Stores the denial of the first caller, for those behind it.
    pub(crate) fn note(&self, denial: KnownDenial) {
        if let Some(queue) = self.waiting.queues.lock().by_counter.get_mut(&self.counter) {
            queue.denial = Some(denial);
            queue.moved_to = None;
        }
    }

    /// Returns the earliest time at which this caller can be admitted, if it has just joined and no
    /// caller before it leaves. `None` while the denial of the first caller is unknown.
    pub(crate) fn earliest(&self) -> Option<Instant> {
        let queues = self.waiting.queues.lock();
        let queue = queues.by_counter.get(&self.counter)?;
        let denial = queue.denial.as_ref()?;
        // The first caller has room at `until`. Those after it, up to this one, need the rest of
        // the queue's cost, which the limit frees over time.
        let first = queue.waiters.front()?.cost;
        let after_us = denial.params.counting().spaced_us(first, queue.cost);
        denial.until.checked_add(Duration::from_micros(after_us))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.waiting.queues.lock().leave(self.counter, self.ticket, None);
    }
}

/// Each takes a few hundred bytes. Most of so long a queue would give up before they are admitted.
const WAITING_MAX: usize = 100_000;
/// About 30 years. A later deadline may be more than the clock can represent.
const WAIT_MAX: Duration = Duration::from_secs(30 * 366 * 24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Kind, Limit, LimitSpec};

    fn params(quota: &str, algorithm: &str) -> LimitParams {
        let spec = LimitSpec::new(quota).algorithm(algorithm);
        let limit: Limit = spec.build().unwrap();
        let Kind::Counted(params) = limit.kind() else { panic!("{quota} counts nothing") };
        *params
    }

    fn wanted(counter: u128) -> Wanted {
        Wanted { index: 0, counter, tag: 0, cost: 1 }
    }

    #[test]
    fn a_leaving_caller_lets_the_next_move_up_from_any_place() {
        let waiting = Waiting::default();
        let mut places: Vec<Place<'_>> = (0..5).map(|_| waiting.join(wanted(1)).unwrap()).collect();
        assert!(places[0].is_first() && !places[1].is_first());
        drop(places.remove(2));
        drop(places.remove(0));
        assert!(places[0].is_first() && !places[1].is_first());
        assert_eq!(waiting.count(), 3);
        places.clear();
        assert_eq!(waiting.count(), 0);
        assert!(waiting.queues.lock().by_counter.is_empty());
    }

    #[test]
    fn a_newcomer_queues_behind_callers_of_any_of_its_counters() {
        let waiting = Waiting::default();
        assert!(waiting.behind_others(&[wanted(1)]).is_none());
        let first = waiting.join(wanted(1)).unwrap();
        assert!(waiting.behind_others(&[wanted(2)]).is_none());
        let second = waiting.behind_others(&[wanted(1), wanted(2)]).unwrap().unwrap();
        assert!(!second.is_first());
        drop(first);
        assert!(second.is_first());
    }

    #[tokio::test(start_paused = true)]
    async fn notifies_the_caller_that_becomes_first() {
        let waiting = Waiting::default();
        let (first, second) = (waiting.join(wanted(1)).unwrap(), waiting.join(wanted(1)).unwrap());
        first.first().await;
        tokio::join!(second.first(), async { drop(first) });
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_ahead_determines_the_earliest_admission() {
        let cases = [
            // Of 10 a minute, one becomes free every six seconds.
            (params("10/minute", "token-bucket"), 12),
            (params("2/minute", "fixed-window"), 60),
            (params("2/minute", "sliding-log"), 60),
            (params("2/minute", "sliding-window"), 30),
        ];
        for (params, after) in cases {
            let waiting = Waiting::default();
            let first = waiting.join(wanted(1)).unwrap();
            assert_eq!(first.earliest(), None, "the denial of the first caller is unknown");
            let until = Instant::now() + Duration::from_secs(5);
            first.note(KnownDenial { params, until });
            assert_eq!(first.earliest(), Some(until));
            let _second = waiting.join(wanted(1)).unwrap();
            let third = waiting.join(wanted(1)).unwrap();
            assert_eq!(third.earliest(), until.checked_add(Duration::from_secs(after)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn room_made_during_an_attempt_ends_the_pause_after_it() {
        let waiting = Waiting::default();
        let began = Instant::now();
        let hour = Duration::from_secs(3_600);
        let mut patience = waiting.patience(began + 2 * hour);
        let room = waiting.room();
        waiting.note_room();
        assert_eq!(patience.pause(hour, room).await, Some(()));
        assert_eq!(began.elapsed(), Duration::ZERO);
        // Room made before an attempt does not end the pause after it.
        assert_eq!(patience.pause(hour, waiting.room()).await, Some(()));
        assert!(began.elapsed() >= hour);
    }

    #[tokio::test(start_paused = true)]
    async fn a_moved_caller_is_followed_while_its_new_counter_denies() {
        let waiting = Waiting::default();
        let (here, there) = (wanted(1), wanted(2));
        let mut first = waiting.join(here).unwrap();
        let mut second = waiting.join(here).unwrap();
        let third = waiting.join(here).unwrap();
        let follows = |place: &Place<'_>, wanted: &[Wanted]| place.followed(wanted).is_some();
        first.move_to(there);
        assert!(first.is_first() && second.is_first());
        assert!(!follows(&second, &[here, there]), "the denial is unknown");
        let until = Instant::now() + Duration::from_secs(60);
        first.note(KnownDenial { params: params("1/minute", "token-bucket"), until });
        assert!(follows(&second, &[here, there]));
        assert!(!follows(&second, &[here]), "it needs no room there");
        second.move_to(there);
        assert!(!second.is_first() && third.is_first());
        assert_eq!((second.counter(), waiting.count()), (2, 3));
        tokio::time::advance(Duration::from_secs(61)).await;
        assert!(!follows(&third, &[here, there]), "there may be room now");
        drop(first);
        assert!(second.is_first());
    }

    #[test]
    fn bounds_the_number_of_waiting_callers() {
        let waiting = Waiting::default();
        let places: Vec<Place<'_>> =
            (0..WAITING_MAX).map(|_| waiting.join(wanted(1)).unwrap()).collect();
        assert!(waiting.join(wanted(2)).is_err());
        drop(places);
        assert!(waiting.join(wanted(2)).is_ok());
    }
}
