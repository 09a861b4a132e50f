//! Bounds the connections of one listener, and chooses the connection that is closed when the bound is reached.
//!
//! Clients that keep a connection open without sending a request must not keep others out. A client that stays in the
//! system's queue gets no answer, so every connection is accepted. If the listener has as many as it may, one of them
//! is closed:
//!
//! 1. The oldest connection that never had an answer. A good client has one within milliseconds.
//! 2. If there is none, the connection whose last answer is oldest, by the clock algorithm.
//!
//! A connection with a call under way is never closed. If all have one, the new connection is closed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::buffers::Budget;
use super::connection_state::ConnectionState;

/// The bound on a listener's connections, and the open connections.
pub struct ConnectionLimit {
    count: u32,
    free: Arc<Semaphore>,
    budget: Arc<Budget>,
    open: Mutex<Open>,
}

/// Open connections by the order in which they were accepted.
#[derive(Default)]
struct Open {
    connections: BTreeMap<u64, Arc<ConnectionState>>,
    next: u64,
    /// The number of the connection at which the search for an unused connection goes on.
    hand: u64,
}

/// The permit of one open connection. Dropping it makes room for another.
pub struct ConnectionPermit {
    limit: Arc<ConnectionLimit>,
    number: u64,
    pub state: Arc<ConnectionState>,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionLimit {
    pub fn new(count: u32) -> ConnectionLimit {
        ConnectionLimit {
            count,
            free: Arc::new(Semaphore::new(count as usize)),
            budget: Arc::new(Budget::new()),
            open: Mutex::default(),
        }
    }

    /// Returns a permit for a new connection, and closes another connection for it if need be; `None` if all have calls
    /// under way.
    pub async fn acquire(self: &Arc<ConnectionLimit>) -> Option<ConnectionPermit> {
        if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
            return Some(self.admit(permit));
        }
        self.open().victim()?.cut();
        let permit = timeout(CUTTING, Arc::clone(&self.free).acquire_owned()).await;
        permit.ok()?.ok().map(|permit| self.admit(permit))
    }

    /// Waits until all connections are closed, for at most `bound`.
    pub async fn all_closed_within(&self, bound: Duration) {
        // Running out of time is no failure: the caller goes on to a harsher step.
        let _ = timeout(bound, self.free.acquire_many(self.count)).await;
    }

    fn admit(self: &Arc<ConnectionLimit>, permit: OwnedSemaphorePermit) -> ConnectionPermit {
        let state = Arc::new(ConnectionState::new(&self.budget));
        let mut open = self.open();
        let number = open.next;
        open.next += 1;
        open.connections.insert(number, Arc::clone(&state));
        drop(open);
        ConnectionPermit { limit: Arc::clone(self), number, state, _permit: permit }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn victim(&mut self) -> Option<Arc<ConnectionState>> {
        let never_served =
            |state: &&Arc<ConnectionState>| state.is_idle() && !state.has_been_served();
        if let Some(state) = self.connections.values().find(never_served) {
            return Some(Arc::clone(state));
        }
        // The clock algorithm: the first round takes a connection that was not used since the last search, and clears
        // the mark of each that was. If all were used, the second round takes the first idle one.
        for _ in 0..2 {
            let from_hand =
                self.connections.range(self.hand..).chain(self.connections.range(..self.hand));
            let unused =
                |(_, state): &(&u64, &Arc<ConnectionState>)| state.is_idle() && !state.take_used();
            if let Some((number, state)) = from_hand.into_iter().find(unused) {
                let state = Arc::clone(state);
                self.hand = number + 1;
                return Some(state);
            }
        }
        None
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limit.open().connections.remove(&self.number);
    }
}

/// The longest wait for a connection that was cut to close: a call that occupies its thread takes less.
const CUTTING: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::connection_state::Call;

    async fn opened(limit: &Arc<ConnectionLimit>, count: usize) -> Vec<ConnectionPermit> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(limit.acquire().await.expect("the limit is not reached"));
        }
        all
    }

    fn served(permit: &ConnectionPermit) {
        Call::on(&permit.state).note_whole();
    }

    fn victim(limit: &ConnectionLimit) -> Option<Arc<ConnectionState>> {
        limit.open().victim()
    }

    #[tokio::test]
    async fn the_oldest_connection_that_never_had_an_answer_is_cut_first() {
        let limit = Arc::new(ConnectionLimit::new(4));
        let all = opened(&limit, 4).await;
        served(&all[0]);
        let call = Call::on(&all[1].state);
        call.note_whole();
        assert!(Arc::ptr_eq(&victim(&limit).unwrap(), &all[2].state));
    }

    #[tokio::test]
    async fn among_served_connections_one_that_was_not_used_since_the_last_look_is_cut() {
        let limit = Arc::new(ConnectionLimit::new(3));
        let all = opened(&limit, 3).await;
        all.iter().for_each(served);
        let first = victim(&limit).unwrap();
        assert!(Arc::ptr_eq(&first, &all[0].state), "all were used: the oldest");
        served(&all[1]);
        assert!(Arc::ptr_eq(&victim(&limit).unwrap(), &all[2].state));
    }

    #[tokio::test]
    async fn a_connection_with_a_call_under_way_is_never_cut() {
        let limit = Arc::new(ConnectionLimit::new(2));
        let all = opened(&limit, 2).await;
        let calls: Vec<Call> = all.iter().map(|permit| Call::on(&permit.state)).collect();
        calls.iter().for_each(Call::note_whole);
        assert!(limit.acquire().await.is_none());
        drop(calls);
        assert!(victim(&limit).is_some());
    }
}
