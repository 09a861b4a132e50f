//! What is counted of one shard of the store.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Began, Histogram};
use crate::time::counter_ns;

/// The calls to one shard.
#[derive(Debug)]
pub(crate) struct ShardMeter {
    /// As people know it, without credentials.
    pub(super) shard: String,
    pub(super) seconds: Histogram,
    errors: [AtomicU64; CLASSES.len()],
}

/// What kept a call from an answer.
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

    /// The classes of errors that there were, and how many.
    pub(super) fn errors(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.errors.iter().map(|count| count.load(Ordering::Relaxed));
        CLASSES.into_iter().zip(counts).filter(|(_, count)| *count > 0)
    }
}

/// As labels, in the order of the classes.
const CLASSES: [&str; 6] = ["not-here", "unfit", "unknown", "not-sent", "overloaded", "bug"];
