//! Logs clients that send wrong credentials, with at most one line a second for each listener.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;

/// The failed logins at one listener. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct FailedLogins(Arc<Failures>);

#[derive(Debug)]
struct Failures {
    /// The listener's name in the log.
    listener: &'static str,
    /// Failures since the last line of the log.
    unreported: AtomicU64,
    /// Whether the log has a line of this second. Further failures then wait for the next.
    is_quiet: AtomicBool,
}

impl FailedLogins {
    pub(crate) fn at(listener: &'static str) -> FailedLogins {
        let (unreported, is_quiet) = Default::default();
        FailedLogins(Arc::new(Failures { listener, unreported, is_quiet }))
    }

    /// Returns the listener's name in the log.
    pub fn listener(&self) -> &'static str {
        self.0.listener
    }

    /// Logs a failure: the first of a second at once, the others together at the end of that second.
    pub fn report(&self, peer: IpAddr) {
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

/// The time between two lines of the log about one listener.
const REPORT_EVERY: Duration = Duration::from_secs(1);
