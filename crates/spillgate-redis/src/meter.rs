//! The counts of one shard of the store.

use std::sync::atomic::{AtomicU64, Ordering};

use spillgate_core::histogram::Histogram;

use crate::time::counter_ns;

/// Counts the calls to one shard.
#[derive(Debug)]
pub struct ShardMeter {
    /// Its name without credentials.
    pub shard: String,
    /// The times of its calls.
    pub seconds: Histogram,
    errors: [AtomicU64; CLASSES.len()],
}

/// Why a call got no usable answer.
#[derive(Clone, Copy)]
pub(crate) enum ErrorClass {
    NotHere,
    Unfit,
    Unknown,
    NotSent,
    Overloaded,
    Bug,
}

impl ShardMeter {
    pub(crate) fn new(shard: String) -> ShardMeter {
        ShardMeter { shard, seconds: Histogram::default(), errors: Default::default() }
    }

    /// Counts the time of a call that was sent at `began_ns` of [`counter_ns`] and ends now. The time of a call that was
    /// not sent shows nothing about the shard.
    pub(crate) fn end(&self, began_ns: u64) {
        self.seconds.add_ns(counter_ns().saturating_sub(began_ns), 1);
    }

    /// Counts a call without a usable answer.
    pub(crate) fn fail(&self, class: ErrorClass) {
        self.errors[class as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of calls without a usable answer. Calls that found no connection do not count.
    pub fn failed(&self) -> u64 {
        let all: u64 = self.errors.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        all.saturating_sub(self.unsent())
    }

    /// Returns the number of calls that were not sent, because there was no connection.
    pub fn unsent(&self) -> u64 {
        self.errors[ErrorClass::NotSent as usize].load(Ordering::Relaxed)
    }

    /// Returns the classes of errors with their counts, without zeros.
    pub fn errors(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.errors.iter().map(|count| count.load(Ordering::Relaxed));
        CLASSES.into_iter().zip(counts).filter(|(_, count)| *count > 0)
    }
}

/// The values of the label `class`, in the order of the enum.
const CLASSES: [&str; 6] = ["not-here", "unfit", "unknown", "not-sent", "overloaded", "bug"];
