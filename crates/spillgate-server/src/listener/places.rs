//! The seats of one listener, and the choice of the connection that is closed when all are taken.
//!
//! Clients that hold a connection without sending a request must not keep others out. A client in the system's queue
//! would wait without an answer, so every connection is accepted, and when all seats are taken one is closed. First
//! the oldest that never had an answer: a good client has one within milliseconds. Then the one whose last answer is
//! oldest, by the clock algorithm. A connection with a call under way is never closed; if all have one, the new
//! connection is. A call with wrong credentials protects no connection while its answer is delayed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::buffers::Budget;
use super::seat::Seat;

/// The seats of a listener.
pub(super) struct Places {
    count: u32,
    free: Arc<Semaphore>,
    budget: Arc<Budget>,
    taken: Mutex<Taken>,
}

/// Seats by the order in which they were taken.
#[derive(Default)]
struct Taken {
    seats: BTreeMap<u64, Arc<Seat>>,
    next: u64,
    /// The number of the seat at which the search for an unused seat goes on.
    hand: u64,
}

/// A seat that is free again once this is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    seat: Arc<Seat>,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    pub(super) fn new(count: u32) -> Places {
        Places {
            count,
            free: Arc::new(Semaphore::new(count as usize)),
            budget: Arc::new(Budget::new()),
            taken: Mutex::default(),
        }
    }

    /// Returns a seat for a new connection, and closes another for it if need be; `None` if all have calls under way.
    pub(super) async fn take(self: &Arc<Places>) -> Option<Place> {
        if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
            return Some(self.seated(permit));
        }
        self.taken().victim()?.cut();
        let permit = timeout(CUTTING, Arc::clone(&self.free).acquire_owned()).await;
        permit.ok()?.ok().map(|permit| self.seated(permit))
    }

    /// Waits until all seats are free, for at most `bound`.
    pub(super) async fn all_free_within(&self, bound: Duration) {
        // Running out of time is no failure: the caller goes on to a harsher step.
        let _ = timeout(bound, self.free.acquire_many(self.count)).await;
    }

    fn seated(self: &Arc<Places>, permit: OwnedSemaphorePermit) -> Place {
        let seat = Arc::new(Seat::new(&self.budget));
        let mut taken = self.taken();
        let number = taken.next;
        taken.next += 1;
        taken.seats.insert(number, Arc::clone(&seat));
        drop(taken);
        Place { places: Arc::clone(self), number, seat, _permit: permit }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn victim(&mut self) -> Option<Arc<Seat>> {
        let never_served = |seat: &&Arc<Seat>| seat.is_idle() && !seat.has_been_served();
        if let Some(seat) = self.seats.values().find(never_served) {
            return Some(Arc::clone(seat));
        }
        // The clock algorithm: the first round takes a seat that was not used since the last search, and clears the
        // mark of each that was. If all were used, the second round takes the first idle one.
        for _ in 0..2 {
            let from_hand = self.seats.range(self.hand..).chain(self.seats.range(..self.hand));
            let unused = |(_, seat): &(&u64, &Arc<Seat>)| seat.is_idle() && !seat.take_used();
            if let Some((number, seat)) = from_hand.into_iter().find(unused) {
                let seat = Arc::clone(seat);
                self.hand = number + 1;
                return Some(seat);
            }
        }
        None
    }
}

impl Place {
    pub(super) fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken().seats.remove(&self.number);
    }
}

/// The longest wait for a closed connection to free its seat: a call that occupies its thread takes less.
const CUTTING: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::seat::Call;

    async fn taken(places: &Arc<Places>, count: usize) -> Vec<Place> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(places.take().await.expect("a seat is free"));
        }
        all
    }

    fn served(place: &Place) {
        Call::on(place.seat()).note_whole();
    }

    fn victim(places: &Places) -> Option<Arc<Seat>> {
        places.taken().victim()
    }

    #[tokio::test]
    async fn the_oldest_connection_that_never_had_an_answer_is_cut_first() {
        let places = Arc::new(Places::new(4));
        let all = taken(&places, 4).await;
        served(&all[0]);
        let call = Call::on(all[1].seat());
        call.note_whole();
        assert!(Arc::ptr_eq(&victim(&places).unwrap(), all[2].seat()));
    }

    #[tokio::test]
    async fn among_served_connections_one_that_was_not_used_since_the_last_look_is_cut() {
        let places = Arc::new(Places::new(3));
        let all = taken(&places, 3).await;
        all.iter().for_each(served);
        let first = victim(&places).unwrap();
        assert!(Arc::ptr_eq(&first, all[0].seat()), "all were used: the oldest");
        served(&all[1]);
        assert!(Arc::ptr_eq(&victim(&places).unwrap(), all[2].seat()));
    }

    #[tokio::test]
    async fn a_connection_with_wrong_credentials_is_cut_while_its_answer_is_delayed() {
        let places = Arc::new(Places::new(2));
        let all = taken(&places, 2).await;
        all.iter().for_each(served);
        let call = Call::on(all[1].seat());
        call.note_whole();
        all[1].seat().note_stranger();
        assert!(Arc::ptr_eq(&victim(&places).unwrap(), all[1].seat()));
        all[1].seat().forget_stranger();
        assert!(Arc::ptr_eq(&victim(&places).unwrap(), all[0].seat()));
    }

    #[tokio::test]
    async fn a_connection_with_a_call_under_way_is_never_cut() {
        let places = Arc::new(Places::new(2));
        let all = taken(&places, 2).await;
        let calls: Vec<Call> = all.iter().map(|place| Call::on(place.seat())).collect();
        calls.iter().for_each(Call::note_whole);
        assert!(places.take().await.is_none());
        drop(calls);
        assert!(victim(&places).is_some());
    }
}
