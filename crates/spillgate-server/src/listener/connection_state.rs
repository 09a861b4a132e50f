//! The state of one connection: the bytes that it buffers, and the calls under way on it. From these the listener
//! decides whether it may close the connection for another.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::buffers::{Budget, BufferShare};

/// The state of one connection, which its listener, its protocol and its calls share.
pub(crate) struct ConnectionState {
    /// Calls that have arrived whole and are not answered.
    calls: AtomicU32,
    /// Whether a call has been answered since the connection was opened.
    served: AtomicBool,
    /// Whether a call has been answered since the listener last searched for a connection to close.
    used: AtomicBool,
    task: OnceLock<AbortHandle>,
    pub buffer_share: BufferShare,
    /// Bytes of messages that are incomplete or not answered.
    buffered: AtomicUsize,
    /// On a connection with one message at a time: whether a handler reads the body and makes the answer.
    answers: AtomicBool,
    /// Whether an answer is ready and the system has not taken all its bytes. The next message may have begun already.
    unflushed: AtomicBool,
    /// Whether the call under way waits for room, so that it ends if its client leaves.
    waits: AtomicBool,
    messages: AtomicU32,
    received: AtomicUsize,
    /// Whether the client began with a request of HTTP/1.
    speaks_http1: AtomicBool,
    /// Bytes received before the current turn of reading.
    before_turn: AtomicUsize,
    /// Messages that were refused because they are too long.
    oversized: AtomicU32,
    /// Wakes the task that ends the connection.
    ends: Notify,
    /// The task that reads again once less is buffered, or an answer is taken.
    reader: Mutex<Option<Waker>>,
}

impl ConnectionState {
    pub fn new(budget: &Arc<Budget>) -> ConnectionState {
        ConnectionState {
            calls: AtomicU32::new(0),
            served: AtomicBool::new(false),
            used: AtomicBool::new(false),
            task: OnceLock::new(),
            buffer_share: BufferShare::new(budget),
            buffered: AtomicUsize::new(0),
            answers: AtomicBool::new(false),
            unflushed: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            messages: AtomicU32::new(0),
            received: AtomicUsize::new(0),
            speaks_http1: AtomicBool::new(false),
            before_turn: AtomicUsize::new(0),
            oversized: AtomicU32::new(0),
            ends: Notify::new(),
            reader: Mutex::new(None),
        }
    }

    /// Returns the state of the only connection of a listener.
    #[cfg(test)]
    pub(crate) fn alone() -> Arc<ConnectionState> {
        Arc::new(ConnectionState::new(&Arc::new(Budget::new())))
    }

    pub fn served_by(&self, task: AbortHandle) {
        // A connection has one task, so the handle is never set twice.
        let _ = self.task.set(task);
    }

    /// Returns whether closing the connection loses no answer: no whole call is under way.
    pub fn is_idle(&self) -> bool {
        self.calls.load(Ordering::Relaxed) == 0
    }

    /// Returns whether a call has been answered.
    pub(crate) fn has_been_served(&self) -> bool {
        self.served.load(Ordering::Relaxed)
    }

    /// Returns whether a call was answered since the last call of this function.
    pub fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    /// Closes the connection and drops its calls.
    pub fn cut(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    pub fn buffered(&self) -> usize {
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
        self.buffer_share.shrink_to(before.saturating_sub(bytes));
        self.wake_reader();
    }

    fn wake_reader(&self) {
        if let Some(reader) = self.reader().take() {
            reader.wake();
        }
    }

    pub fn wake_when_less(&self, waker: &Waker) {
        *self.reader() = Some(waker.clone());
    }

    /// Returns the number of all bytes that the client has sent.
    pub(crate) fn received(&self) -> usize {
        self.received.load(Ordering::Relaxed)
    }

    pub fn receive(&self, bytes: &[u8]) {
        let before = self.received.fetch_add(bytes.len(), Ordering::Relaxed);
        if before == 0 && bytes.windows(HTTP1.len()).any(|part| part == HTTP1) {
            self.speaks_http1.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the client began with a request of HTTP/1.
    pub(crate) fn speaks_http1(&self) -> bool {
        self.speaks_http1.load(Ordering::Relaxed)
    }

    /// Begins a turn of reading: the protocol has passed on what it read before.
    pub(crate) fn begin_turn(&self) {
        self.before_turn.store(self.received(), Ordering::Relaxed);
    }

    /// Returns the bytes received in this turn.
    pub fn read_in_turn(&self) -> usize {
        self.received() - self.before_turn.load(Ordering::Relaxed)
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
        self.waits.store(false, Ordering::Relaxed);
        self.answers.store(true, Ordering::Relaxed);
    }

    /// Notes that the call waits for room. If the client has closed its side of the connection, the call ends.
    pub(crate) fn note_wait(&self) {
        self.waits.store(true, Ordering::Relaxed);
        self.wake_reader();
    }

    /// Returns whether the end of what the client sends may be read later, since a call is under way or its answer not
    /// taken. A client may close its side as soon as it has sent its request, and still reads the answer. It looks like
    /// one that has left, so a call that waits for room ends.
    pub fn hides_end(&self) -> bool {
        let owes = self.answers.load(Ordering::Relaxed) || self.unflushed.load(Ordering::Relaxed);
        owes && !self.waits.load(Ordering::Relaxed)
    }

    /// Notes that the answer to the message is ready.
    pub(crate) fn note_answer(&self) {
        self.answers.store(false, Ordering::Relaxed);
        self.unflushed.store(true, Ordering::Relaxed);
    }

    /// Notes that the system has taken all written bytes. If an answer was among them, its message is over.
    pub fn flushed(&self) {
        if !self.unflushed.swap(false, Ordering::Relaxed) {
            return;
        }
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.wake_reader();
        // If the next call has begun, its bytes are buffered until it is answered.
        if !self.answers.load(Ordering::Relaxed) {
            self.buffered.store(0, Ordering::Relaxed);
            self.buffer_share.shrink_to(0);
        }
    }

    /// Returns the number of the message whose answer is ready and not taken; `None` if there is none.
    pub(crate) fn untaken_answer(&self) -> Option<u32> {
        let is_ready = self.unflushed.load(Ordering::Relaxed);
        is_ready.then(|| self.messages.load(Ordering::Relaxed))
    }

    fn reader(&self) -> MutexGuard<'_, Option<Waker>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One call on a connection, from its first byte to its answer. Clones are the same call.
#[derive(Clone)]
pub(crate) struct Call(Arc<CallState>);

struct CallState {
    connection: Arc<ConnectionState>,
    whole: AtomicBool,
}

impl Call {
    pub(crate) fn on(connection: &Arc<ConnectionState>) -> Call {
        Call(Arc::new(CallState {
            connection: Arc::clone(connection),
            whole: AtomicBool::new(false),
        }))
    }

    pub(crate) fn connection(&self) -> &ConnectionState {
        &self.0.connection
    }

    /// Notes that the call has arrived whole. Until the call ends, its connection is not closed for another.
    pub(crate) fn note_whole(&self) {
        if !self.0.whole.swap(true, Ordering::Relaxed) {
            self.0.connection.calls.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for CallState {
    fn drop(&mut self) {
        if *self.whole.get_mut() {
            self.connection.served.store(true, Ordering::Relaxed);
            self.connection.used.store(true, Ordering::Relaxed);
            self.connection.calls.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// In the first line of a request of HTTP/1.
const HTTP1: &[u8] = b" HTTP/1.";

/// The number of oversized messages at which a connection is closed. Refusing one is cheap, but the client sends up to
/// a stream's window with it: without this bound one connection sends 20,000 messages and 300 MB a second. If the
/// clients of a proxy cause that many, the proxy opens another connection and loses no call.
const OVERSIZED_MAX: u32 = 16;
