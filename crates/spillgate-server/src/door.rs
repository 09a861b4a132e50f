//! Doors: sockets that listen, and their connections, each with a bound on what it may take.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_io_timeout::TimeoutWriter;

pub(crate) mod http;

/// Listens, or says why not and what to do.
pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "cannot listen on {address}: it is in use by another process; \
             end that one, or choose another port with --http {}:0",
            address.ip()
        ),
        _ => format!("cannot listen on {address}: {error}; choose another address with --http"),
    })
}

/// Answers by `routes` until `stop`; then finishes what has come in, within a bound.
///
/// Clients that send without a pause are told with an answer that their connection ends; those
/// that say nothing for a while are cut. So nobody's request is dropped unanswered.
pub(crate) async fn serve(listener: TcpListener, routes: Router, stop: impl Future<Output = ()>) {
    let door = Door {
        routes: TowerToHyperService::new(routes),
        places: Arc::new(Semaphore::new(CONNECTIONS_MAX as usize)),
        stage: watch::Sender::new(Stage::Open),
    };
    tokio::select! {
        () = door.accept_all(&listener) => {}
        () = stop => {}
    }
    door.stage.send_replace(Stage::Leaving);
    door.accept_waiting(&listener).await;
    drop(listener);
    door.all_gone_within(LINGER).await;
    door.stage.send_replace(Stage::Closing);
    door.all_gone_within(FINISH).await;
}

/// What every connection of a door shares.
struct Door {
    routes: TowerToHyperService<Router>,
    places: Arc<Semaphore>,
    stage: watch::Sender<Stage>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// Each connection ends with its next answer.
    Leaving,
    /// Connections without a request under way end now.
    Closing,
}

impl Door {
    /// When all places are taken, callers wait in the system's queue.
    async fn accept_all(&self, listener: &TcpListener) {
        while let Ok(place) = Arc::clone(&self.places).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, _)) => self.spawn(stream, place),
                // Too many open files, or a caller that left: neither is helped by a busy loop.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    /// Takes in those whom the system has let connect already, and nobody after them.
    async fn accept_waiting(&self, listener: &TcpListener) {
        while let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            tokio::select! {
                biased;
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.spawn(stream, place),
                    Err(_) => return,
                },
                () = std::future::ready(()) => return,
            }
        }
    }

    /// In a task of its own: a handler that panics takes down only its connection.
    fn spawn(&self, stream: TcpStream, place: OwnedSemaphorePermit) {
        let connection = serve_connection(stream, self.routes.clone(), self.stage.subscribe());
        tokio::spawn(async move {
            connection.await;
            drop(place);
        });
    }

    async fn all_gone_within(&self, bound: Duration) {
        let all_places = self.places.acquire_many(CONNECTIONS_MAX);
        // Running out of time is no failure: the next stage, or the end, is harsher.
        let _ = tokio::time::timeout(bound, all_places).await;
    }
}

async fn serve_connection(
    stream: TcpStream,
    routes: TowerToHyperService<Router>,
    stage: watch::Receiver<Stage>,
) {
    // Answers are complete: nothing is gained by waiting for more. Fails only on a dead socket.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(WRITE_TIMEOUT));

    let mut closing = stage.clone();
    let service = service_fn(move |request| {
        let answer = routes.call(request);
        let stage = stage.clone();
        async move {
            let mut answer = answer.await?;
            if *stage.borrow() != Stage::Open {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(BUFFER_MAX)
            .serve_connection(TokioIo::new(Box::pin(stream)), service)
    );
    // What ends a connection early (a client that left, a time-out) concerns nobody else.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = closing.wait_for(|stage| *stage == Stage::Closing) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

/// Twenty times what a busy sidecar fleet holds open to one node; at up to 100 KiB each, 1 GiB.
const CONNECTIONS_MAX: u32 = 10_000;

/// From the end of an answer to the next request's last header: long enough for the idle time of
/// common client pools, short enough that silent connections give their places back.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// A client that takes no byte of its answer for so long has gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The most that one connection buffers of what came in: heads, and bodies piece by piece.
const BUFFER_MAX: usize = 64 * 1024;

/// Between tries while the system refuses to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// While leaving: a client that keeps its connection busy sends again sooner than this.
const LINGER: Duration = Duration::from_millis(500);

/// Then requests under way have this long; supervisors kill after 30 s, some after 10 s.
const FINISH: Duration = Duration::from_secs(9);
