//! Callers who would rather wait than be refused: one line for each counter that has refused somebody.
//!
//! Who is first in a line asks again when its wait is over, and nobody behind it asks before it has left. So those
//! who wait in one process are let in by the order of their arrival, and a small request does not overtake
//! a large one for ever. Lines know nothing of time but when the first will ask again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::algorithm::LimitParams;
use crate::time::Deadline;

/// All who wait in this process.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    lines: Mutex<Lines>,
    /// Somebody has made room: whoever is first may ask before its time.
    room: Notify,
    /// Nobody waits any more.
    ended: watch::Sender<bool>,
}

/// How long somebody is willing to wait.
#[derive(Debug)]
pub(crate) struct Patience {
    deadline: Deadline,
    ended: watch::Receiver<bool>,
}

#[derive(Debug, Default)]
struct Lines {
    by_counter: HashMap<u128, Line>,
    /// How many wait in all of them.
    waiting: usize,
    last_ticket: u64,
}

/// Who waits for one counter, the first at the front.
#[derive(Debug, Default)]
struct Line {
    waiters: VecDeque<Waiter>,
    /// What all of them cost together.
    cost: u64,
    /// Why the first waits.
    refusal: Option<Refusal>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    cost: u64,
    /// Told when it is first.
    turn: Arc<Notify>,
}

/// The first in line is not let in before this.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    /// The limit that has no room.
    pub(crate) params: LimitParams,
    /// When it has room for the first.
    pub(crate) until: Deadline,
}

/// A counter that somebody wants to be let in by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) counter: u128,
    pub(crate) cost: u64,
}

/// A place in a line; dropped, it is given up, and the next moves up.
#[derive(Debug)]
pub(crate) struct Place<'w> {
    waiting: &'w Waiting,
    counter: u128,
    ticket: u64,
    turn: Arc<Notify>,
}

/// As many wait already as may, for this counter or others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TooMany(pub(crate) u128);

impl Waiting {
    /// The end of a line that somebody stands in already, where one of `wanted` has one.
    pub(crate) fn behind_others<'a>(
        &self,
        wanted: impl IntoIterator<Item = &'a Wanted>,
    ) -> Option<Result<Place<'_>, TooMany>> {
        let mut lines = self.lines.lock();
        if lines.waiting == 0 {
            return None;
        }
        let waited_for = |wanted: &&Wanted| lines.by_counter.contains_key(&wanted.counter);
        let wanted = *wanted.into_iter().find(waited_for)?;
        Some(lines.join(self, wanted))
    }

    /// The end of this line, which may begin with it.
    pub(crate) fn join(&self, wanted: Wanted) -> Result<Place<'_>, TooMany> {
        self.lines.lock().join(self, wanted)
    }

    /// For somebody who waits until then, unless all are told to stop.
    pub(crate) fn patience(&self, deadline: Deadline) -> Patience {
        Patience { deadline, ended: self.ended.subscribe() }
    }

    /// From now on nobody waits.
    pub(crate) fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Somebody has made room.
    pub(crate) fn note_room(&self) {
        self.room.notify_waiters();
    }

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.lines.lock().waiting
    }
}

impl Patience {
    /// What is left of it.
    pub(crate) fn left(&self) -> Duration {
        if *self.ended.borrow() { Duration::ZERO } else { self.deadline.left() }
    }

    /// Whether it lasts until then.
    pub(crate) fn lasts_until(&self, instant: Deadline) -> bool {
        instant <= self.deadline && !*self.ended.borrow()
    }

    /// What comes of `future`, unless it ends before.
    pub(crate) async fn bound<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let Patience { deadline, ended } = self;
        tokio::select! {
            output = deadline.bound(future) => output,
            _ = ended.wait_for(|ended| *ended) => None,
        }
    }
}

impl Lines {
    fn join<'w>(&mut self, waiting: &'w Waiting, wanted: Wanted) -> Result<Place<'w>, TooMany> {
        if self.waiting == WAITING_MAX {
            return Err(TooMany(wanted.counter));
        }
        self.waiting += 1;
        self.last_ticket += 1;
        let Wanted { counter, cost } = wanted;
        let (ticket, turn) = (self.last_ticket, Arc::new(Notify::new()));
        let line = self.by_counter.entry(counter).or_default();
        line.cost = line.cost.saturating_add(cost);
        line.waiters.push_back(Waiter { ticket, cost, turn: Arc::clone(&turn) });
        Ok(Place { waiting, counter, ticket, turn })
    }

    fn leave(&mut self, counter: u128, ticket: u64) {
        let Some(line) = self.by_counter.get_mut(&counter) else { return };
        // Tickets ascend along a line.
        let Ok(at) = line.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket) else {
            return;
        };
        self.waiting -= 1;
        let left = line.waiters.remove(at);
        line.cost = line.cost.saturating_sub(left.map_or(0, |waiter| waiter.cost));
        if at > 0 {
            return;
        }
        line.refusal = None;
        match line.waiters.front() {
            Some(first) => first.turn.notify_one(),
            None => drop(self.by_counter.remove(&counter)),
        }
    }
}

impl Place<'_> {
    /// Waits until nobody stands before it.
    pub(crate) async fn first(&self) {
        while !self.is_first() {
            self.turn.notified().await;
        }
    }

    /// Waits so long, or until somebody says that there is room.
    pub(crate) async fn pause(&self, pause: Duration) {
        let _ = tokio::time::timeout(pause, self.waiting.room.notified()).await;
    }

    /// What it is waited for here.
    pub(crate) fn counter(&self) -> u128 {
        self.counter
    }

    /// Whether nobody stands before it.
    pub(crate) fn is_first(&self) -> bool {
        let lines = self.waiting.lines.lock();
        let line = lines.by_counter.get(&self.counter);
        line.and_then(|line| line.waiters.front()).is_some_and(|first| first.ticket == self.ticket)
    }

    /// Says why the first waits, for those behind it.
    pub(crate) fn note(&self, refusal: Refusal) {
        if let Some(line) = self.waiting.lines.lock().by_counter.get_mut(&self.counter) {
            line.refusal = Some(refusal);
        }
    }

    /// When it can be let in at the earliest, if it has just joined and nobody before it leaves:
    /// perhaps later, and unknown while nobody knows why the first waits.
    pub(crate) fn earliest(&self) -> Option<Deadline> {
        let lines = self.waiting.lines.lock();
        let line = lines.by_counter.get(&self.counter)?;
        let refusal = line.refusal.as_ref()?;
        let first = line.waiters.front()?.cost;
        let after_us = refusal.params.spaced_us(first, line.cost);
        refusal.until.later(Duration::from_micros(after_us))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.waiting.lines.lock().leave(self.counter, self.ticket);
    }
}

/// Each takes some hundred bytes, and most will not be let in before their callers give up.
const WAITING_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Kind, Limit, LimitSpec};

    fn params(quota: &str, algorithm: &str) -> LimitParams {
        let spec = LimitSpec::new(quota).algorithm(algorithm);
        let limit: Limit = spec.build().unwrap();
        let Kind::Counted(params) = limit.kind() else { panic!("{quota} counts nothing") };
        params.clone()
    }

    fn wanted(counter: u128) -> Wanted {
        Wanted { counter, cost: 1 }
    }

    #[test]
    fn whoever_leaves_lets_the_next_move_up_wherever_it_stood() {
        let waiting = Waiting::default();
        let mut places: Vec<Place<'_>> = (0..5).map(|_| waiting.join(wanted(1)).unwrap()).collect();
        assert!(places[0].is_first() && !places[1].is_first());
        drop(places.remove(2));
        drop(places.remove(0));
        assert!(places[0].is_first() && !places[1].is_first());
        assert_eq!(waiting.count(), 3);
        places.clear();
        assert_eq!(waiting.count(), 0);
        assert!(waiting.lines.lock().by_counter.is_empty());
    }

    #[test]
    fn a_newcomer_stands_behind_whoever_waits_for_one_of_its_counters() {
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
    async fn whoever_is_first_is_told() {
        let waiting = Waiting::default();
        let (first, second) = (waiting.join(wanted(1)).unwrap(), waiting.join(wanted(1)).unwrap());
        first.first().await;
        tokio::join!(second.first(), async { drop(first) });
    }

    #[tokio::test(start_paused = true)]
    async fn what_stands_before_somebody_says_when_it_can_be_let_in_at_the_earliest() {
        let cases = [
            // Of 10 a minute one is free every six seconds.
            (params("10/minute", "token-bucket"), 12),
            (params("2/minute", "fixed-window"), 60),
            (params("2/minute", "sliding-log"), 60),
            (params("2/minute", "sliding-window"), 30),
        ];
        for (params, after) in cases {
            let waiting = Waiting::default();
            let first = waiting.join(wanted(1)).unwrap();
            assert_eq!(first.earliest(), None, "nobody has said why the first waits");
            let until = Deadline::after(Duration::from_secs(5));
            first.note(Refusal { params, until });
            assert_eq!(first.earliest(), Some(until));
            let _second = waiting.join(wanted(1)).unwrap();
            let third = waiting.join(wanted(1)).unwrap();
            assert_eq!(third.earliest(), until.later(Duration::from_secs(after)));
        }
    }

    #[test]
    fn no_more_wait_than_may() {
        let waiting = Waiting::default();
        let places: Vec<Place<'_>> =
            (0..WAITING_MAX).map(|_| waiting.join(wanted(1)).unwrap()).collect();
        assert!(waiting.join(wanted(2)).is_err());
        drop(places);
        assert!(waiting.join(wanted(2)).is_ok());
    }
}
