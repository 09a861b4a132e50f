//! Slows down clients that send wrong credentials.
//!
//! A failure is answered late, and a connection is closed after a few. The more connections wait at a listener, the
//! later each is answered. The log has at most one line a second about them. A client with the right token is never
//! delayed.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::{ConnectionState, Stage};

/// The failed logins at one listener. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct FailedLogins(Arc<Failures>);

#[derive(Debug)]
struct Failures {
    /// The listener's name in the log.
    listener: &'static str,
    /// Connections with a delayed answer now.
    waiting: AtomicU32,
    /// Failures since the last line of the log.
    unreported: AtomicU64,
    /// Whether the log has a line of this second. Further failures then wait for the next.
    is_quiet: AtomicBool,
}

/// The failed tries of one connection. Clones share them.
#[derive(Clone)]
pub(crate) struct Tries(Arc<PeerTries>);

struct PeerTries {
    failed_logins: FailedLogins,
    peer: IpAddr,
    stage: watch::Receiver<Stage>,
    /// Only for a protocol with one call at a time: the connection may be cut while the answer to a failure is delayed.
    state: Option<Arc<ConnectionState>>,
    /// The credentials that were compared and were wrong. Some of their calls may not have failed yet.
    wrong: AtomicU32,
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

impl FailedLogins {
    pub(crate) fn at(listener: &'static str) -> FailedLogins {
        let (waiting, unreported, is_quiet) = Default::default();
        FailedLogins(Arc::new(Failures { listener, waiting, unreported, is_quiet }))
    }

    /// Returns the tries of a new connection. With `state` the connection may be closed for another while the answer to
    /// a failure is delayed. Only protocols with one call at a time give it.
    pub(super) fn tries(
        &self,
        peer: IpAddr,
        stage: watch::Receiver<Stage>,
        state: Option<Arc<ConnectionState>>,
    ) -> Tries {
        let failed_logins = self.clone();
        let (wrong, failed, over) = (AtomicU32::new(0), AtomicU32::new(0), Notify::new());
        Tries(Arc::new(PeerTries { failed_logins, peer, stage, state, wrong, failed, over }))
    }

    /// Logs a failure: the first of a second at once, the others together at the end of that second.
    fn report(&self, peer: IpAddr) {
        let failures = &self.0;
        failures.unreported.fetch_add(1, Ordering::Relaxed);
        if failures.is_quiet.swap(true, Ordering::AcqRel) {
            return;
        }
        self.write(peer);
        let failed_logins = self.clone();
        tokio::spawn(async move {
            sleep(REPORT_EVERY).await;
            failed_logins.0.is_quiet.store(false, Ordering::Release);
            failed_logins.write(peer);
        });
    }

    fn write(&self, peer: IpAddr) {
        let failures = self.0.unreported.swap(0, Ordering::Relaxed);
        if failures > 0 {
            tracing::warn!(target: "spillgate", listener = self.0.listener, failures, %peer, "wrong credentials");
        }
    }
}

impl Tries {
    /// Compares the credentials of a client. After too many failures all credentials count as wrong. Otherwise a client
    /// could avoid the delay by sending many tries at once on one connection.
    pub(super) fn judge(&self, shown: impl FnOnce() -> Shown) -> Shown {
        let wrong = &self.0.wrong;
        if self.are_over() || wrong.load(Ordering::Relaxed) >= TRIES_MAX {
            return Shown::Wrong;
        }
        let shown = shown();
        if shown == Shown::Wrong {
            wrong.fetch_add(1, Ordering::Relaxed);
        }
        shown
    }

    /// Counts and logs a failure, then waits until it may be answered. The wait grows with each failure of this
    /// connection and with each other connection that waits. It ends when the service stops.
    pub(super) async fn fail(&self) {
        let tries = &self.0;
        let failed = tries.failed.fetch_add(1, Ordering::Relaxed);
        tries.failed_logins.report(tries.peer);
        let waiting = Waiting::among(&tries.failed_logins, tries.state.as_deref());
        let own = DELAY * (1 << failed.min(TRIES_MAX));
        let delay = own.max(DELAY_OF_EACH * waiting.others).min(DELAY_MAX);
        let mut stage = tries.stage.clone();
        tokio::select! {
            () = sleep(delay) => {}
            _ = stage.wait_for(|stage| *stage != Stage::Open) => {}
        }
        drop(waiting);
        if self.are_over() {
            tries.over.notify_one();
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

/// A connection with a delayed answer, which counts until this is dropped.
struct Waiting<'s> {
    failures: &'s Failures,
    state: Option<&'s ConnectionState>,
    others: u32,
}

impl<'s> Waiting<'s> {
    fn among(failed_logins: &'s FailedLogins, state: Option<&'s ConnectionState>) -> Waiting<'s> {
        let failures = &*failed_logins.0;
        if let Some(state) = state {
            state.begin_delay();
        }
        Waiting { failures, state, others: failures.waiting.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.failures.waiting.fetch_sub(1, Ordering::Relaxed);
        if let Some(state) = self.state {
            state.end_delay();
        }
    }
}

/// The failures after which a connection is closed: enough for a person at a keyboard.
const TRIES_MAX: u32 = 4;

/// The delay of the answer to the first failure of a connection. It doubles with each that follows.
const DELAY: Duration = Duration::from_millis(250);

/// The delay for each other connection that waits. It bounds a listener to a thousand tries a second over all
/// connections.
const DELAY_OF_EACH: Duration = Duration::from_millis(1);

/// The longest delay. It is reached when as many connections wait as a listener may have.
const DELAY_MAX: Duration = Duration::from_secs(20);

/// The time between two lines of the log about one listener.
const REPORT_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::time::Instant;

    use super::*;

    fn tries(failed_logins: &FailedLogins) -> (watch::Sender<Stage>, Tries) {
        let (stage, stages) = watch::channel(Stage::Open);
        (stage, failed_logins.tries(Ipv4Addr::LOCALHOST.into(), stages, None))
    }

    #[tokio::test(start_paused = true)]
    async fn each_failure_of_a_connection_is_answered_later_until_all_tries_fail() {
        let (_stage, tries) = tries(&FailedLogins::at("HTTP"));
        for expected_ms in [250, 500, 1_000, 2_000] {
            assert_eq!(tries.judge(|| Shown::Right), Shown::Right);
            let began = Instant::now();
            tries.fail().await;
            assert_eq!(began.elapsed().as_millis(), expected_ms);
        }
        assert!(tries.are_over());
        assert_eq!(tries.judge(|| Shown::Right), Shown::Wrong);
    }

    /// The calls of one gRPC connection are judged before any of them fails.
    #[tokio::test]
    async fn no_more_than_the_allowed_tries_are_compared_at_once() {
        let (_stage, tries) = tries(&FailedLogins::at("gRPC"));
        let compared = (0..100).filter(|_| {
            let mut is_compared = false;
            tries.judge(|| {
                is_compared = true;
                Shown::Wrong
            });
            is_compared
        });
        assert_eq!(compared.count(), TRIES_MAX as usize);
        assert_eq!(tries.judge(|| Shown::Right), Shown::Wrong);
    }

    #[tokio::test(start_paused = true)]
    async fn a_listener_answers_a_thousand_failures_a_second_over_many_connections() {
        let failed_logins = FailedLogins::at("HTTP");
        let began = Instant::now();
        let attackers: Vec<_> = (0..5_000)
            .map(|_| {
                let failed_logins = failed_logins.clone();
                tokio::spawn(async move { tries(&failed_logins).1.fail().await })
            })
            .collect();
        for attacker in attackers {
            attacker.await.unwrap();
        }
        assert!(began.elapsed() >= Duration::from_millis(4_999), "{:?}", began.elapsed());
        assert_eq!(failed_logins.0.waiting.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_answered_at_once_when_the_service_stops() {
        let (stage, tries) = tries(&FailedLogins::at("HTTP"));
        stage.send_replace(Stage::Leaving);
        let began = Instant::now();
        tries.fail().await;
        assert!(began.elapsed().is_zero());
    }
}
