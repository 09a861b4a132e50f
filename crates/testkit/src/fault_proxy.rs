//! A TCP proxy that injects network faults into connections while it runs.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A proxy in front of a server on 127.0.0.1. Dropping it breaks every connection through it.
#[derive(Debug)]
pub struct FaultProxy {
    shared: Arc<Shared>,
    port: u16,
    accepting: Option<JoinHandle<()>>,
}

/// The behaviour of the network from now on, for open and new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It works.
    None,
    /// Each piece waits this long, in each direction; bytes that arrive meanwhile are a piece of their own.
    Delay(Duration),
    /// At most this many bytes pass in a second, in each direction of each connection.
    Bandwidth(u32),
    /// A connection breaks after this many more bytes in one direction.
    CutAfter(Direction, u64),
    /// All bytes are lost without an error: connections open, and stay open.
    BlackHole,
    /// All bytes in one direction are lost without an error.
    LoseAll(Direction),
    /// No byte moves and none is lost: all go on with the next fault.
    Freeze,
    /// The next bytes from the server are lost, and their connection breaks; then it works again.
    LoseNextReply,
    /// The receiver sees the end of this direction; the other direction works.
    HalfClose(Direction),
    /// The connection of the next sender is reset.
    Reset,
    /// Bytes on open connections are lost for good, without an error. New connections work, as after a router has
    /// restarted.
    ForgetConnections,
    /// New connections are closed at once; open ones work on.
    Refuse,
}

/// The direction in which bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client.
    ToServer,
    /// From the server.
    ToClient,
}

impl FaultProxy {
    /// Starts a proxy in front of the server on this port of 127.0.0.1, on a port of its own.
    ///
    /// # Panics
    /// When the system gives no port.
    #[track_caller]
    #[must_use]
    pub fn before(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(Shared::default());
        shared.lock().server = server;
        let accepting = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || accept(&shared, &listener))
        };
        Self { shared, port, accepting: Some(accepting) }
    }

    /// Returns the port to connect to instead of the server's.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns `redis://127.0.0.1:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sets the fault. Bytes that wait in a frozen or slow connection go on under the new fault.
    pub fn set(&self, fault: Fault) {
        let mut network = self.shared.lock();
        network.fault = fault;
        network.switched += 1;
        let tunnels = network.tunnels.clone();
        drop(network);
        self.shared.changed.notify_all();
        for tunnel in &tunnels {
            match fault {
                Fault::HalfClose(direction) => tunnel.close_half(direction),
                Fault::ForgetConnections => tunnel.forgotten.store(true, Ordering::SeqCst),
                _ => {}
            }
        }
    }

    /// Connects new connections to the server on another port, as after a DNS change.
    pub fn lead_to(&self, server: u16) {
        self.shared.lock().server = server;
    }

    /// Loses all bytes on the newest connection for good, without an error. The others work on.
    ///
    /// # Panics
    /// Panics if no connection was opened.
    pub fn forget_newest(&self) {
        let network = self.shared.lock();
        network.tunnels.last().expect("a connection").forgotten.store(true, Ordering::SeqCst);
    }

    /// Breaks every open connection.
    pub fn cut(&self) {
        let tunnels = std::mem::take(&mut self.shared.lock().tunnels);
        tunnels.iter().for_each(|tunnel| tunnel.cut());
    }

    /// Returns the number of connections that were accepted so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.changed.notify_all();
        self.cut();
        // Wakes the accepting thread.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    network: Mutex<Network>,
    changed: Condvar,
    connections: AtomicU64,
}

#[derive(Debug)]
struct Network {
    /// The port that new connections lead to.
    server: u16,
    fault: Fault,
    /// How often the fault was set; connections count their bytes anew each time.
    switched: u64,
    stopped: bool,
    tunnels: Vec<Arc<Tunnel>>,
}

impl Default for Network {
    fn default() -> Self {
        Self { server: 0, fault: Fault::None, switched: 0, stopped: false, tunnels: Vec::new() }
    }
}

/// One connection with both of its ends.
#[derive(Debug)]
struct Tunnel {
    client: TcpStream,
    server: TcpStream,
    /// The connection is being reset: it closes without an orderly shutdown.
    reset: AtomicBool,
    /// All bytes that are sent are lost.
    forgotten: AtomicBool,
}

/// The treatment of a piece.
enum Fate {
    Pass { pause: Duration, at_most: usize },
    Lost,
    LostWithItsConnection,
    Cut { after: usize },
    Reset,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Network> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a freeze ends, and returns the treatment of a piece of `size` bytes.
    fn fate(&self, counted: &mut Counted, direction: Direction, size: usize) -> Fate {
        let mut network = self.lock();
        while network.fault == Fault::Freeze && !network.stopped {
            network = self.changed.wait(network).unwrap_or_else(PoisonError::into_inner);
        }
        if counted.switched != network.switched {
            *counted = Counted { switched: network.switched, bytes: 0 };
        }
        let pass = Fate::Pass { pause: Duration::ZERO, at_most: size };
        match network.fault {
            Fault::Delay(pause) => Fate::Pass { pause, at_most: size },
            Fault::Bandwidth(rate) => {
                let at_most = size.min((rate / PIECES_A_SECOND).max(1) as usize);
                let us = at_most as u64 * 1_000_000 / u64::from(rate.max(1));
                Fate::Pass { pause: Duration::from_micros(us), at_most }
            }
            Fault::CutAfter(way, bytes) if way == direction => {
                let left = bytes.saturating_sub(counted.bytes);
                if size as u64 >= left { Fate::Cut { after: left as usize } } else { pass }
            }
            Fault::BlackHole => Fate::Lost,
            Fault::LoseAll(way) if way == direction => Fate::Lost,
            Fault::LoseNextReply if direction == Direction::ToClient => {
                network.fault = Fault::None;
                Fate::LostWithItsConnection
            }
            Fault::Reset => Fate::Reset,
            _ => pass,
        }
    }
}

/// The bytes that a connection has passed in one direction since the fault was set.
#[derive(Debug, Default)]
struct Counted {
    switched: u64,
    bytes: u64,
}

impl Tunnel {
    fn cut(&self) {
        // Shutdown fails if the connection has ended already.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }

    fn close_half(&self, direction: Direction) {
        let _ = self.ends(direction).1.shutdown(Shutdown::Write);
    }

    fn ends(&self, direction: Direction) -> (&TcpStream, &TcpStream) {
        match direction {
            Direction::ToServer => (&self.client, &self.server),
            Direction::ToClient => (&self.server, &self.client),
        }
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    for client in listener.incoming() {
        let Ok(client) = client else { continue };
        let (stopped, fault, server) = {
            let network = shared.lock();
            (network.stopped, network.fault, network.server)
        };
        if stopped {
            return;
        }
        shared.connections.fetch_add(1, Ordering::SeqCst);
        if fault != Fault::Refuse {
            // If the server does not listen, the client's connection is closed, as without the proxy.
            let _ = open_tunnel(shared, client, server);
        }
    }
}

fn open_tunnel(shared: &Arc<Shared>, client: TcpStream, server: u16) -> io::Result<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server));
    let server = TcpStream::connect_timeout(&address, CONNECT)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let tunnel = Arc::new(Tunnel {
        client,
        server,
        reset: AtomicBool::new(false),
        forgotten: AtomicBool::new(false),
    });
    let mut network = shared.lock();
    // Drop connections that have ended: only this list still holds them.
    network.tunnels.retain(|tunnel| Arc::strong_count(tunnel) > 1);
    network.tunnels.push(Arc::clone(&tunnel));
    drop(network);
    for direction in [Direction::ToServer, Direction::ToClient] {
        let (shared, tunnel) = (Arc::clone(shared), Arc::clone(&tunnel));
        thread::spawn(move || {
            if pump(&shared, &tunnel, direction).is_err() {
                tunnel.cut();
            }
        });
    }
    Ok(())
}

/// Passes on the bytes of one direction until an end closes, and then passes on the close.
fn pump(shared: &Shared, tunnel: &Arc<Tunnel>, direction: Direction) -> io::Result<()> {
    let (mut from, mut to) = tunnel.ends(direction);
    let mut buffer = vec![0; PIECE];
    let mut counted = Counted::default();
    loop {
        // Peek before reading: closing a socket with unread bytes sends a reset.
        let seen = from.peek(&mut buffer)?;
        if tunnel.reset.load(Ordering::SeqCst) {
            return Ok(());
        }
        if seen == 0 {
            // Shutdown fails if the connection has ended already.
            let _ = to.shutdown(Shutdown::Write);
            return Ok(());
        }
        if tunnel.forgotten.load(Ordering::SeqCst) {
            from.read_exact(&mut buffer[..seen])?;
            continue;
        }
        let (take, pause) = match shared.fate(&mut counted, direction, seen) {
            Fate::Pass { pause, at_most } => (at_most, pause),
            Fate::Lost => {
                from.read_exact(&mut buffer[..seen])?;
                continue;
            }
            Fate::LostWithItsConnection => return Err(ErrorKind::ConnectionAborted.into()),
            Fate::Cut { after } => {
                to.write_all(&buffer[..after])?;
                return Err(ErrorKind::ConnectionAborted.into());
            }
            Fate::Reset => {
                // Only the other direction still holds the connection; this wakes it.
                tunnel.reset.store(true, Ordering::SeqCst);
                shared.lock().tunnels.retain(|other| !Arc::ptr_eq(other, tunnel));
                let _ = to.shutdown(Shutdown::Both);
                return Ok(());
            }
        };
        thread::sleep(pause);
        from.read_exact(&mut buffer[..take])?;
        counted.bytes += take as u64;
        to.write_all(&buffer[..take])?;
    }
}

/// Larger than a batch of decisions.
const PIECE: usize = 64 * 1024;
/// Enough pieces that a slow connection is slow evenly.
const PIECES_A_SECOND: u32 = 100;
/// On this machine a connection opens within microseconds or not at all.
const CONNECT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::{PATIENCE, poll};
    use crate::{Connection, RedisServer, Reply};

    fn through(server: &RedisServer) -> (FaultProxy, Connection) {
        let proxy = FaultProxy::before(server.port());
        let connection = Connection::open(proxy.port()).unwrap();
        (proxy, connection)
    }

    #[track_caller]
    fn assert_pongs(connection: &mut Connection) {
        assert_eq!(connection.command(&["PING"]).unwrap().text(), "PONG");
    }

    #[test]
    fn without_a_fault_all_bytes_pass() {
        let server = RedisServer::start();
        let (proxy, mut connection) = through(&server);
        let large = "x".repeat(1_000_000);
        assert_eq!(connection.command(&["SET", "key", &large]).unwrap().text(), "OK");
        assert_eq!(connection.command(&["GET", "key"]).unwrap().text(), large);
        assert_eq!(proxy.connections(), 1);
    }

    #[test]
    fn a_connection_is_cut_at_the_given_byte() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for direction in [Direction::ToServer, Direction::ToClient] {
            let proxy = FaultProxy::before(listener.local_addr().unwrap().port());
            let client = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap();
            let (server, _) = listener.accept().unwrap();
            let (mut sender, mut receiver) = match direction {
                Direction::ToServer => (client, server),
                Direction::ToClient => (server, client),
            };
            receiver.set_read_timeout(Some(PATIENCE)).unwrap();
            sender.write_all(b"before").unwrap();
            receiver.read_exact(&mut [0; 6]).unwrap();
            proxy.set(Fault::CutAfter(direction, 3));
            sender.write_all(b"12345").unwrap();
            let mut received = Vec::new();
            receiver.read_to_end(&mut received).unwrap();
            assert_eq!(received, b"123", "{direction:?}");
        }
    }

    #[test]
    fn a_reply_is_lost_after_the_server_has_executed() {
        let server = RedisServer::start();
        let (proxy, mut connection) = through(&server);
        proxy.set(Fault::LoseNextReply);
        assert!(connection.command(&["INCR", "count"]).is_err());
        assert_eq!(server.command(&["GET", "count"]).integer(), 1);
        let mut next = Connection::open(proxy.port()).unwrap();
        assert_eq!(next.command(&["INCR", "count"]).unwrap().integer(), 2);
    }

    #[test]
    fn a_frozen_network_loses_nothing_and_a_black_hole_everything() {
        let server = RedisServer::start();
        let (proxy, mut connection) = through(&server);
        connection.set_patience(Duration::from_millis(50)).unwrap();
        proxy.set(Fault::Freeze);
        assert!(connection.command(&["INCR", "frozen"]).is_err());
        assert_eq!(server.command(&["GET", "frozen"]), Reply::Nil);
        proxy.set(Fault::None);
        let executed = poll(PATIENCE, || {
            (server.command(&["GET", "frozen"]) == Reply::Bulk(b"1".into())).then_some(())
        });
        assert!(executed.is_some());

        proxy.set(Fault::BlackHole);
        let mut lost = Connection::open(proxy.port()).unwrap();
        lost.set_patience(Duration::from_millis(50)).unwrap();
        assert!(lost.command(&["INCR", "lost"]).is_err());
        proxy.set(Fault::None);
        assert!(lost.command(&["INCR", "found"]).is_ok());
        assert_eq!(server.command(&["GET", "lost"]), Reply::Nil);

        proxy.set(Fault::LoseAll(Direction::ToClient));
        assert!(lost.command(&["INCR", "half"]).is_err());
        assert_eq!(server.command(&["GET", "half"]).integer(), 1);
    }

    #[test]
    fn a_slow_network_is_slow() {
        let server = RedisServer::start();
        let (proxy, mut connection) = through(&server);
        connection.set_patience(Duration::from_millis(100)).unwrap();
        proxy.set(Fault::Delay(Duration::from_millis(400)));
        assert!(connection.command(&["PING"]).is_err());
        drop(connection);
        proxy.set(Fault::None);
        server.command(&["SET", "key", &"x".repeat(100_000)]);
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap();
        proxy.set(Fault::Bandwidth(10_000));
        client.write_all(b"GET key\r\n").unwrap();
        thread::sleep(Duration::from_millis(300));
        // Reads all bytes that have arrived by now.
        let in_that_time = client.read(&mut vec![0; 100_000]).unwrap();
        assert!(in_that_time < 10_000, "{in_that_time} bytes");
    }

    #[test]
    fn a_reset_reaches_the_sender_and_a_half_close_the_receiver() {
        let server = RedisServer::start();
        let (proxy, mut connection) = through(&server);
        assert_pongs(&mut connection);
        proxy.set(Fault::Reset);
        let error = connection.command(&["PING"]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);

        proxy.set(Fault::None);
        let mut connection = Connection::open(proxy.port()).unwrap();
        assert_pongs(&mut connection);
        proxy.set(Fault::HalfClose(Direction::ToClient));
        assert_eq!(
            connection.command(&["INCR", "count"]).unwrap_err().kind(),
            ErrorKind::UnexpectedEof
        );
        // The command itself got through.
        let counted = poll(PATIENCE, || {
            (server.command(&["GET", "count"]) == Reply::Bulk(b"1".into())).then_some(())
        });
        assert!(counted.is_some());
    }

    #[test]
    fn forgotten_connections_lose_bytes_and_new_ones_reach_another_server() {
        let (server, other) = (RedisServer::start(), RedisServer::start());
        let (proxy, mut old) = through(&server);
        assert_pongs(&mut old);
        proxy.set(Fault::ForgetConnections);
        old.set_patience(Duration::from_millis(50)).unwrap();
        assert!(old.command(&["INCR", "count"]).is_err());
        assert_pongs(&mut Connection::open(proxy.port()).unwrap());
        assert_eq!(server.command(&["GET", "count"]), Reply::Nil);

        proxy.lead_to(other.port());
        let mut new = Connection::open(proxy.port()).unwrap();
        assert_eq!(new.command(&["INCR", "count"]).unwrap().integer(), 1);
        assert_eq!(other.command(&["GET", "count"]).integer(), 1);
    }

    #[test]
    fn a_dropped_proxy_breaks_its_connections_and_refuses_new_ones() {
        let server = RedisServer::start();
        let (proxy, mut connection) = through(&server);
        assert_pongs(&mut connection);
        proxy.set(Fault::Refuse);
        assert!(Connection::open(proxy.port()).unwrap().command(&["PING"]).is_err());
        assert_pongs(&mut connection);
        proxy.cut();
        assert!(connection.command(&["PING"]).is_err());
        proxy.set(Fault::None);
        let port = proxy.port();
        let mut connection = Connection::open(port).unwrap();
        assert_pongs(&mut connection);
        drop(proxy);
        assert!(connection.command(&["PING"]).is_err());
        // Another process may have taken the port since, so only this server must be out of reach.
        let ask_port = ["CONFIG", "GET", "port"];
        let reached = Connection::open(port).and_then(|mut reached| reached.command(&ask_port));
        assert_ne!(reached.ok(), Some(server.command(&ask_port)));
    }
}
