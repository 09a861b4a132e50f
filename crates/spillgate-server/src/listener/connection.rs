//! A client's connection, the same for every protocol, plain or with TLS. Each write has a bound on its time, bytes are
//! read no faster than the listener's budget allows, and the connection ends with its listener.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutWriter;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use super::buffers::FREE;
use super::connection_state::ConnectionState;
use super::{Stage, Tls};

/// The bytes of a client, in and out. A client that takes no byte of its answer for a while is disconnected.
pub(crate) struct Connection {
    stream: Pin<Box<TimeoutWriter<Stream>>>,
    pub(crate) peer: Peer,
    /// The listener's port.
    pub(crate) port: u16,
    stage: watch::Receiver<Stage>,
    state: Arc<ConnectionState>,
    metering: Metering,
    /// The wait for a larger share of the budget, while there is one.
    waiting: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// How reading a connection is held to the listener's budget.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Metering {
    /// The protocol takes its share of the budget by itself.
    None,
    /// One message at a time: all bytes count until it is answered.
    Bytes,
    /// Many messages at once. Each call counts the bytes of its message until it is whole.
    Messages,
}

/// The address of the other end: a client, or a proxy that forwards for one.
#[derive(Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

impl Connection {
    /// Opens a connection, after the TLS handshake if there is TLS; `None` if the handshake fails or takes too long.
    pub async fn open(
        stream: TcpStream,
        peer: Peer,
        tls: Option<Tls>,
        stage: watch::Receiver<Stage>,
        state: Arc<ConnectionState>,
    ) -> Option<Connection> {
        let port = stream.local_addr().map_or(0, |address| address.port());
        let stream = match tls {
            None => Either::Left(stream),
            Some(tls) => {
                let accepted = timeout(HANDSHAKE, tls.accept(stream)).await;
                Either::Right(Box::new(accepted.ok()?.ok()?))
            }
        };
        let mut stream = TimeoutWriter::new(stream);
        stream.set_timeout(Some(WRITE_TIMEOUT));
        Some(Connection {
            stream: Box::pin(stream),
            peer,
            port,
            stage,
            state,
            metering: Metering::None,
            waiting: None,
        })
    }

    pub(crate) fn metered(self, metering: Metering) -> Connection {
        Connection { metering, ..self }
    }

    pub(crate) fn state(&self) -> Arc<ConnectionState> {
        Arc::clone(&self.state)
    }

    /// Returns the listener's stage, which shows when the connection must end.
    pub(crate) fn stage(&self) -> watch::Receiver<Stage> {
        self.stage.clone()
    }
}

impl Connection {
    /// Waits until the connection may buffer `bytes`.
    fn poll_room(&mut self, context: &mut Context<'_>, bytes: usize) -> Poll<()> {
        if bytes <= self.state.buffer_share.allowance() {
            self.waiting = None;
            return Poll::Ready(());
        }
        let state = &self.state;
        let waiting = self.waiting.get_or_insert_with(|| {
            let state = Arc::clone(state);
            Box::pin(async move { state.buffer_share.cover(bytes).await })
        });
        ready!(waiting.as_mut().poll(context));
        self.waiting = None;
        Poll::Ready(())
    }

    fn poll_read_bytes(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let buffered = self.state.buffered();
        ready!(self.poll_room(context, buffered + 1));
        let room = self.state.buffer_share.allowance().saturating_sub(buffered);
        let read = ready!(self.poll_read_at_most(context, buffer, room.min(READ_MAX)))?;
        if read == 0 && self.state.hides_end() {
            self.state.wake_when_less(context.waker());
            return Poll::Pending;
        }
        self.state.add(read);
        Poll::Ready(Ok(()))
    }

    fn poll_read_messages(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.state.read_in_turn() >= READ_MAX {
            // Yield, so that the calls that were read can count their bytes before more is read. Without this pause a
            // fast client could fill the buffers before any call is counted.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        // The waker is registered before the count is read: a call that ends in between wakes the reader.
        self.state.wake_when_less(context.waker());
        let buffered = self.state.buffered();
        if buffered >= MESSAGES_MAX {
            return Poll::Pending;
        }
        ready!(self.poll_room(context, buffered));
        let read = ready!(self.poll_read_at_most(context, buffer, READ_MAX))?;
        let filled = buffer.filled();
        self.state.receive(&filled[filled.len() - read..]);
        Poll::Ready(Ok(()))
    }

    fn poll_read_at_most(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        if buffer.remaining() <= most {
            let before = buffer.filled().len();
            ready!(self.stream.as_mut().poll_read(context, buffer))?;
            return Poll::Ready(Ok(buffer.filled().len() - before));
        }
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
        ready!(self.stream.as_mut().poll_read(context, &mut part))?;
        let read = part.filled().len();
        buffer.advance(read);
        Poll::Ready(Ok(read))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.metering {
            Metering::None => self.stream.as_mut().poll_read(context, buffer),
            Metering::Bytes => self.poll_read_bytes(context, buffer),
            Metering::Messages => self.poll_read_messages(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.stream.as_mut().poll_flush(context))?;
        self.state.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// The longest TLS handshake, which takes two round trips. A slower client would take a connection from others.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// The longest time for which a client may take no byte of its answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The most bytes that are read at once. A connection may buffer them in addition to its message.
const READ_MAX: usize = FREE;

/// The most bytes of incomplete messages on a connection with many messages at once: two of the longest.
const MESSAGES_MAX: usize = 2 * 1024 * 1024;
