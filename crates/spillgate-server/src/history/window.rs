//! Rings of points at one interval, of fixed size. All rings of a window share one position.

use std::time::Duration;

use spillgate::metrics::Decisions;

/// The last points at one interval.
pub struct Window {
    /// The present column.
    at: usize,
    len: usize,
    columns: Box<[Column]>,
    /// One ring for each slot that is in use, and the last for all rules without a slot.
    rings: Vec<Option<Box<[Decisions]>>>,
}

/// The counts of the whole instance in one interval.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Column {
    /// The end of the interval, in milliseconds since 1970-01-01 00:00 UTC.
    pub(crate) at_ms: u64,
    pub(crate) lasted_ms: u32,
    /// Requests, each counted once.
    pub(crate) allowed: u32,
    pub(crate) denied: u32,
    pub(crate) unmatched: u32,
    /// Decisions of rules, in the order of [`SOURCES`].
    pub(crate) sources: [u32; SOURCES.len()],
    /// Calls to all shards: those that were sent, those of them without an answer, and those that were not sent.
    pub(crate) calls: u32,
    pub(crate) failed: u32,
    pub(crate) unsent: u32,
    /// The most shards at once that decisions were made without.
    pub(crate) degraded: u32,
    pub(crate) times: Times,
}

/// Times of an interval; `None` if nothing was timed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub(crate) p50: Option<Duration>,
    pub(crate) p99: Option<Duration>,
    pub(crate) store_p99: Option<Duration>,
}

impl Window {
    pub fn new(columns: usize) -> Window {
        Window {
            at: 0,
            len: 0,
            columns: vec![Column::default(); columns].into(),
            rings: (0..=SLOTS).map(|_| None).collect(),
        }
    }

    /// Begins the next column.
    pub fn turn(&mut self) {
        if self.len > 0 {
            self.at = (self.at + 1) % self.columns.len();
        }
        self.len = (self.len + 1).min(self.columns.len());
        self.columns[self.at] = Column::default();
        for ring in self.rings.iter_mut().flatten() {
            ring[self.at] = Decisions::default();
        }
    }

    /// Returns whether the present column, of a minute, ends before this time.
    pub fn is_over(&self, now_ms: u64) -> bool {
        self.len == 0 || self.columns[self.at].at_ms / MINUTE_MS != now_ms / MINUTE_MS
    }

    pub fn present(&mut self) -> &mut Column {
        &mut self.columns[self.at]
    }

    /// Adds decisions of the present interval to a slot.
    pub fn count(&mut self, slot: usize, decisions: Decisions) {
        let columns = self.columns.len();
        let ring = &mut self.rings[slot];
        let ring = ring.get_or_insert_with(|| vec![Decisions::default(); columns].into());
        ring[self.at].add(decisions);
    }

    /// Adds the points of a slot to those of the rules without a slot, and empties it.
    pub fn free(&mut self, slot: usize) {
        let columns = self.columns.len();
        let Some(freed) = self.rings[slot].take() else { return };
        let others = &mut self.rings[OTHERS];
        let others = others.get_or_insert_with(|| vec![Decisions::default(); columns].into());
        others.iter_mut().zip(freed).for_each(|(other, freed)| other.add(freed));
    }

    /// Returns the positions of the last columns, the oldest first.
    pub fn last(&self, count: usize) -> impl Iterator<Item = usize> {
        let count = count.min(self.len);
        let (at, columns) = (self.at, self.columns.len());
        (0..count).map(move |back| (at + columns + 1 + back - count) % columns)
    }

    pub fn column(&self, at: usize) -> Column {
        self.columns[at]
    }

    /// Returns the decisions of a slot at a position.
    pub fn decisions(&self, slot: usize, at: usize) -> Decisions {
        self.rings[slot].as_ref().map_or_else(Decisions::default, |ring| ring[at])
    }

    /// Returns the decisions of all rules at a position.
    pub fn sum(&self, at: usize) -> Decisions {
        let mut sum = Decisions::default();
        self.rings.iter().flatten().for_each(|ring| sum.add(ring[at]));
        sum
    }
}

impl Column {
    /// Adds an interval that follows this one.
    pub fn add(&mut self, next: &Column) {
        let pairs = [
            (&mut self.lasted_ms, next.lasted_ms),
            (&mut self.allowed, next.allowed),
            (&mut self.denied, next.denied),
            (&mut self.unmatched, next.unmatched),
            (&mut self.calls, next.calls),
            (&mut self.failed, next.failed),
            (&mut self.unsent, next.unsent),
        ];
        let sources = self.sources.iter_mut().zip(next.sources);
        for (sum, more) in pairs.into_iter().chain(sources) {
            *sum = sum.saturating_add(more);
        }
        self.at_ms = next.at_ms;
        self.degraded = self.degraded.max(next.degraded);
    }
}

/// Returns a count of one interval in 32 bits: a minute would have to decide 70 million times a second to exceed it.
pub fn small(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The sources in the order of the library's counts.
pub(crate) const SOURCES: [&str; 6] =
    ["store", "lease", "denial-cache", "fallback", "outage-policy", "none"];
pub const FALLBACK: usize = 3;
pub const OUTAGE_POLICY: usize = 4;
/// The rules with a series of their own.
pub const SLOTS: usize = 64;
/// The ring of all other rules.
pub const OTHERS: usize = SLOTS;
const MINUTE_MS: u64 = 60_000;
