//! Serves RESP on one connection. All commands that arrive at once are answered by one write. Nothing is read while the
//! client does not take its answers, so the memory of a connection has a bound.

use std::future::ready;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::vec;

use spillgate::{Decision, Request};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tracing::Instrument;

use super::batch::{Batch, End, Entry};
use super::received::Received;
use super::reply::Replies;
use super::session::{NOT_AUTHENTICATED, Next, Session};
use crate::app::App;
use crate::bounds::BATCH_MAX;
use crate::listener::http::room;
use crate::listener::{Call, Connection, ConnectionState, FailedLogins, Protocol, Stage, Token};

/// The protocol of Redis, for clients with the password if one is set.
#[derive(Clone)]
pub(crate) struct Resp {
    app: App,
    password: Option<Token>,
    failed_logins: FailedLogins,
    connections: Arc<AtomicU64>,
}

impl Resp {
    pub(crate) fn new(app: App, password: Option<Token>, failed_logins: FailedLogins) -> Resp {
        Resp { app, password, failed_logins, connections: Arc::default() }
    }

    fn handler<S>(self, stream: S, state: Arc<ConnectionState>, peer: IpAddr) -> Handler<S> {
        let id = 1 + self.connections.fetch_add(1, Ordering::Relaxed);
        Handler {
            app: self.app,
            stream,
            state,
            session: Session::new(id, self.password),
            failed_logins: self.failed_logins,
            peer,
            received: Received::new(),
            replies: Replies::default(),
            idle: Idle::new(),
        }
    }
}

impl Protocol for Resp {
    async fn serve(self, connection: Connection) {
        let (stage, state) = (connection.stage(), connection.state());
        let peer = connection.peer.0;
        // An error ends this connection only (the client left, or does not take its answers), so it is ignored.
        let _ = self.handler(connection, state, peer).run(stage).await;
    }
}

/// Answers the commands of one connection.
struct Handler<S> {
    app: App,
    stream: S,
    state: Arc<ConnectionState>,
    session: Session,
    failed_logins: FailedLogins,
    peer: IpAddr,
    received: Received,
    replies: Replies,
    idle: Idle,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Handler<S> {
    /// Serves the connection until the client leaves or is silent for too long, or the listener closes.
    async fn run(mut self, stage: watch::Receiver<Stage>) -> io::Result<()> {
        let mut until_closing = stage.clone();
        // The result only shows whether the sender is gone, and the sender lives as long as the listener.
        let mut closing =
            pin!(async { drop(until_closing.wait_for(|stage| *stage == Stage::Closing).await) });
        let mut leaving = false;
        loop {
            let between_requests = self.received.is_empty();
            tokio::select! {
                biased;
                read = self.received.read(&mut self.stream, &self.state) => if read? == 0 { return Ok(()) },
                () = self.idle.tick() => {
                    if self.idle.is_over(between_requests) {
                        return Ok(());
                    }
                    self.free_memory();
                    continue;
                }
                () = &mut closing, if between_requests => return Ok(()),
                () = ready(()), if leaving && between_requests => return self.close().await,
            }
            if between_requests {
                self.idle.restart();
            }
            if !self.received.is_enough() {
                continue;
            }
            let next = self.answer().await?;
            leaving = *stage.borrow() != Stage::Open;
            if next == Next::Leave || *stage.borrow() == Stage::Closing {
                return self.close().await;
            }
        }
    }

    /// Answers every command that has arrived whole.
    async fn answer(&mut self) -> io::Result<Next> {
        let call = Call::on(&self.state);
        let mut answered = 0;
        let mut wanted = 1;
        let mut next = Next::Stay;
        let received = self.received.bytes().len();
        // A batch takes memory for each of its checks. If the listener's budget has no room for the largest batch that
        // these bytes can hold, they are answered in small batches.
        let answering = BATCH_MAX.min(received / SHORTEST) * ANSWERING;
        let covered = self.state.buffer_share.try_cover(self.received.capacity() + answering);
        let (most, replies_max) =
            if covered { (BATCH_MAX, REPLIES_MAX) } else { (BATCH_FREE, REPLIES_FREE) };
        while next == Next::Stay {
            let access = self.session.access();
            let refusal = |request: &Request<'_>| {
                let unknown = self.app.require_names(request).err();
                unknown.map(|unknown| format!("ERR {}: {unknown}", unknown.field))
            };
            let batch = Batch::decode(&self.received.bytes()[answered..], access, most, refusal);
            if !batch.entries.is_empty() {
                call.note_whole();
            }
            let mut rest = batch.requests.as_slice();
            let mut decisions = Vec::new().into_iter();
            for entry in &batch.entries {
                if matches!(entry, Entry::Answer(_)) && decisions.len() == 0 {
                    let part = room::of_one_part(&self.app.limiter().policy(), rest);
                    let is_large = part < batch.requests.len();
                    let (part, after) = rest.split_at(part);
                    let span = self.app.traces.of_batch();
                    let decided = self.app.check_part(part, is_large).instrument(span);
                    (decisions, rest) = (decided.await.into_iter(), after);
                }
                let Handler { app, session, replies, .. } = self;
                if reply(entry, &mut decisions, app, session, replies).await == Next::Leave {
                    next = Next::Leave;
                }
                if self.session.take_failure() {
                    self.failed_logins.report(self.peer);
                }
                if self.replies.bytes().len() >= replies_max {
                    send(&mut self.stream, &mut self.replies).await?;
                }
            }
            answered += batch.length;
            match batch.end {
                End::Cut => {}
                End::Partial { wanted: more } => {
                    wanted = more;
                    break;
                }
                End::Malformed(why) => {
                    self.replies.error(&format!("ERR Protocol error: {why}"));
                    next = Next::Leave;
                }
            }
        }
        send(&mut self.stream, &mut self.replies).await?;
        self.received.keep_after(answered, wanted);
        if answered > 0 {
            self.idle.restart();
        }
        if self.state.buffer_share.is_contended() {
            self.free_memory();
        }
        self.state.buffer_share.shrink_to(self.received.capacity());
        Ok(next)
    }

    fn free_memory(&mut self) {
        self.received.free_memory();
        self.replies.free_memory();
        self.state.buffer_share.shrink_to(self.received.capacity());
    }

    /// Closes the connection after the last answer. Bytes that the client sends meanwhile are read and dropped: closing
    /// a socket with unread bytes resets the connection, and the client would lose answers that are on their way.
    async fn close(mut self) -> io::Result<()> {
        self.stream.shutdown().await?;
        let mut dropped = [0; 1024];
        let until_gone = async {
            while self.stream.read(&mut dropped).await? > 0 {}
            Ok(())
        };
        timeout(CLOSING, until_gone).await.unwrap_or(Ok(()))
    }
}

/// Writes the reply to one command. A check takes the next of the decisions.
async fn reply(
    entry: &Entry<'_>,
    decisions: &mut vec::IntoIter<Decision>,
    app: &App,
    session: &mut Session,
    replies: &mut Replies,
) -> Next {
    match entry {
        Entry::Answer(answer) => {
            let decision = decisions.next().expect("each check has a decision");
            answer.write(&decision, replies);
        }
        Entry::Control(control) => return session.run(control, replies),
        Entry::Reservation(reservation) => reservation.run(app, replies).await,
        Entry::Barred => replies.error(NOT_AUTHENTICATED),
    }
    Next::Stay
}

/// Sends the replies within [`SENDING`], so that a client that takes them byte by byte is disconnected, as one that
/// takes none is.
async fn send<S: AsyncWrite + Unpin>(stream: &mut S, replies: &mut Replies) -> io::Result<()> {
    let sent = async {
        stream.write_all(replies.bytes()).await?;
        stream.flush().await
    };
    timeout(SENDING, sent).await??;
    replies.clear();
    Ok(())
}

/// The time for which a client is silent, counted in ticks so that no command costs a timer.
struct Idle {
    ticks: Interval,
    passed: u32,
}

impl Idle {
    fn new() -> Idle {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Idle { ticks, passed: 0 }
    }

    async fn tick(&mut self) {
        self.ticks.tick().await;
        self.passed += 1;
    }

    fn restart(&mut self) {
        self.passed = 0;
    }

    fn is_over(&self, between_requests: bool) -> bool {
        self.passed > if between_requests { IDLE_TICKS } else { REQUEST_TICKS }
    }
}

/// The bytes of replies that are gathered before they are sent: those of a batch of checks.
const REPLIES_MAX: usize = 64 * 1024;

/// The bytes of replies that are gathered while the listener's budget is used up.
const REPLIES_FREE: usize = 4 * 1024;

/// The most commands of a batch while the listener's budget is used up.
const BATCH_FREE: usize = 16;

/// The estimated memory to answer one command: request, decision and reply.
const ANSWERING: usize = 640;

/// The bytes of the shortest check, `SG.CHECK d 1`.
const SHORTEST: usize = 32;

/// The longest time in which a client must take the replies of one write.
const SENDING: Duration = Duration::from_secs(60);

/// The time between two looks at a connection.
const TICK: Duration = Duration::from_secs(5);

/// The ticks after which a silent connection is closed: ten minutes. Pools of common clients keep connections for that
/// time, and a command on a closed one fails.
const IDLE_TICKS: u32 = 120;

/// The ticks for the rest of a command that has begun, which clients send at once: ten seconds and a tick.
const REQUEST_TICKS: u32 = 2;

/// The longest time for a client to take its last answers.
const CLOSING: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::Ipv4Addr;

    use spillgate::{Policy, Source};
    use tokio::io::{DuplexStream, duplex};

    use super::*;
    use crate::config::Store;

    /// Returns the client's end of a connection, and a future that serves it.
    async fn client() -> (DuplexStream, impl Future<Output = io::Result<()>>) {
        client_of(App::open(&Store::default(), Policy::default()).await.unwrap())
    }

    fn client_of(app: App) -> (DuplexStream, impl Future<Output = io::Result<()>>) {
        let (client, server) = duplex(64 * 1024);
        let (stage, stages) = watch::channel(Stage::Open);
        let held = async move {
            let resp = Resp::new(app, None, FailedLogins::at("RESP"));
            let (state, peer) = (ConnectionState::alone(), Ipv4Addr::LOCALHOST.into());
            let held = resp.handler(server, state, peer).run(stages).await;
            drop(stage);
            held
        };
        (client, held)
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_kept_for_ten_minutes_and_no_longer() {
        let (client, held) = client().await;
        let mut held = pin!(held);
        assert!(timeout(Duration::from_secs(595), &mut held).await.is_err());
        assert!(timeout(Duration::from_secs(20), &mut held).await.is_ok());
        drop(client);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_a_command_within_ten_minutes_is_kept() {
        let (mut client, held) = client().await;
        let held = tokio::spawn(held);
        for _ in 0..5 {
            client.write_all(b"*1\r\n$4\r\nPING\r\n").await.unwrap();
            let mut reply = [0; 7];
            client.read_exact(&mut reply).await.unwrap();
            tokio::time::sleep(Duration::from_secs(590)).await;
        }
        assert!(!held.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_request_is_waited_for_ten_seconds_and_a_tick() {
        let (mut client, held) = client().await;
        let mut held = pin!(held);
        client.write_all(b"*1\r\n$4\r\nPI").await.unwrap();
        assert!(timeout(Duration::from_secs(9), &mut held).await.is_err());
        client.write_all(b"N").await.unwrap();
        assert!(timeout(Duration::from_secs(11), &mut held).await.is_ok());
    }

    #[tokio::test]
    async fn a_pipeline_over_many_limits_lets_others_decide_between_its_parts() {
        let limits: Vec<String> = (1..=64).map(|n| format!("'{n}/{n}d'")).collect();
        let limits = limits.join(",");
        let wide = |n| format!("[[rule]]\nname = 'w{n}'\nkey = ['user']\nlimits = [{limits}]\n");
        let policy = Policy::from_toml(&(0..8).map(wide).collect::<String>()).unwrap();
        let app = App::open(&Store::default(), policy).await.unwrap();
        let (mut client, held) = client_of(app.clone());
        let check =
            b"*5\r\n$8\r\nSG.CHECK\r\n$7\r\ndefault\r\n$1\r\n1\r\n$4\r\nuser\r\n$1\r\nu\r\n";
        client.write_all(&check.repeat(20)).await.unwrap();
        let is_answered = Cell::new(false);
        let reader = async {
            client.read_exact(&mut [0]).await.unwrap();
            is_answered.set(true);
            drop(client);
        };
        let other = async {
            // Eight checks fill a part, so there are three.
            for _ in 0..3 {
                let other = app.check(&Request::new().with("user", "other")).await;
                assert_eq!(other.source(), Source::Store);
                assert!(!is_answered.get());
                tokio::task::yield_now().await;
            }
        };
        // One thread runs all, the pipeline first.
        let _ = tokio::join!(held, reader, other);
        assert!(is_answered.get());
    }
}
