//! Slows down clients that send wrong credentials. Each is answered late, and disconnected after a few tries. The
//! more of them wait at a listener, the later each is answered. The log has at most one line a second about them. A
//! client with the right token is never delayed.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::{Seat, Stage};

/// The failures at one listener. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Strangers(Arc<Listener>);

#[derive(Debug)]
struct Listener {
    /// Its name in the log.
    name: &'static str,
    /// Connections with a delayed answer now.
    waiting: AtomicU32,
    /// Failures since the last line of the log.
    unreported: AtomicU64,
    /// Whether the log has a line of this second, so that further failures wait for the next.
    is_quiet: AtomicBool,
}

/// The failed tries of one connection. Clones share them.
#[derive(Clone)]
pub(crate) struct Tries(Arc<Connection>);

struct Connection {
    strangers: Strangers,
    peer: IpAddr,
    stage: watch::Receiver<Stage>,
    /// The seat of a protocol with one call at a time. It may be cut while the answer to a failure is delayed.
    seat: Option<Arc<Seat>>,
    failed: AtomicU32,
    over: Notify,
}

/// The credentials that a client sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Right,
    /// No credentials: the client may not know that it needs some.
    Nothing,
    Wrong,
}

impl Strangers {
    pub(crate) fn at(name: &'static str) -> Strangers {
        let (waiting, unreported, is_quiet) = Default::default();
        Strangers(Arc::new(Listener { name, waiting, unreported, is_quiet }))
    }

    /// Returns the tries of a new connection. `seat` is for protocols with one call at a time: while the answer to a
    /// failure is delayed, the call does not keep the connection from being closed for another.
    pub(super) fn tries(
        &self,
        peer: IpAddr,
        stage: watch::Receiver<Stage>,
        seat: Option<Arc<Seat>>,
    ) -> Tries {
        let (failed, over) = (AtomicU32::new(0), Notify::new());
        Tries(Arc::new(Connection { strangers: self.clone(), peer, stage, seat, failed, over }))
    }

    /// Logs a failure: the first of a second at once, the others together at the end of that second.
    fn report(&self, peer: IpAddr) {
        let listener = &self.0;
        listener.unreported.fetch_add(1, Ordering::Relaxed);
        if listener.is_quiet.swap(true, Ordering::AcqRel) {
            return;
        }
        self.write(peer);
        let strangers = self.clone();
        tokio::spawn(async move {
            sleep(REPORT_EVERY).await;
            strangers.0.is_quiet.store(false, Ordering::Release);
            strangers.write(peer);
        });
    }

    fn write(&self, peer: IpAddr) {
        let failures = self.0.unreported.swap(0, Ordering::Relaxed);
        if failures > 0 {
            tracing::warn!(target: "spillgate", listener = self.0.name, failures, %peer, "wrong credentials");
        }
    }
}

impl Tries {
    /// Compares the credentials of a client. After too many failures everything is wrong, so that a client cannot avoid
    /// the delay by sending many tries at once on one connection.
    pub(super) fn judge(&self, shown: impl FnOnce() -> Shown) -> Shown {
        if self.are_over() { Shown::Wrong } else { shown() }
    }

    /// Counts and logs a failure, then waits until it may be answered. The wait grows with each failure of this
    /// connection and with each other connection that waits. It ends when the service stops.
    pub(super) async fn fail(&self) {
        let connection = &self.0;
        let failed = connection.failed.fetch_add(1, Ordering::Relaxed);
        connection.strangers.report(connection.peer);
        let waiting = Waiting::among(&connection.strangers, connection.seat.as_deref());
        let own = DELAY * (1 << failed.min(TRIES_MAX));
        let delay = own.max(DELAY_OF_EACH * waiting.others).min(DELAY_MAX);
        let mut stage = connection.stage.clone();
        tokio::select! {
            () = sleep(delay) => {}
            _ = stage.wait_for(|stage| *stage != Stage::Open) => {}
        }
        drop(waiting);
        if self.are_over() {
            connection.over.notify_one();
        }
    }

    /// Returns whether the connection has failed too often. It then ends with its next answer.
    pub(super) fn are_over(&self) -> bool {
        self.0.failed.load(Ordering::Relaxed) >= TRIES_MAX
    }

    /// Waits until the last failure may be answered.
    pub(super) async fn over(&self) {
        self.0.over.notified().await;
    }
}

/// One of the connections with a delayed answer, counted while this lives.
struct Waiting<'s> {
    listener: &'s Listener,
    seat: Option<&'s Seat>,
    others: u32,
}

impl<'s> Waiting<'s> {
    fn among(strangers: &'s Strangers, seat: Option<&'s Seat>) -> Waiting<'s> {
        let listener = &*strangers.0;
        if let Some(seat) = seat {
            seat.note_stranger();
        }
        Waiting { listener, seat, others: listener.waiting.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.listener.waiting.fetch_sub(1, Ordering::Relaxed);
        if let Some(seat) = self.seat {
            seat.forget_stranger();
        }
    }
}

/// The failures after which a connection is closed: enough for a person at a keyboard.
const TRIES_MAX: u32 = 4;

/// The delay of the answer to the first failure of a connection. It doubles with each that follows.
const DELAY: Duration = Duration::from_millis(250);

/// The delay for each other connection that waits, which bounds a listener to a thousand tries a second over all
/// connections.
const DELAY_OF_EACH: Duration = Duration::from_millis(1);

/// The longest delay: reached when all connections that a listener may hold wait.
const DELAY_MAX: Duration = Duration::from_secs(20);

/// The time between two lines of the log about one listener.
const REPORT_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::time::Instant;

    use super::*;

    fn tries(strangers: &Strangers) -> (watch::Sender<Stage>, Tries) {
        let (stage, stages) = watch::channel(Stage::Open);
        (stage, strangers.tries(Ipv4Addr::LOCALHOST.into(), stages, None))
    }

    #[tokio::test(start_paused = true)]
    async fn each_failure_of_a_connection_is_answered_later_until_all_tries_fail() {
        let (_stage, tries) = tries(&Strangers::at("HTTP"));
        for expected_ms in [250, 500, 1_000, 2_000] {
            assert_eq!(tries.judge(|| Shown::Right), Shown::Right);
            let began = Instant::now();
            tries.fail().await;
            assert_eq!(began.elapsed().as_millis(), expected_ms);
        }
        assert!(tries.are_over());
        assert_eq!(tries.judge(|| Shown::Right), Shown::Wrong);
    }

    #[tokio::test(start_paused = true)]
    async fn a_listener_answers_a_thousand_failures_a_second_over_many_connections() {
        let strangers = Strangers::at("HTTP");
        let began = Instant::now();
        let attackers: Vec<_> = (0..5_000)
            .map(|_| {
                let strangers = strangers.clone();
                tokio::spawn(async move { tries(&strangers).1.fail().await })
            })
            .collect();
        for attacker in attackers {
            attacker.await.unwrap();
        }
        assert!(began.elapsed() >= Duration::from_millis(4_999), "{:?}", began.elapsed());
        assert_eq!(strangers.0.waiting.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_answered_at_once_when_the_service_stops() {
        let (stage, tries) = tries(&Strangers::at("HTTP"));
        stage.send_replace(Stage::Leaving);
        let began = Instant::now();
        tries.fail().await;
        assert!(began.elapsed().is_zero());
    }
}
