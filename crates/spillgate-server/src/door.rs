//! Doors: sockets that listen, and their connections, each with a bound on what it may take.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(crate) mod admin;
pub(crate) mod auth;
mod browser;
mod buffers;
mod connection;
mod cores;
pub(crate) mod envoy;
pub(crate) mod http;
mod places;
pub(crate) mod resp;
mod seat;
mod shares;
mod strangers;
mod tls;
mod token;

pub(crate) use browser::Browsers;
pub(crate) use connection::{Connection, Peer};
pub(crate) use cores::Cores;
use places::{Place, Places};
pub(crate) use seat::{Call, Seat};
pub(crate) use shares::Shares;
pub(crate) use strangers::Strangers;
use strangers::{Shown, Tries};
pub(crate) use tls::Tls;
pub(crate) use token::Token;

/// What a door speaks.
pub(crate) trait Protocol: Clone + Send + Sync + 'static {
    /// Serves one connection until its client leaves, or for as long as its stage lets it.
    fn serve(self, connection: Connection) -> impl Future<Output = ()> + Send;
}

/// What a door answers with.
#[derive(Clone)]
pub(crate) struct Capacity {
    pub(crate) cores: Cores,
    /// Connections that it holds at most.
    pub(crate) share: u32,
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
    capacity: Capacity,
    stop: impl Future<Output = ()>,
) {
    let door = Door {
        protocol,
        tls,
        cores: capacity.cores,
        places: Arc::new(Places::new(capacity.share)),
        stage: watch::Sender::new(Stage::Open),
    };
    tokio::select! {
        () = door.accept_all(&listener) => {}
        () = stop => {}
    }
    door.stage.send_replace(Stage::Leaving);
    door.accept_waiting(&listener).await;
    drop(listener);
    door.places.all_free_within(LINGER).await;
    door.stage.send_replace(Stage::Closing);
    door.places.all_free_within(FINISH).await;
}

/// What every connection of a door shares.
struct Door<P> {
    protocol: P,
    tls: Option<Tls>,
    cores: Cores,
    places: Arc<Places>,
    stage: watch::Sender<Stage>,
}

impl<P: Protocol> Door<P> {
    /// When all places are taken, a connection that is not used leaves.
    async fn accept_all(&self, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.admit(stream, peer.ip()).await,
                // Too many open files, or a caller that left: neither is helped by a busy loop.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    /// Takes in those whom the system has let connect already, and nobody after them.
    async fn accept_waiting(&self, listener: &TcpListener) {
        loop {
            tokio::select! {
                biased;
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => self.admit(stream, peer.ip()).await,
                    Err(_) => return,
                },
                () = std::future::ready(()) => return,
            }
        }
    }

    /// Where no place is to be had, the connection is closed, so that its client knows at once.
    async fn admit(&self, stream: TcpStream, peer: IpAddr) {
        if let Some(place) = self.places.take().await {
            self.spawn(stream, peer, place);
        }
    }

    /// In a task of its own: a handler that panics takes down only its connection.
    fn spawn(&self, stream: TcpStream, peer: IpAddr, place: Place) {
        let (protocol, tls, stage) =
            (self.protocol.clone(), self.tls.clone(), self.stage.subscribe());
        let seat = Arc::clone(place.seat());
        let task = self.cores.answer(stream, async move |stream| {
            let seat = Arc::clone(place.seat());
            // Answers are complete: nothing is gained by waiting for more. Fails on a dead socket.
            let _ = stream.set_nodelay(true);
            if let Some(connection) = Connection::open(stream, Peer(peer), tls, stage, seat).await {
                protocol.serve(connection).await;
            }
            drop(place);
        });
        if let Some(task) = task {
            seat.served_by(task);
        }
    }
}

/// Between tries while the system refuses to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// While leaving: a client that keeps its connection busy sends again sooner than this.
pub(crate) const LINGER: Duration = Duration::from_millis(500);

/// Then requests under way have this long; supervisors kill after 30 s, some after 10 s.
const FINISH: Duration = Duration::from_secs(9);
