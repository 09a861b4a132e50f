//! Whether a shard still holds what it held: a name kept there goes when all else goes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The epoch of each shard, as last heard.
#[derive(Debug, Default)]
pub(super) struct Epochs {
    /// By the shard's name: the tag under which it keeps its epoch, and that.
    heard: Mutex<HashMap<String, (String, Vec<u8>)>>,
    changes: AtomicU64,
}

impl Epochs {
    /// Takes note. Another tag is another key, as when slots move, and says nothing.
    pub(super) fn note(&self, shard: String, tag: String, epoch: Vec<u8>) {
        let lost = |(known_tag, known): &(String, Vec<u8>)| *known_tag == tag && *known != epoch;
        let mut heard = self.heard.lock();
        if heard.get(&shard).is_some_and(lost) {
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
        heard.insert(shard, (tag, epoch));
    }

    /// How often a shard was found to have lost what it held.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }
}
