//! The counts of one shard of the store.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Began, Histogram};
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

    pub(crate) fn end(&self, began: Began, error: impl FnOnce() -> Option<ErrorClass>) {
        if let Began(Some(began_ns)) = began {
            self.seconds.add_ns(counter_ns().saturating_sub(began_ns), 1);
        }
        if let Some(class) = error() {
            self.errors[class as usize].fetch_add(1, Ordering::Relaxed);
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
