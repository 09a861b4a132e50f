//! Receives the messages of a call, with bounds on the length and the time of each. The bytes of an incomplete message
//! are counted.
//!
//! A message that is too long is refused by its first five bytes. Bytes are taken from HTTP/2's windows as they arrive,
//! so this count and those windows alone bound the bytes that a client may send.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use crate::listener::{Call, ConnectionState};

/// The body of a request: a series of messages.
pub struct Messages {
    body: Incoming,
    state: Arc<ConnectionState>,
    call: Option<Call>,
    request: RequestKind,
    /// Whether a whole message has arrived.
    has_message: bool,
    prefixes: Prefixes,
    /// Bytes of the incomplete message that `state` counts as buffered.
    counted: usize,
    deadline: Option<Pin<Box<Sleep>>>,
}

/// The number of messages that the client of a call sends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// One, whether the answer is one message or a stream.
    Unary,
    /// Any number.
    Stream,
}

impl Messages {
    /// Receives messages of at most `longest` bytes. With the first of them `call` has arrived whole.
    pub fn new(
        body: Incoming,
        request: RequestKind,
        longest: usize,
        state: Arc<ConnectionState>,
        call: Option<Call>,
    ) -> Messages {
        let prefixes = Prefixes::new(longest);
        let (has_message, counted, deadline) = (false, 0, None);
        Messages { body, state, call, request, has_message, prefixes, counted, deadline }
    }

    /// Counts bytes that arrived.
    fn take(&mut self, bytes: &[u8]) -> Result<(), Status> {
        let ended = self.prefixes.take(bytes).map_err(|refused| {
            self.state.refuse_oversized();
            too_long(refused)
        })?;
        if ended > 0 {
            // tonic reads a unary request to its end, so further messages would keep the call open for ever.
            let is_second = ended > 1 || self.has_message;
            if is_second && self.request == RequestKind::Unary {
                return Err(too_many());
            }
            self.has_message = true;
            self.deadline = None;
            if let Some(call) = &self.call {
                call.note_whole();
            }
        }
        self.count(self.prefixes.unfinished());
        Ok(())
    }

    fn count(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.counted, bytes);
        match bytes.checked_sub(before) {
            Some(more) => self.state.add(more),
            None => self.state.subtract(before - bytes),
        }
    }
}

impl HttpBody for Messages {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                let taken = frame.data_ref().map_or(Ok(()), |bytes| self.take(bytes));
                Poll::Ready(Some(taken.map(|()| frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                Poll::Ready(Some(Err(Status::from_error(Box::new(error)))))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                // The deadline begins only here: most messages arrive with their heads, and cost no timer.
                let deadline =
                    self.deadline.get_or_insert_with(|| Box::pin(sleep(MESSAGE_TIMEOUT)));
                deadline.as_mut().poll(context).map(|()| Some(Err(too_slow())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.count(0);
    }
}

/// Finds the ends of messages. Each message has a prefix of five bytes, whose last four are its length.
#[derive(Debug)]
struct Prefixes {
    longest: usize,
    prefix: [u8; PREFIX],
    /// Bytes of the prefix that have arrived.
    known: usize,
    /// Bytes of the message that have not arrived.
    rest: usize,
    /// Bytes of the whole message.
    length: usize,
}

/// A message that is too long.
#[derive(Debug, PartialEq, Eq)]
struct TooLong {
    length: usize,
    longest: usize,
}

impl Prefixes {
    fn new(longest: usize) -> Prefixes {
        Prefixes { longest, prefix: [0; PREFIX], known: 0, rest: 0, length: 0 }
    }

    /// Takes bytes, and returns how many messages end within them.
    fn take(&mut self, mut bytes: &[u8]) -> Result<usize, TooLong> {
        let mut ended = 0;
        while !bytes.is_empty() {
            if self.known < PREFIX {
                let count = bytes.len().min(PREFIX - self.known);
                let (prefix, after) = bytes.split_at(count);
                self.prefix[self.known..self.known + count].copy_from_slice(prefix);
                self.known += count;
                bytes = after;
                if self.known < PREFIX {
                    break;
                }
                let [_, length @ ..] = self.prefix;
                self.length = u32::from_be_bytes(length) as usize;
                if self.length > self.longest {
                    return Err(TooLong { length: self.length, longest: self.longest });
                }
                self.rest = self.length;
            }
            let count = bytes.len().min(self.rest);
            self.rest -= count;
            bytes = &bytes[count..];
            if self.rest == 0 {
                self.known = 0;
                ended += 1;
            }
        }
        Ok(ended)
    }

    /// Returns the bytes of the incomplete message that have arrived.
    fn unfinished(&self) -> usize {
        match self.known {
            PREFIX => PREFIX + self.length - self.rest,
            known => known,
        }
    }
}

fn too_long(TooLong { length, longest }: TooLong) -> Status {
    Status::resource_exhausted(format!(
        "a message must have at most {longest} bytes, got {length}; send fewer or shorter values"
    ))
}

fn too_many() -> Status {
    Status::invalid_argument(
        "a call has one message, got a second one; send it in a call of its own",
    )
}

fn too_slow() -> Status {
    let seconds = MESSAGE_TIMEOUT.as_secs();
    Status::deadline_exceeded(format!(
        "no whole message within {seconds} s; send it at once, and end the call after the last"
    ))
}

const PREFIX: usize = 5;

/// The longest time from one message to the next, or to the end of the call. A client sends both at once.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(lengths: &[usize]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for length in lengths {
            bytes.push(0);
            bytes.extend(u32::try_from(*length).unwrap().to_be_bytes());
            bytes.resize(bytes.len() + length, b'x');
        }
        bytes
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_by_its_prefix() {
        let mut prefixes = Prefixes::new(1_024);
        assert_eq!(prefixes.take(&[0, 0, 0, 4]), Ok(0));
        assert_eq!(prefixes.unfinished(), 4);
        assert_eq!(prefixes.take(&[1]), Err(TooLong { length: 1_025, longest: 1_024 }));
        assert_eq!(Prefixes::new(1_024).take(&encode(&[1_024, 0])), Ok(2));
    }

    proptest! {
        #[test]
        fn messages_end_at_the_same_bytes_in_any_chunks(
            lengths in prop::collection::vec(0_usize..40, 0..8),
            cut in 1_usize..30,
        ) {
            let bytes = encode(&lengths);
            let mut prefixes = Prefixes::new(40);
            let mut ended = 0;
            let mut taken = 0;
            for part in bytes.chunks(cut) {
                ended += prefixes.take(part).unwrap();
                taken += part.len();
                let whole: usize = lengths[..ended].iter().map(|length| PREFIX + length).sum();
                prop_assert_eq!(prefixes.unfinished(), taken - whole);
            }
            prop_assert_eq!((ended, prefixes.unfinished()), (lengths.len(), 0));
        }
    }
}
