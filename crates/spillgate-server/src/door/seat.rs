//! One connection's seat at a listener: what the connection buffers, whether a call is under way on it, and
//! so whether it may be cut to make room for another.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::buffers::{Budget, Hold};

/// What a listener knows of one connection.
pub(crate) struct Seat {
    /// Calls that have arrived whole and are not answered.
    calls: AtomicU32,
    /// Whether a call has been answered since the connection was opened.
    served: AtomicBool,
    /// Whether a call has been answered since the listener last looked for a connection to cut.
    used: AtomicBool,
    task: OnceLock<AbortHandle>,
    hold: Hold,
    /// Bytes of the messages that are not whole or not answered.
    buffered: AtomicUsize,
    phase: AtomicU8,
    messages: AtomicU32,
    received: AtomicUsize,
    /// Messages that were refused for their length.
    oversized: AtomicU32,
    /// Wakes the task that ends the connection.
    ends: Notify,
    /// The task that reads again once less is buffered.
    reader: Mutex<Option<Waker>>,
}

/// Where a connection of one message at a time is with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its head comes in, or nothing does.
    Head,
    /// It is answered.
    Call,
    /// The client takes the answer.
    Answer,
}

impl Seat {
    pub(super) fn new(budget: &Arc<Budget>) -> Seat {
        Seat {
            calls: AtomicU32::new(0),
            served: AtomicBool::new(false),
            used: AtomicBool::new(false),
            task: OnceLock::new(),
            hold: Hold::of(budget),
            buffered: AtomicUsize::new(0),
            phase: AtomicU8::new(Phase::Head as u8),
            messages: AtomicU32::new(0),
            received: AtomicUsize::new(0),
            oversized: AtomicU32::new(0),
            ends: Notify::new(),
            reader: Mutex::new(None),
        }
    }

    /// The seat of a connection that shares its listener with no other.
    #[cfg(test)]
    pub(crate) fn alone() -> Arc<Seat> {
        Arc::new(Seat::new(&Arc::new(Budget::new())))
    }

    pub(super) fn served_by(&self, task: AbortHandle) {
        // It is set once, when the task has begun.
        let _ = self.task.set(task);
    }

    /// Whether nothing would be lost by cutting the connection but what its client has not sent whole.
    pub(super) fn is_idle(&self) -> bool {
        self.calls.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn has_been_served(&self) -> bool {
        self.served.load(Ordering::Relaxed)
    }

    /// Whether a call was answered since this was last asked.
    pub(super) fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    /// Ends the connection, with all that is under way on it.
    pub(super) fn cut(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    /// What the connection has of the listener's budget.
    pub(super) fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Waits until the connection may buffer so many bytes.
    pub(crate) async fn cover(&self, bytes: usize) {
        self.hold.cover(bytes).await;
    }

    /// Whether the connection may buffer so many bytes, without a wait.
    pub(crate) fn try_cover(&self, bytes: usize) -> bool {
        self.hold.try_cover(bytes)
    }

    /// The connection buffers no more than so many bytes now.
    pub(crate) fn shrink_to(&self, bytes: usize) {
        self.hold.shrink_to(bytes);
    }

    /// Whether other connections may wait for what this one holds.
    pub(crate) fn is_contended(&self) -> bool {
        self.hold.is_contended()
    }

    pub(super) fn buffered(&self) -> usize {
        self.buffered.load(Ordering::Relaxed)
    }

    /// So many bytes more are buffered.
    pub(crate) fn add(&self, bytes: usize) {
        self.buffered.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many bytes less are buffered, and the connection may be read again.
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

    /// All bytes that the client has sent.
    pub(crate) fn received(&self) -> usize {
        self.received.load(Ordering::Relaxed)
    }

    pub(super) fn receive(&self, bytes: usize) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a message that was refused for its length.
    pub(crate) fn refuse_oversized(&self) {
        if self.oversized.fetch_add(1, Ordering::Relaxed) + 1 == OVERSIZED_MAX {
            self.ends.notify_one();
        }
    }

    /// Ends once the client has sent [`OVERSIZED_MAX`] messages that were refused for their length.
    pub(crate) async fn until_flooded(&self) {
        self.ends.notified().await;
    }

    /// The head has come in.
    pub(crate) fn calls(&self) {
        self.phase.store(Phase::Call as u8, Ordering::Relaxed);
    }

    /// There is an answer, which the client has not taken.
    pub(crate) fn answers(&self) {
        self.phase.store(Phase::Answer as u8, Ordering::Relaxed);
    }

    /// All that was written is with the system. If that was an answer, its message is over.
    pub(super) fn flushed(&self) {
        if self.phase.load(Ordering::Relaxed) == Phase::Answer as u8 {
            self.phase.store(Phase::Head as u8, Ordering::Relaxed);
            self.messages.fetch_add(1, Ordering::Relaxed);
            self.buffered.store(0, Ordering::Relaxed);
            self.hold.shrink_to(0);
        }
    }

    /// Where the connection is, and with which message; none if it waits for the first byte of one.
    pub(crate) fn progress(&self) -> Option<(Phase, u32)> {
        let phase = match self.phase.load(Ordering::Relaxed) {
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

    /// The call has arrived: from now to its end its connection is not cut for another.
    pub(crate) fn is_whole(&self) {
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

/// Oversized messages on one connection before it is closed. Refusing one is cheap, but its client sends up to a
/// stream's window with it: on a connection without this bound that is 20,000 messages and 300 MB a second. A
/// proxy whose own clients cause a few opens another connection and loses no call.
const OVERSIZED_MAX: u32 = 16;
