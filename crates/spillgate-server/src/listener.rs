//! Listeners and their connections, each with a bound on its share of the process's resources.

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
mod connection_limit;
mod connection_state;
mod cores;
pub(crate) mod envoy;
mod failed_logins;
pub(crate) mod http;
mod passed;
pub(crate) mod resp;
mod shares;
mod tls;
mod token;

pub(crate) use browser::Browsers;
pub(crate) use connection::{Connection, Metering, Peer};
use connection_limit::{ConnectionLimit, ConnectionPermit};
pub(crate) use connection_state::{Call, ConnectionState};
pub(crate) use cores::Cores;
pub(crate) use failed_logins::FailedLogins;
pub(crate) use passed::PassedSockets;
pub(crate) use shares::Shares;
pub(crate) use tls::Tls;
use token::Shown;
pub(crate) use token::Token;

/// The protocol of a listener.
pub(crate) trait Protocol: Clone + Send + Sync + 'static {
    /// Serves one connection until its client leaves or its stage ends it.
    fn serve(self, connection: Connection) -> impl Future<Output = ()> + Send;
}

/// The threads of a listener, and its bound on connections.
#[derive(Clone)]
pub(crate) struct Capacity {
    pub(crate) cores: Cores,
    /// The most connections at once.
    pub(crate) share: u32,
}

/// The stages of a listener's end. Each connection watches them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Open,
    /// Each connection ends with its next answer.
    Leaving,
    /// Connections without a request under way end now.
    Closing,
}

/// Opens a socket that listens, or takes the one that was passed for this address. `flag` is the flag for another
/// address, which the error names. `taken` has the addresses of this process's other listeners, with their flags.
pub(crate) async fn listen(
    address: SocketAddr,
    flag: &str,
    taken: &[(SocketAddr, &str)],
    passed: &mut PassedSockets,
) -> Result<TcpListener, String> {
    if let Some(socket) = passed.take(address) {
        return TcpListener::from_std(socket).map_err(|error| format!("{address}: {error}"));
    }
    let passed = passed.in_the_way_of(address);
    let own = taken.iter().find(|(other, _)| overlap(*other, address));
    TcpListener::bind(address).await.map_err(|error| match (error.kind(), passed, own) {
        (io::ErrorKind::AddrInUse, Some(other), _) => format!(
            "cannot listen on {address}: the service manager passed a socket for {other}; write \
             ListenStream={address}, or {flag} {other}"
        ),
        (io::ErrorKind::AddrInUse, None, Some((_, other))) => format!(
            "cannot listen on {address}: {other} and {flag} name the same port; choose another \
             port for one of them, or turn it off with {flag} off"
        ),
        (io::ErrorKind::AddrInUse, None, None) => format!(
            "cannot listen on {address}: another process uses it; end that process, choose a free \
             port with {flag} {}:0, or turn the listener off with {flag} off",
            address.ip()
        ),
        _ => format!("cannot listen on {address}: {error}; choose another address with {flag}"),
    })
}

/// Returns whether two listeners cannot be open at once.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let on_every_address = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && (one.ip() == other.ip() || on_every_address)
}

/// Serves a protocol until `stop`, then answers the requests that have arrived, within a bound.
///
/// No request is dropped without an answer. A busy client learns with an answer that its connection ends. Only
/// connections that are silent for [`LINGER`] are closed without one.
pub(crate) async fn serve<P: Protocol>(
    listener: TcpListener,
    protocol: P,
    tls: Option<Tls>,
    capacity: Capacity,
    stop: impl Future<Output = ()>,
) {
    let listening = Listening {
        protocol,
        tls,
        cores: capacity.cores,
        connections: Arc::new(ConnectionLimit::new(capacity.share)),
        stage: watch::Sender::new(Stage::Open),
    };
    tokio::select! {
        () = listening.accept_all(&listener) => {}
        () = stop => {}
    }
    // While `Leaving`, busy clients end their connections themselves, without an error. Closing at once would reset a
    // connection on which a client is just sending its next request.
    listening.stage.send_replace(Stage::Leaving);
    listening.accept_waiting(&listener).await;
    drop(listener);
    listening.connections.all_closed_within(LINGER).await;
    listening.stage.send_replace(Stage::Closing);
    listening.connections.all_closed_within(FINISH).await;
}

/// The state that all connections of a listener share.
struct Listening<P> {
    protocol: P,
    tls: Option<Tls>,
    cores: Cores,
    connections: Arc<ConnectionLimit>,
    stage: watch::Sender<Stage>,
}

impl<P: Protocol> Listening<P> {
    /// Accepts connections for ever. If the listener has as many as it may, an idle one is closed for a new one.
    async fn accept_all(&self, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.admit(stream, peer.ip()).await,
                // The process has too many open files, or the client left. Trying again at once would only take
                // processor time.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    /// Accepts the connections that the system has completed already, at most [`QUEUE_MAX`]. Without a bound this might
    /// not end: clients that connect anew for each request refill the queue while it is emptied.
    async fn accept_waiting(&self, listener: &TcpListener) {
        for _ in 0..QUEUE_MAX {
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

    /// Serves a connection, or closes it at once if there is no room and every connection has a call under way.
    async fn admit(&self, stream: TcpStream, peer: IpAddr) {
        if let Some(permit) = self.connections.acquire().await {
            self.spawn(stream, peer, permit);
        }
    }

    /// Serves a connection in a task of its own, so that a panic of a handler ends only this connection.
    fn spawn(&self, stream: TcpStream, peer: IpAddr, permit: ConnectionPermit) {
        let (protocol, tls, stage) =
            (self.protocol.clone(), self.tls.clone(), self.stage.subscribe());
        let state = Arc::clone(&permit.state);
        let task = self.cores.serve(stream, async move |stream| {
            let state = Arc::clone(&permit.state);
            // Answers are written whole, so the system need not wait for more bytes. This call fails only on a dead
            // socket, where the next read ends the connection.
            let _ = stream.set_nodelay(true);
            if let Some(connection) = Connection::open(stream, Peer(peer), tls, stage, state).await
            {
                protocol.serve(connection).await;
            }
            drop(permit);
        });
        if let Some(task) = task {
            state.served_by(task);
        }
    }
}

/// The pause between attempts while the system refuses to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The most connections that are accepted once the service stops: more than the system's queue has, for which
/// Tokio asks for 128.
const QUEUE_MAX: u32 = 1_024;

/// The length of the stage `Leaving`. A busy client sends its next request sooner.
pub(crate) const LINGER: Duration = Duration::from_millis(500);

/// The longest wait for requests under way in the stage `Closing`. Supervisors kill a process after 30 s, some after
/// 10 s.
const FINISH: Duration = Duration::from_secs(9);
