//! Detects silence of a shard: the last byte over all connections to it, the count of a silence, and the release of
//! callers when it stays silent.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

use super::line::Line;
use crate::time::{TICK, counted};

/// The state that all connections to one shard share.
///
/// A shard is silent if it has sent no byte on any connection for `timeout` since a call was written. A call
/// that waits in this instance's queue, or a late reply, is not silence.
pub(crate) struct Pulse {
    /// How long a shard may send nothing while it owes a reply.
    pub(crate) timeout: Duration,
    began: Instant,
    received_us: AtomicU64,
    /// Replies that came after their callers had given up.
    late_answers: AtomicU64,
    lines: Mutex<Vec<Weak<Line>>>,
    on_silence: Box<dyn Fn() + Send + Sync>,
}

impl Pulse {
    /// Creates a pulse that runs `on_silence` once for each silence.
    pub(crate) fn new(timeout: Duration, on_silence: impl Fn() + Send + Sync + 'static) -> Pulse {
        Pulse {
            timeout,
            began: Instant::now(),
            received_us: AtomicU64::new(0),
            late_answers: AtomicU64::new(0),
            lines: Mutex::default(),
            on_silence: Box::new(on_silence),
        }
    }

    /// Returns the time after which a silent connection counts as broken although others receive bytes.
    ///
    /// A shard serves all its connections in turn, so one cannot be silent for long.
    pub(crate) fn broken_after(&self) -> Duration {
        BROKEN_AFTER.max(2 * self.timeout)
    }

    /// Returns whether a byte came after `instant`.
    pub(crate) fn received_since(&self, instant: Instant) -> bool {
        self.last_received() > instant
    }

    /// Returns the number of late replies since the last call of this function.
    pub(crate) fn take_late_answers(&self) -> u64 {
        self.late_answers.swap(0, Ordering::Relaxed)
    }

    pub(crate) fn last_received(&self) -> Instant {
        self.began + Duration::from_micros(self.received_us.load(Ordering::Relaxed))
    }

    pub(crate) fn note_byte(&self, now: Instant) {
        let us = now.saturating_duration_since(self.began).as_micros();
        self.received_us.fetch_max(u64::try_from(us).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn note_late_answer(&self) {
        self.late_answers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn join(&self, line: &Arc<Line>) {
        let mut lines = self.lines.lock();
        lines.retain(|line| line.strong_count() > 0);
        lines.push(Arc::downgrade(line));
    }

    /// Returns whether a connection to the shard has bytes that its reader has not taken yet.
    pub(crate) fn has_unread(&self) -> bool {
        self.lines().iter().any(|line| line.has_unread())
    }

    /// Releases every caller that waits on one of the shard's connections: the shard is silent.
    pub(crate) fn judge_silent(&self) {
        // First, so that a released caller finds the circuit breaker already updated.
        (self.on_silence)();
        self.lines().iter().for_each(|line| line.release());
    }

    fn lines(&self) -> Vec<Arc<Line>> {
        self.lines.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// The shard's silence as the reader has counted it, slice by slice.
///
/// A slice that ended late counts little. While this process does not run, it can neither send nor read, and a shard on
/// the same host may not run either.
pub struct Silence {
    /// Ends the slice at hand.
    timer: Pin<Box<Sleep>>,
    slice_from: Instant,
    counted: Duration,
}

impl Silence {
    /// Begins to count. All that could be sent has been sent.
    pub fn new(now: Instant, slice: Duration) -> Silence {
        let timer = Box::pin(tokio::time::sleep_until(now + slice));
        Silence { timer, slice_from: now, counted: Duration::ZERO }
    }

    /// Waits for the end of the slice at hand.
    pub fn poll_slice(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.timer.as_mut().poll(context)
    }

    /// Ends the slice at hand, and counts what it has of a silence that began at `since`. Returns what is missing of
    /// `needed`.
    pub fn end_slice(&mut self, since: Instant, now: Instant, needed: Duration) -> Duration {
        if since > self.slice_from {
            self.counted = Duration::ZERO;
        }
        let (from, due) = (since.max(self.slice_from), self.timer.deadline());
        let tolerated = TICK.max(due.saturating_duration_since(from) / LATE_SILENCE);
        self.counted += counted([from, due, now], tolerated, LATE_SILENCE);
        needed.saturating_sub(self.counted)
    }

    pub fn begin_slice(&mut self, now: Instant, slice: Duration) {
        self.slice_from = now;
        self.timer.as_mut().reset(now + slice);
    }
}

impl std::fmt::Debug for Pulse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pulse(..)")
    }
}

/// A slice of a silence that ended late counts for this part of its length, more than one of a caller's wait. So a shard
/// that is silent is called so before its callers give up, also on a busy host.
const LATE_SILENCE: u32 = 4;
/// Several times the longest wait of a decision for a busy shard.
const BROKEN_AFTER: Duration = Duration::from_secs(1);
