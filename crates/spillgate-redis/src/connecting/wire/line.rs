//! A line that many callers send on. A caller writes its own command, or adds it to a common buffer if many
//! are in flight. One task reads the replies, which come in the order of sending.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use ::redis::{RedisError, RedisResult};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, ReadHalf, WriteHalf};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::pulse::{Pulse, Silence};
use super::reply::{Cut, WireReply, is_pushed};
use crate::time::SLICES;

/// The sending end of a line.
pub(crate) struct Line {
    sending: Mutex<Sending>,
}

struct Sending {
    /// `None` once the line is closed.
    half: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    /// The line's socket once more, to ask the kernel. `None` once the line is closed, and in a simulation.
    socket: Option<TcpStream>,
    /// Bytes that leave together, or that the socket did not take at once. The reader sends them.
    unsent: Vec<u8>,
    /// Commands without a reply, in the order of sending.
    awaited: VecDeque<Awaited>,
    /// Wakes the reader.
    reader: Waker,
    /// The pulse of the shard, if the connection is watched for silence.
    pulse: Option<Arc<Pulse>>,
    /// Whether the reader has a timer for silence.
    is_timed: bool,
}

/// A command that was sent, and has no reply yet.
struct Awaited {
    /// `None` if no caller waits for the reply.
    reply_to: Option<ReplySender>,
    held: Held,
    sent_at: Instant,
    /// Whether the shard owes a byte since this was sent.
    is_watched: bool,
}

/// A value that lives until the reply to its command, even if the caller is dropped before.
pub type Held = Option<Box<dyn Send>>;

/// The receiving end: reads replies while it is polled.
pub struct Reader<S> {
    line: Arc<Line>,
    half: ReadHalf<S>,
    /// Bytes that were read and not delivered lie between `from` and `to`.
    bytes: Vec<u8>,
    from: usize,
    to: usize,
    cut: Cut,
    /// Whether callers that are about to send have had their turn.
    waited: bool,
    silence: Option<Silence>,
    /// When the last byte came on this connection.
    received_at: Instant,
}

/// Delivers the reply to a command, and the value that was held for it.
type ReplySender = oneshot::Sender<(RedisResult<WireReply>, Held)>;

/// Creates a line over `stream`, and its reader. `socket` is a duplicate of the stream's socket.
pub fn line<S>(stream: S, socket: Option<TcpStream>) -> (Arc<Line>, Reader<S>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (read, write): (ReadHalf<S>, WriteHalf<S>) = tokio::io::split(stream);
    let sending = Sending {
        half: Some(Box::new(write)),
        socket,
        unsent: Vec::new(),
        awaited: VecDeque::new(),
        reader: Waker::noop().clone(),
        pulse: None,
        is_timed: false,
    };
    let line = Arc::new(Line { sending: Mutex::new(sending) });
    let bytes = vec![0; READ_MIN];
    let reader = Reader {
        line: Arc::clone(&line),
        half: read,
        bytes,
        from: 0,
        to: 0,
        cut: Cut::new(),
        waited: false,
        silence: None,
        received_at: Instant::now(),
    };
    (line, reader)
}

impl Line {
    /// Sends commands, and returns the reply to the last one.
    ///
    /// Sending never blocks: bytes that the socket does not take now are sent by the reader. A caller that is
    /// dropped later has sent its commands all the same.
    pub(crate) async fn send(&self, packed: &[u8], commands: usize) -> RedisResult<WireReply> {
        self.send_as(packed, commands, None, false).await.0
    }

    /// Sends a call whose reply the shard owes within the pulse's timeout.
    ///
    /// `held` is returned with the reply. If the caller is dropped before, `held` is dropped when the reply comes.
    pub(crate) async fn call(
        &self,
        packed: &[u8],
        commands: usize,
        held: Held,
    ) -> (RedisResult<WireReply>, Held) {
        self.send_as(packed, commands, held, true).await
    }

    async fn send_as(
        &self,
        packed: &[u8],
        commands: usize,
        held: Held,
        is_watched: bool,
    ) -> (RedisResult<WireReply>, Held) {
        let (reply_to, answer) = oneshot::channel();
        {
            let mut sending = self.sending.lock();
            // The bytes and the entry in `awaited` are added under one lock. Replies are matched with entries by
            // order alone, so another command between the two would give each caller the other's reply.
            if let Err(error) = sending.send(packed) {
                return (Err(error), held);
            }
            let is_watched = is_watched && sending.pulse.is_some();
            let sent_at = Instant::now();
            let awaited = |reply_to| Awaited { reply_to, held: None, sent_at, is_watched };
            // Replies before the last one, such as to ASKING, go to no caller.
            sending.awaited.extend((1..commands).map(|_| awaited(None)));
            sending.awaited.push_back(Awaited { held, ..awaited(Some(reply_to)) });
            if is_watched && !sending.is_timed {
                sending.is_timed = true;
                sending.reader.wake_by_ref();
            }
        }
        // If the reader is gone, the fate of the command is unknown.
        answer.await.unwrap_or_else(|_| (Err(closed()), None))
    }

    /// Reports the bytes that are read here to a shard's pulse, and makes the reader watch for silence.
    pub(crate) fn watch(self: &Arc<Self>, pulse: &Arc<Pulse>) {
        self.sending.lock().pulse = Some(Arc::clone(pulse));
        pulse.join(self);
    }

    /// Asks the kernel whether the connection has bytes that the reader has not taken, or has ended.
    ///
    /// The runtime learns of bytes in its own time, which may be late.
    pub(crate) fn has_unread(&self) -> bool {
        let sending = self.sending.lock();
        let socket = sending.socket.as_ref();
        socket.is_some_and(|socket| match socket.peek(&mut [0]) {
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            Ok(_) => true,
        })
    }

    /// Releases all watched callers: the shard is silent. Replies that still come are dropped.
    pub(crate) fn release(&self) {
        let mut released = Vec::new();
        for awaited in &mut self.sending.lock().awaited {
            // The entry itself stays: a late reply must still be matched with it, to keep the order.
            if awaited.is_watched {
                released.extend(
                    awaited.reply_to.take().map(|reply_to| (reply_to, awaited.held.take())),
                );
            }
        }
        for (reply_to, held) in released {
            let _ = reply_to.send((Err(silent()), held));
        }
    }

    /// Closes the line, and fails all waiting callers.
    pub(crate) fn close(&self) {
        self.end(&closed());
    }

    fn end(&self, why: &RedisError) {
        let mut sending = self.sending.lock();
        (sending.half, sending.socket) = (None, None);
        sending.unsent = Vec::new();
        let awaited = std::mem::take(&mut sending.awaited);
        // The lock is released first: each caller that wakes may send another command, which takes it.
        drop(sending);
        for Awaited { reply_to, held, .. } in awaited {
            if let Some(reply_to) = reply_to {
                let _ = reply_to.send((Err(why.clone()), held));
            }
        }
    }
}

impl Sending {
    /// Returns when the oldest call was sent whose caller still waits for the shard's reply.
    fn oldest(&self) -> Option<Instant> {
        let outstanding = |awaited: &&Awaited| awaited.is_watched && awaited.reply_to.is_some();
        self.awaited.iter().find(outstanding).map(|awaited| awaited.sent_at)
    }

    /// Returns when the oldest call was sent that has no reply, whether or not its caller was released.
    fn owed_since(&self) -> Option<Instant> {
        self.awaited.iter().find(|awaited| awaited.is_watched).map(|awaited| awaited.sent_at)
    }

    fn send(&mut self, packed: &[u8]) -> RedisResult<()> {
        let half = self.half.as_mut().ok_or_else(unsent)?;
        let mut sent = 0;
        if self.unsent.is_empty() && self.awaited.len() < BUFFERED_FROM {
            // The reader waits for room in the socket, and finds write errors too.
            let no_waker = &mut Context::from_waker(Waker::noop());
            if let Poll::Ready(Ok(taken)) = Pin::new(&mut *half).poll_write(no_waker, packed) {
                sent = taken;
            }
            if sent == packed.len() && Pin::new(half).poll_flush(no_waker).is_ready() {
                return Ok(());
            }
        }
        // Under load the bytes leave together with the next ones: one system call for several commands. The rest of a
        // command that the socket took in part goes the same way, since nothing may be written before it.
        self.unsent.extend_from_slice(&packed[sent..]);
        self.reader.wake_by_ref();
        Ok(())
    }

    fn poll_unsent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Callers wake the reader through this waker, which may change from poll to poll.
        if !self.reader.will_wake(context.waker()) {
            self.reader = context.waker().clone();
        }
        let Some(half) = &mut self.half else { return Poll::Ready(Ok(())) };
        let mut sent = 0;
        let written = loop {
            if sent == self.unsent.len() {
                break Pin::new(&mut *half).poll_flush(context);
            }
            match Pin::new(&mut *half).poll_write(context, &self.unsent[sent..]) {
                Poll::Ready(Ok(0)) => break Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(taken)) => sent += taken,
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                Poll::Pending => break Poll::Pending,
            }
        };
        self.unsent.drain(..sent);
        written
    }
}

impl<S: AsyncRead + Unpin> Future for Reader<S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let reader = self.get_mut();
        let why = match reader.poll_answers(context) {
            Poll::Ready(why) => why,
            Poll::Pending => ready!(reader.poll_silence(context)),
        };
        reader.line.end(&why);
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> Reader<S> {
    /// Delivers replies while there are any. Ready with the reason why there will be no more.
    fn poll_answers(&mut self, context: &mut Context<'_>) -> Poll<RedisError> {
        let mut sending = self.line.sending.lock();
        let is_buffering = !sending.unsent.is_empty() && sending.awaited.len() > BUFFERED_FROM;
        if is_buffering && !self.waited {
            // Waits for one turn of the runtime: callers that just got a reply often send the next command at once.
            self.waited = true;
            context.waker().wake_by_ref();
        } else {
            self.waited = false;
            if let Poll::Ready(Err(error)) = sending.poll_unsent(context) {
                return Poll::Ready(error.into());
            }
        }
        drop(sending);
        loop {
            self.make_room();
            let mut free = ReadBuf::new(&mut self.bytes[self.to..]);
            match ready!(Pin::new(&mut self.half).poll_read(context, &mut free)) {
                Err(error) => return Poll::Ready(error.into()),
                Ok(()) if free.filled().is_empty() => return Poll::Ready(closed()),
                Ok(()) => self.to += free.filled().len(),
            }
            self.note_byte();
            if let Err(why) = self.deliver_replies() {
                return Poll::Ready(why);
            }
        }
    }

    /// Delivers all complete replies.
    fn deliver_replies(&mut self) -> RedisResult<()> {
        loop {
            let unread = &self.bytes[self.from..self.to];
            let garbled = |_| RedisError::from(io::Error::from(io::ErrorKind::InvalidData));
            let Some(end) = self.cut.end(unread).map_err(garbled)? else { return Ok(()) };
            let frame = &unread[..end];
            self.from += end;
            // A server may push a message that answers no command. It must not take the place of a reply.
            if is_pushed(frame) {
                continue;
            }
            let answer = WireReply::parse(frame).and_then(WireReply::unless_error);
            // Delivered after the lock is released: the caller may send the next command at once, which takes
            // the lock.
            let awaited = self.line.sending.lock().awaited.pop_front();
            let Some(Awaited { reply_to: Some(reply_to), held, .. }) = awaited else { continue };
            if reply_to.send((answer, held)).is_err()
                && let Some(pulse) = &self.line.sending.lock().pulse
            {
                pulse.note_late_answer();
            }
        }
    }

    fn note_byte(&mut self) {
        self.received_at = Instant::now();
        if let Some(pulse) = &self.line.sending.lock().pulse {
            pulse.note_byte(self.received_at);
        }
    }

    /// Counts the shard's silence after all available bytes were read, so a byte that came with the timer counts.
    ///
    /// Ready if this connection is broken: it alone has been silent for long.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<RedisError> {
        loop {
            if let Some(silence) = &mut self.silence {
                ready!(silence.poll_slice(context));
            }
            let (pulse, owed_since, oldest) = {
                let mut sending = self.line.sending.lock();
                let oldest = sending.oldest();
                sending.is_timed &= oldest.is_some();
                (sending.pulse.clone(), sending.owed_since(), oldest)
            };
            let (Some(pulse), Some(owed_since), Some(oldest)) = (pulse, owed_since, oldest) else {
                // No watched caller waits, so there is nothing to time. The next call sets `is_timed` and wakes the
                // reader.
                self.silence = None;
                return Poll::Pending;
            };
            // Other connections have received bytes meanwhile, but this one has not for too long.
            let now = Instant::now();
            let silent_since = owed_since.max(self.received_at);
            let is_long = now.saturating_duration_since(silent_since) >= pulse.broken_after();
            if is_long && pulse.received_since(silent_since) && !self.line.has_unread() {
                return Poll::Ready(broken());
            }
            let slice = pulse.timeout / SLICES;
            let Some(silence) = &mut self.silence else {
                self.silence = Some(Silence::new(now, slice));
                continue;
            };
            let since = oldest.max(pulse.last_received());
            let missing = silence.end_slice(since, now, pulse.timeout + LAST_LOOK);
            if !missing.is_zero() {
                silence.begin_slice(now, slice.min(missing));
            } else if pulse.has_unread() {
                // The shard has answered, and this process has not read it yet.
                pulse.note_byte(now);
                silence.begin_slice(now, slice);
            } else {
                self.silence = None;
                pulse.judge_silent();
            }
        }
    }

    fn make_room(&mut self) {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        }
        if self.bytes.len() - self.to >= READ_MIN / 2 {
            return;
        }
        // Moves the unread bytes to the front, and doubles the buffer if that does not suffice.
        self.bytes.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        if self.bytes.len() - self.to < READ_MIN / 2 {
            self.bytes.resize(2 * self.bytes.len(), 0);
        }
    }
}

/// Callers must also fail when the reader's task is aborted.
impl<S> Drop for Reader<S> {
    fn drop(&mut self) {
        self.line.close();
    }
}

fn closed() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

/// The error of a command for a connection that was closed before: no byte of it was sent.
fn unsent() -> RedisError {
    io::Error::new(io::ErrorKind::ConnectionRefused, "the connection was closed before").into()
}

fn silent() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

fn broken() -> RedisError {
    io::Error::new(io::ErrorKind::ConnectionAborted, "only this connection is silent").into()
}

/// The shard gets this time on top of its timeout.
const LAST_LOOK: Duration = Duration::from_millis(2);

/// With at least this number of commands in flight, one more waits for the next write. Batched calls alone never reach
/// the number. A Cluster's calls do, since each slot has calls of its own, and so may corrections and leases.
const BUFFERED_FROM: usize = 4;
/// Fits the reply to a call of many decisions.
const READ_MIN: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    const PONG: &[u8] = b"+PONG\r\n";

    /// A stream that takes what is written, and whose bytes the runtime has not noticed yet.
    struct Unnoticed;

    impl AsyncRead for Unnoticed {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Unnoticed {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn watched<S>(stream: S, socket: TcpStream, timeout: Duration) -> (Arc<Line>, Arc<Pulse>)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (line, reader) = line(stream, Some(socket));
        let pulse = Arc::new(Pulse::new(timeout, || ()));
        line.watch(&pulse);
        tokio::spawn(reader);
        (line, pulse)
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_that_the_runtime_has_not_noticed_are_no_silence() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let (mut server, _) = server.accept().unwrap();
        let timeout = Duration::from_millis(25);
        let (line, _pulse) = watched(Unnoticed, socket.try_clone().unwrap(), timeout);
        let call = || tokio::time::timeout(10 * timeout, line.call(b"PING", 1, None));
        let (reply, _) = call().await.expect("the server was found silent");
        assert!(reply.unwrap_err().is_timeout());
        server.write_all(PONG).unwrap();
        socket.set_nonblocking(false).unwrap();
        socket.peek(&mut [0]).unwrap();
        socket.set_nonblocking(true).unwrap();
        assert!(call().await.is_err(), "the server has answered");
    }

    /// A second look 2 ms after the stall found the shard silent.
    #[tokio::test]
    async fn a_stall_of_this_process_is_not_the_shards_silence() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = tokio::net::TcpStream::connect(server.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = server.accept().unwrap();
        let timeout = Duration::from_millis(200);
        std::thread::spawn(move || {
            server.read_exact(&mut [0; 4]).unwrap();
            std::thread::sleep(timeout * 3 / 2);
            server.write_all(PONG).unwrap();
            // Until the client has closed the connection.
            let _ = server.read_exact(&mut [0]);
        });
        let socket = crate::connecting::wire::duplicate(&stream).unwrap();
        let (line, _pulse) = watched(stream, socket, timeout);
        let stall = async {
            // The call has been sent, and its time runs.
            tokio::time::sleep(timeout / 20).await;
            std::thread::sleep(timeout * 5 / 4);
        };
        let ((reply, _), ()) = tokio::join!(line.call(b"PING", 1, None), stall);
        assert!(reply.is_ok(), "{:?}", reply.err());
    }
}
