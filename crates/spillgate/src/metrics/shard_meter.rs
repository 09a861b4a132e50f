//! The counts of one shard of the store.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Began, Histogram, ShardCounts};
use crate::time::counter_ns;

/// Counts the calls to one shard.
#[derive(Debug)]
pub(crate) struct ShardMeter {
    /// Its name without credentials.
    pub(super) shard: String,
    pub(super) seconds: Histogram,
    errors: [AtomicU64; CLASSES.len()],
}

/// Why a call got no answer.
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

    pub(crate) fn begin(&self) -> Began {
        Began(Some(counter_ns()))
    }

    /// Counts the time of a call that was sent. The time of a call that was not sent shows nothing about the shard.
    pub(crate) fn end(&self, began: Began) {
        if let Began(Some(began_ns)) = began {
            self.seconds.add_ns(counter_ns().saturating_sub(began_ns), 1);
        }
    }

    /// Counts a call without an answer.
    pub(crate) fn fail(&self, class: ErrorClass) {
        self.errors[class as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts now.
    pub(crate) fn read(&self) -> ShardCounts {
        let errors = self.errors.each_ref().map(|count| count.load(Ordering::Relaxed));
        let unsent = errors[ErrorClass::NotSent as usize];
        ShardCounts {
            shard: self.shard.clone(),
            calls: self.seconds.read(),
            failed: errors.iter().sum::<u64>() - unsent,
            unsent,
        }
    }

    /// Returns the classes of errors with their counts, without zeros.
    pub(super) fn errors(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.errors.iter().map(|count| count.load(Ordering::Relaxed));
        CLASSES.into_iter().zip(counts).filter(|(_, count)| *count > 0)
    }
}

/// The values of the label `class`, in the order of the enum.
const CLASSES: [&str; 6] = ["not-here", "unfit", "unknown", "not-sent", "overloaded", "bug"];
