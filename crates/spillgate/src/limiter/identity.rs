//! What this instance says of itself to operators and to its fleet.

use parking_lot::Mutex;
use spillgate_core::time::Clock;

use crate::metrics::Durations;

/// The name of this instance, its start, and the times of its decisions in the last minute.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) started_ms: u64,
    minute: Mutex<Minute>,
}

/// The times of decisions, when the minute began and in the minute before.
#[derive(Debug, Default)]
struct Minute {
    began_ms: u64,
    before: Durations,
    p99_us: Option<u64>,
}

impl Identity {
    pub(crate) fn new(name: Option<String>) -> Identity {
        let name = name.or_else(host).unwrap_or_else(|| "unnamed".to_owned());
        // A name is one line of a table.
        let name = name.chars().filter(|char| !char.is_control()).take(NAME_MAX).collect();
        let started_ms = Clock::System.now_us() / 1_000;
        Identity { name, started_ms, minute: Mutex::default() }
    }

    /// Returns the 99th percentile of decisions in the last whole minute, in µs. `durations` are those since the
    /// start.
    pub(crate) fn p99_us(&self, durations: impl FnOnce() -> Durations) -> Option<u64> {
        let now_ms = Clock::System.now_us() / 1_000;
        let mut minute = self.minute.lock();
        if now_ms.saturating_sub(minute.began_ms) >= MINUTE_MS {
            let now = durations();
            let p99 = now.since(&minute.before).percentile(99);
            let p99_us = p99.map(|p99| u64::try_from(p99.as_micros()).unwrap_or(u64::MAX));
            *minute = Minute { began_ms: now_ms, before: now, p99_us };
        }
        minute.p99_us
    }
}

/// Returns the name of the host, which in a container is that of the pod or container.
fn host() -> Option<String> {
    let set = std::env::var("HOSTNAME").ok();
    let read = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    set.or_else(read).map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
}

const MINUTE_MS: u64 = 60_000;
const NAME_MAX: usize = 64;
