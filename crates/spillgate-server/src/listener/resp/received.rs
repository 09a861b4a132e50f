//! The bytes of a client that are received and not answered.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::listener::ConnectionState;

/// Requests that wait for their answers, and the beginning of one more.
#[derive(Debug)]
pub struct Received {
    bytes: Vec<u8>,
    /// The number of bytes below which no request is whole.
    wanted: usize,
    /// The number of bytes to read at once: about as many as the client sends at once.
    chunk: usize,
}

impl Received {
    pub fn new() -> Received {
        Received { bytes: Vec::new(), wanted: 1, chunk: CHUNK_MIN }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns whether there may be a whole request.
    pub fn is_enough(&self) -> bool {
        self.bytes.len() >= self.wanted
    }

    /// Reads bytes, and waits until there are some. Returns their number; 0 is the end.
    ///
    /// An incomplete request is kept, and `frame` bounds its length, so this never holds more than that and one chunk.
    /// Bytes beyond the free part come from the listener's budget. If that is used up, chunks are short, and a client
    /// with nothing free left waits.
    pub async fn read(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        state: &ConnectionState,
    ) -> io::Result<usize> {
        let length = self.bytes.len();
        if self.bytes.capacity() - length < self.chunk
            && state.buffer_share.try_cover(length + self.chunk)
        {
            self.bytes.reserve_exact(self.chunk);
        }
        if self.bytes.capacity() - length < CHUNK_MIN {
            state.buffer_share.cover(length + CHUNK_MIN).await;
            self.bytes.reserve_exact(CHUNK_MIN);
        }
        let read = stream.read_buf(&mut self.bytes).await?;
        if self.bytes.len() == self.bytes.capacity() {
            self.chunk = CHUNK_MAX.min(self.chunk * 2);
        }
        Ok(read)
    }

    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Drops the first `answered` bytes, and notes that the rest is no whole request until it has `wanted` bytes.
    pub fn keep_after(&mut self, answered: usize, wanted: usize) {
        self.bytes.drain(..answered);
        self.wanted = wanted;
    }

    /// Frees the memory of a client that is silent for a while.
    pub fn free_memory(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
            self.chunk = CHUNK_MIN;
        }
    }
}

/// The bytes to read at once from a new client: a dozen checks.
const CHUNK_MIN: usize = 1024;

/// The bytes to read at once from a client with long pipelines.
const CHUNK_MAX: usize = 64 * 1024;
