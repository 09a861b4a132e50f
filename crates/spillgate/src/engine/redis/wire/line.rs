//! A line that many send on: a command goes out from its caller's own hand, or with those of others where many are
//! under way, and one task reads the answers, which come in the order of sending.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use ::redis::{RedisError, RedisResult};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, ReadHalf, WriteHalf};
use tokio::sync::oneshot;

use super::answer::{Answer, Cut, is_pushed};

/// One end of a line: where commands are sent.
pub(super) struct Line {
    sending: Mutex<Sending>,
}

struct Sending {
    /// None once the line is closed.
    half: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    /// What leaves together, or the line did not take at once. Whoever reads sees to it.
    unsent: Vec<u8>,
    /// Who is to be told what, in the order of sending; None where nobody wants to know.
    awaited: VecDeque<Option<Heard>>,
    /// Whoever reads.
    reader: Waker,
}

/// The other end: reads answers for as long as it is polled.
pub(super) struct Reader<S> {
    line: Arc<Line>,
    half: ReadHalf<S>,
    /// What was read and not told yet lies between `from` and `to`.
    bytes: Vec<u8>,
    from: usize,
    to: usize,
    cut: Cut,
    /// Whether those who are about to send have had their turn.
    waited: bool,
}

type Heard = oneshot::Sender<RedisResult<Answer>>;

/// A line over `stream`, and who reads on it.
pub(super) fn line<S>(stream: S) -> (Arc<Line>, Reader<S>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (read, write): (ReadHalf<S>, WriteHalf<S>) = tokio::io::split(stream);
    let sending = Sending {
        half: Some(Box::new(write)),
        unsent: Vec::new(),
        awaited: VecDeque::new(),
        reader: Waker::noop().clone(),
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
    };
    (line, reader)
}

impl Line {
    /// Sends commands, and answers what the server says to the last of them. Nobody is kept waiting: what
    /// the line does not take now is sent as soon as it does. Whoever goes away later was sent all the same.
    pub(super) async fn send(&self, packed: &[u8], commands: usize) -> RedisResult<Answer> {
        let (heard, answer) = oneshot::channel();
        {
            let mut sending = self.sending.lock();
            sending.send(packed)?;
            sending.awaited.extend((1..commands).map(|_| None));
            sending.awaited.push_back(Some(heard));
        }
        // Where nobody reads any more, nobody knows what became of it.
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Ends it, and tells all who wait.
    pub(super) fn close(&self) {
        self.end(&closed());
    }

    fn end(&self, why: &RedisError) {
        let mut sending = self.sending.lock();
        sending.half = None;
        sending.unsent = Vec::new();
        let awaited = std::mem::take(&mut sending.awaited);
        drop(sending);
        for heard in awaited.into_iter().flatten() {
            let _ = heard.send(Err(why.clone()));
        }
    }
}

impl Sending {
    fn send(&mut self, packed: &[u8]) -> RedisResult<()> {
        let half = self.half.as_mut().ok_or_else(closed)?;
        let mut sent = 0;
        if self.unsent.is_empty() && self.awaited.len() < CROWD {
            // Who waits for room is the reader; what went wrong it finds out too.
            let nobody = &mut Context::from_waker(Waker::noop());
            if let Poll::Ready(Ok(taken)) = Pin::new(&mut *half).poll_write(nobody, packed) {
                sent = taken;
            }
            if sent == packed.len() && Pin::new(half).poll_flush(nobody).is_ready() {
                return Ok(());
            }
        }
        self.unsent.extend_from_slice(&packed[sent..]);
        self.reader.wake_by_ref();
        Ok(())
    }

    fn poll_unsent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
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
        let why = ready!(reader.poll_answers(context));
        reader.line.end(&why);
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> Reader<S> {
    /// Tells answers for as long as there are any; why there will be no more.
    fn poll_answers(&mut self, context: &mut Context<'_>) -> Poll<RedisError> {
        let mut sending = self.line.sending.lock();
        let is_crowded = !sending.unsent.is_empty() && sending.awaited.len() > CROWD;
        if is_crowded && !self.waited {
            // Once around: whoever was told of an answer asks again at once, more often than not.
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
            if let Err(why) = self.tell() {
                return Poll::Ready(why);
            }
        }
    }

    /// Tells all answers that are there whole.
    fn tell(&mut self) -> RedisResult<()> {
        loop {
            let unread = &self.bytes[self.from..self.to];
            let garbled = |_| RedisError::from(io::Error::from(io::ErrorKind::InvalidData));
            let Some(end) = self.cut.end(unread).map_err(garbled)? else { return Ok(()) };
            let frame = &unread[..end];
            self.from += end;
            if is_pushed(frame) {
                continue;
            }
            let answer = Answer::of(frame).and_then(Answer::unless_error);
            // Told once the lock is given back: whoever hears of it may send at once.
            let awaited = self.line.sending.lock().awaited.pop_front();
            if let Some(Some(heard)) = awaited {
                let _ = heard.send(answer);
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
        self.bytes.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        if self.bytes.len() - self.to < READ_MIN / 2 {
            self.bytes.resize(2 * self.bytes.len(), 0);
        }
    }
}

/// Whoever waits learns it also when the task that reads is given up.
impl<S> Drop for Reader<S> {
    fn drop(&mut self) {
        self.line.close();
    }
}

fn closed() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

/// With so many commands under way nobody waits longer for one more that leaves with the next. Calls of gathered
/// decisions are never so many: these are a Cluster's, whose slots are asked one by one.
const CROWD: usize = 4;
/// The answer to a call of many decisions, and more.
const READ_MIN: usize = 16 * 1024;
