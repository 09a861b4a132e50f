//! Signs of life of one shard, over all connections to it: when it last sent a byte, and what follows from its silence.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::line::Line;

/// What all connections to one shard share. The shard is silent when it has sent no byte on any of them for
/// `timeout` since a call was written. A call that waits in a queue of ours, or an answer that comes late, is no silence.
pub(in super::super) struct Pulse {
    timeout: Duration,
    began: Instant,
    received_us: AtomicU64,
    /// Answers that came after their callers had left.
    late_answers: AtomicU64,
    lines: Mutex<Vec<Weak<Line>>>,
    on_silence: Box<dyn Fn() + Send + Sync>,
}

impl Pulse {
    /// Runs `on_silence` once for each silence that is found.
    pub(in super::super) fn new(
        timeout: Duration,
        on_silence: impl Fn() + Send + Sync + 'static,
    ) -> Pulse {
        Pulse {
            timeout,
            began: Instant::now(),
            received_us: AtomicU64::new(0),
            late_answers: AtomicU64::new(0),
            lines: Mutex::default(),
            on_silence: Box::new(on_silence),
        }
    }

    /// Returns how long a shard may send nothing while it owes an answer.
    pub(in super::super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// After so long without a byte on one connection, while others have some, that connection is broken: a shard serves
    /// all of them in turn.
    pub(super) fn broken_after(&self) -> Duration {
        BROKEN_AFTER.max(2 * self.timeout)
    }

    /// Returns whether a byte came after `instant`.
    pub(in super::super) fn received_since(&self, instant: Instant) -> bool {
        self.last_received() > instant
    }

    /// Takes the number of answers that came after their callers had left.
    pub(in super::super) fn take_late_answers(&self) -> u64 {
        self.late_answers.swap(0, Ordering::Relaxed)
    }

    pub(super) fn last_received(&self) -> Instant {
        self.began + Duration::from_micros(self.received_us.load(Ordering::Relaxed))
    }

    pub(super) fn note_byte(&self, now: Instant) {
        let us = now.saturating_duration_since(self.began).as_micros();
        self.received_us.fetch_max(u64::try_from(us).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(super) fn note_late_answer(&self) {
        self.late_answers.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn join(&self, line: &Arc<Line>) {
        let mut lines = self.lines.lock();
        lines.retain(|line| line.strong_count() > 0);
        lines.push(Arc::downgrade(line));
    }

    /// The shard is silent: releases every caller that waits for one of its connections, at once.
    pub(super) fn judge_silent(&self) {
        // First, so that a caller that is released finds the circuit breaker as it is now.
        (self.on_silence)();
        let lines: Vec<Arc<Line>> = self.lines.lock().iter().filter_map(Weak::upgrade).collect();
        lines.iter().for_each(|line| line.release());
    }
}

impl std::fmt::Debug for Pulse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pulse(..)")
    }
}

/// Several times as long as a decision waits for a busy shard.
const BROKEN_AFTER: Duration = Duration::from_secs(1);
