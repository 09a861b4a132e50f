//! What has come from a client and is not answered yet.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::door::Seat;

/// Requests that wait for their answers, and the beginning of one more.
#[derive(Debug)]
pub(super) struct Received {
    bytes: Vec<u8>,
    /// How many there must be before there is anything to answer.
    wanted: usize,
    /// How much is read at once: about as much as the client sends at once.
    chunk: usize,
}

impl Received {
    pub(super) fn new() -> Received {
        Received { bytes: Vec::new(), wanted: 1, chunk: CHUNK_MIN }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether there may be a whole request.
    pub(super) fn is_enough(&self) -> bool {
        self.bytes.len() >= self.wanted
    }

    /// Reads what is there, or waits until there is something; 0 bytes are the end.
    ///
    /// A request that is not whole is kept, and `frame` bounds its length; so this never holds more
    /// than that and one chunk. What is beyond the free part comes out of the listener's budget: where that
    /// is used up, chunks are short, and at last waited for.
    pub(super) async fn read(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        seat: &Seat,
    ) -> io::Result<usize> {
        let length = self.bytes.len();
        if self.bytes.capacity() - length < self.chunk && seat.try_cover(length + self.chunk) {
            self.bytes.reserve_exact(self.chunk);
        }
        if self.bytes.capacity() - length < CHUNK_MIN {
            seat.cover(length + CHUNK_MIN).await;
            self.bytes.reserve_exact(CHUNK_MIN);
        }
        let read = stream.read_buf(&mut self.bytes).await?;
        if self.bytes.len() == self.bytes.capacity() {
            self.chunk = CHUNK_MAX.min(self.chunk * 2);
        }
        Ok(read)
    }

    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// The first `answered` bytes have been answered, and the rest makes sense once there are so
    /// many of it.
    pub(super) fn keep_after(&mut self, answered: usize, wanted: usize) {
        self.bytes.drain(..answered);
        self.wanted = wanted;
    }

    /// For a client that says nothing for a while.
    pub(super) fn give_memory_back(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
            self.chunk = CHUNK_MIN;
        }
    }
}

/// What a client sends at once with nothing said before: a dozen checks.
const CHUNK_MIN: usize = 1024;

/// What one with long pipelines sends at once.
const CHUNK_MAX: usize = 64 * 1024;
