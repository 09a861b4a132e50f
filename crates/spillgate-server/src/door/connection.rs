//! One connection as every protocol gets it: plain or TLS, with bounded writes, and told when to end.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutWriter;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use super::{Stage, Tls};

/// A client's bytes, in and out. One that takes no byte of its answer for a while is cut.
pub(crate) struct Connection {
    stream: Pin<Box<TimeoutWriter<Stream>>>,
    peer: Peer,
    stage: watch::Receiver<Stage>,
}

/// Who is at the other end: a client, or a proxy that speaks for one.
#[derive(Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

impl Connection {
    /// The connection, once its client has greeted as it must; none if it did not in time.
    pub(super) async fn open(
        stream: TcpStream,
        peer: Peer,
        tls: Option<Tls>,
        stage: watch::Receiver<Stage>,
    ) -> Option<Connection> {
        let stream = match tls {
            None => Either::Left(stream),
            Some(tls) => {
                let greeted = timeout(HANDSHAKE, tls.accept(stream)).await;
                Either::Right(Box::new(greeted.ok()?.ok()?))
            }
        };
        let mut stream = TimeoutWriter::new(stream);
        stream.set_timeout(Some(WRITE_TIMEOUT));
        Some(Connection { stream: Box::pin(stream), peer, stage })
    }

    pub(crate) fn peer(&self) -> Peer {
        self.peer
    }

    /// When to end.
    pub(crate) fn stage(&self) -> watch::Receiver<Stage> {
        self.stage.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_read(context, buffer)
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
        self.stream.as_mut().poll_flush(context)
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

/// A handshake is two round trips; a client that takes longer holds a place for nothing.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// A client that takes no byte of its answer for so long has gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
