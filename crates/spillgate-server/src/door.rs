//! Doors: sockets that listen, and their connections, each with a bound on what it may take.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

pub(crate) mod admin;
pub(crate) mod auth;
mod connection;
mod cores;
pub(crate) mod envoy;
pub(crate) mod http;
pub(crate) mod resp;
mod tls;
mod token;

pub(crate) use connection::{Connection, Peer};
pub(crate) use cores::Cores;
pub(crate) use tls::Tls;
pub(crate) use token::Token;

/// What a door speaks.
pub(crate) trait Protocol: Clone + Send + Sync + 'static {
    /// Serves one connection until its client leaves, or for as long as its stage lets it.
    fn serve(self, connection: Connection) -> impl Future<Output = ()> + Send;
}

/// How far the way out has come, as each connection sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Open,
    /// Each connection ends with its next answer.
    Leaving,
    /// Connections without a request under way end now.
    Closing,
}

/// Listens, or says why not and what to do; `flag` is where another address is said.
pub(crate) async fn listen(address: SocketAddr, flag: &str) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "cannot listen on {address}: it is in use by another process; \
             end that one, or choose another port with {flag} {}:0, or none with {flag} off",
            address.ip()
        ),
        _ => format!("cannot listen on {address}: {error}; choose another address with {flag}"),
    })
}

/// Answers in a protocol until `stop`; then finishes what has come in, within a bound.
///
/// Clients that send without a pause are told with an answer that their connection ends; those
/// that say nothing for a while are cut. So nobody's request is dropped unanswered.
pub(crate) async fn serve<P: Protocol>(
    listener: TcpListener,
    protocol: P,
    tls: Option<Tls>,
    cores: Cores,
    stop: impl Future<Output = ()>,
) {
    let door = Door {
        protocol,
        tls,
        cores,
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
struct Door<P> {
    protocol: P,
    tls: Option<Tls>,
    cores: Cores,
    places: Arc<Semaphore>,
    stage: watch::Sender<Stage>,
}

impl<P: Protocol> Door<P> {
    /// When all places are taken, callers wait in the system's queue.
    async fn accept_all(&self, listener: &TcpListener) {
        while let Ok(place) = Arc::clone(&self.places).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, peer)) => self.spawn(stream, peer.ip(), place),
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
                    Ok((stream, peer)) => self.spawn(stream, peer.ip(), place),
                    Err(_) => return,
                },
                () = std::future::ready(()) => return,
            }
        }
    }

    /// In a task of its own: a handler that panics takes down only its connection.
    fn spawn(&self, stream: TcpStream, peer: IpAddr, place: OwnedSemaphorePermit) {
        let (protocol, tls, stage) =
            (self.protocol.clone(), self.tls.clone(), self.stage.subscribe());
        self.cores.answer(stream, async move |stream| {
            // Answers are complete: nothing is gained by waiting for more. Fails on a dead socket.
            let _ = stream.set_nodelay(true);
            if let Some(connection) = Connection::open(stream, Peer(peer), tls, stage).await {
                protocol.serve(connection).await;
            }
            drop(place);
        });
    }

    async fn all_gone_within(&self, bound: Duration) {
        let all_places = self.places.acquire_many(CONNECTIONS_MAX);
        // Running out of time is no failure: the next stage, or the end, is harsher.
        let _ = tokio::time::timeout(bound, all_places).await;
    }
}

/// More than a busy fleet of sidecars holds open to one node. Callers beyond wait in the system's
/// queue; at some 20 KiB each while they say nothing, 400 MiB.
const CONNECTIONS_MAX: u32 = 20_000;

/// Between tries while the system refuses to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// While leaving: a client that keeps its connection busy sends again sooner than this.
pub(crate) const LINGER: Duration = Duration::from_millis(500);

/// Then requests under way have this long; supervisors kill after 30 s, some after 10 s.
const FINISH: Duration = Duration::from_secs(9);
