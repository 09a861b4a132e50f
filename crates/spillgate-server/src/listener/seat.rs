//! One connection's seat at a listener: the bytes that it buffers, and the calls under way on it. By these the listener
//! decides whether it may close the connection to make room for another.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::buffers::{Budget, Hold};

/// A listener's record of one connection.
pub(crate) struct Seat {
    /// Calls that have arrived whole and are not answered.
    calls: AtomicU32,
    /// Whether a call has been answered since the connection was opened.
    served: AtomicBool,
    /// Whether a call has been answered since the listener last searched for a connection to close.
    used: AtomicBool,
    /// Whether the connection's only call has wrong credentials, and its answer is delayed.
    stranger: AtomicBool,
    task: OnceLock<AbortHandle>,
    hold: Hold,
    /// Bytes of messages that are incomplete or not answered.
    buffered: AtomicUsize,
    phase: AtomicU8,
    /// Whether an answer is ready that the system has not taken whole. The next message may have begun already.
    unflushed: AtomicBool,
    messages: AtomicU32,
    received: AtomicUsize,
    /// Messages that were refused because they are too long.
    oversized: AtomicU32,
    /// Wakes the task that ends the connection.
    ends: Notify,
    /// The task that reads again once less is buffered.
    reader: Mutex<Option<Waker>>,
}

/// The phase of a connection with one message at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The connection waits for a message or receives its head.
    Head,
    /// A handler reads the body and makes the answer.
    Call,
    /// The client receives the answer.
    Answer,
}

impl Seat {
    pub(super) fn new(budget: &Arc<Budget>) -> Seat {
        Seat {
            calls: AtomicU32::new(0),
            served: AtomicBool::new(false),
            used: AtomicBool::new(false),
            stranger: AtomicBool::new(false),
            task: OnceLock::new(),
            hold: Hold::of(budget),
            buffered: AtomicUsize::new(0),
            phase: AtomicU8::new(Phase::Head as u8),
            unflushed: AtomicBool::new(false),
            messages: AtomicU32::new(0),
            received: AtomicUsize::new(0),
            oversized: AtomicU32::new(0),
            ends: Notify::new(),
            reader: Mutex::new(None),
        }
    }

    /// Returns the seat of a connection that shares its listener with no other.
    #[cfg(test)]
    pub(crate) fn alone() -> Arc<Seat> {
        Arc::new(Seat::new(&Arc::new(Budget::new())))
    }

    pub(super) fn served_by(&self, task: AbortHandle) {
        // A seat has one task, so the handle is never set twice.
        let _ = self.task.set(task);
    }

    /// Returns whether no whole call is under way, so that closing the connection loses no answer but that to wrong
    /// credentials.
    pub(super) fn is_idle(&self) -> bool {
        self.stranger.load(Ordering::Relaxed) || self.calls.load(Ordering::Relaxed) == 0
    }

    /// Returns whether a call has been answered, and the client does not wait for the answer to wrong credentials.
    pub(crate) fn has_been_served(&self) -> bool {
        self.served.load(Ordering::Relaxed) && !self.stranger.load(Ordering::Relaxed)
    }

    /// Notes that the answer to wrong credentials is delayed. Until [`Seat::forget_stranger`] the connection may be
    /// closed for another. Only for protocols with one call at a time: another call would be dropped too.
    pub(super) fn note_stranger(&self) {
        self.stranger.store(true, Ordering::Relaxed);
    }

    /// Notes that the answer to wrong credentials is no longer delayed.
    pub(super) fn forget_stranger(&self) {
        self.stranger.store(false, Ordering::Relaxed);
    }

    /// Returns whether a call was answered since the last call of this function.
    pub(super) fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    /// Closes the connection and drops its calls.
    pub(super) fn cut(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    /// Returns the connection's share of the listener's budget.
    pub(super) fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Waits until the connection may buffer `bytes`.
    pub(crate) async fn cover(&self, bytes: usize) {
        self.hold.cover(bytes).await;
    }

    /// Returns whether the connection may buffer `bytes`, and takes them from the budget if need be. Does not wait.
    pub(crate) fn try_cover(&self, bytes: usize) -> bool {
        self.hold.try_cover(bytes)
    }

    /// Returns to the budget all that is not needed to buffer `bytes`.
    pub(crate) fn shrink_to(&self, bytes: usize) {
        self.hold.shrink_to(bytes);
    }

    /// Returns whether other connections may wait for this one's share.
    pub(crate) fn is_contended(&self) -> bool {
        self.hold.is_contended()
    }

    pub(super) fn buffered(&self) -> usize {
        self.buffered.load(Ordering::Relaxed)
    }

    /// Counts `bytes` more as buffered.
    pub(crate) fn add(&self, bytes: usize) {
        self.buffered.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts `bytes` less as buffered, and wakes the reader of the connection.
    pub(crate) fn subtract(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let before = self.buffered.fetch_sub(bytes, Ordering::Relaxed);
        self.hold.shrink_to(before.saturating_sub(bytes));
        if let Some(reader) = self.reader().take() {
            reader.wake();
        }
    }

    pub(super) fn wake_when_less(&self, waker: &Waker) {
        *self.reader() = Some(waker.clone());
    }

    /// Returns the number of all bytes that the client has sent.
    pub(crate) fn received(&self) -> usize {
        self.received.load(Ordering::Relaxed)
    }

    pub(super) fn receive(&self, bytes: usize) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a message that was refused because it is too long.
    pub(crate) fn refuse_oversized(&self) {
        if self.oversized.fetch_add(1, Ordering::Relaxed) + 1 == OVERSIZED_MAX {
            self.ends.notify_one();
        }
    }

    /// Waits until the client has sent [`OVERSIZED_MAX`] messages that are too long.
    pub(crate) async fn until_flooded(&self) {
        self.ends.notified().await;
    }

    /// Notes that the head of a message has arrived.
    pub(crate) fn note_call(&self) {
        self.phase.store(Phase::Call as u8, Ordering::Relaxed);
    }

    /// Notes that the answer to the message is ready.
    pub(crate) fn note_answer(&self) {
        self.phase.store(Phase::Answer as u8, Ordering::Relaxed);
        self.unflushed.store(true, Ordering::Relaxed);
    }

    /// Notes that the system has taken all written bytes. If an answer was among them, its message is over.
    pub(super) fn flushed(&self) {
        if !self.unflushed.swap(false, Ordering::Relaxed) {
            return;
        }
        self.messages.fetch_add(1, Ordering::Relaxed);
        let (answer, head) = (Phase::Answer as u8, Phase::Head as u8);
        let ended = self.phase.compare_exchange(answer, head, Ordering::Relaxed, Ordering::Relaxed);
        // If the next call has begun, its bytes are buffered until it is answered.
        if ended.is_ok() {
            self.buffered.store(0, Ordering::Relaxed);
            self.hold.shrink_to(0);
        }
    }

    /// Returns the phase and the number of the current message; `None` while the connection waits for a first byte. A
    /// client that sends its next request is in the phase of the answer until it has taken that.
    pub(crate) fn progress(&self) -> Option<(Phase, u32)> {
        let phase = match self.phase.load(Ordering::Relaxed) {
            _ if self.unflushed.load(Ordering::Relaxed) => Phase::Answer,
            phase if phase == Phase::Call as u8 => Phase::Call,
            phase if phase == Phase::Answer as u8 => Phase::Answer,
            _ if self.buffered() == 0 => return None,
            _ => Phase::Head,
        };
        Some((phase, self.messages.load(Ordering::Relaxed)))
    }

    fn reader(&self) -> MutexGuard<'_, Option<Waker>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One call on a connection, from its first byte to its answer. Clones are the same call.
#[derive(Clone)]
pub(crate) struct Call(Arc<Calling>);

struct Calling {
    seat: Arc<Seat>,
    whole: AtomicBool,
}

impl Call {
    pub(crate) fn on(seat: &Arc<Seat>) -> Call {
        Call(Arc::new(Calling { seat: Arc::clone(seat), whole: AtomicBool::new(false) }))
    }

    pub(crate) fn seat(&self) -> &Seat {
        &self.0.seat
    }

    /// Notes that the call has arrived whole. Until it ends, its connection is not closed for another.
    pub(crate) fn note_whole(&self) {
        if !self.0.whole.swap(true, Ordering::Relaxed) {
            self.0.seat.calls.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        if *self.whole.get_mut() {
            self.seat.served.store(true, Ordering::Relaxed);
            self.seat.used.store(true, Ordering::Relaxed);
            self.seat.calls.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The number of oversized messages at which a connection is closed. Refusing one is cheap, but its client sends up
/// to a stream's window with it: without this bound one connection sends 20,000 messages and 300 MB a second. A proxy
/// whose own clients cause a few opens another connection and loses no call.
const OVERSIZED_MAX: u32 = 16;
