//! The guard of a shard: one key that shows whether the shard lost its data.
//!
//! It holds the name of the epoch, which is lost together with all other data, and the instant at which the epoch
//! before was found lost. With `on_state_loss = "exhausted"` each call carries the value that it expects, because its
//! result depends on that instant. The script executes nothing if the guard has another value.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;

use super::keys;
use crate::store::OnStateLoss;

/// A shard's guard, as the last heartbeat read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Guard {
    /// The key that holds the guard. On a Cluster it may change, and then two epochs cannot be compared.
    pub(crate) key: String,
    /// The value in the store: epoch and loss, with a dot between.
    pub(crate) text: String,
    /// The instant at which the epoch before was found lost; 0 if unknown.
    pub(crate) lost_us: u64,
}

/// The last known guard of a shard.
#[derive(Debug, Default)]
pub(crate) struct KnownGuard {
    guard: ArcSwapOption<Guard>,
    /// Held while the guard is read, so that concurrent callers read it once.
    pub(crate) asking: tokio::sync::Mutex<()>,
    losses: AtomicU64,
}

impl Guard {
    /// Parses the value of a guard.
    pub(crate) fn read(key: String, text: &[u8]) -> Option<Guard> {
        let text = String::from_utf8(text.to_vec()).ok()?;
        let lost_us = text.split_once('.')?.1.parse().ok()?;
        Some(Guard { key, text, lost_us })
    }

    pub(crate) fn epoch(&self) -> &str {
        self.text.split('.').next().unwrap_or_default()
    }
}

impl KnownGuard {
    /// Returns the guard that a call to the shard must expect, if its result depends on the guard.
    pub(crate) fn expected(&self, on_state_loss: OnStateLoss) -> Option<Arc<Guard>> {
        let begins_exhausted = on_state_loss == OnStateLoss::Exhausted;
        // With no guard known yet, the call expects an empty one. The script then executes nothing, and the
        // guard is read.
        begins_exhausted.then(|| self.guard.load_full().unwrap_or_else(unknown))
    }

    /// Records a guard, and returns whether the shard lost all that it held before.
    ///
    /// A guard under another key, as after a move of slots, shows nothing about the old one.
    pub(crate) fn note(&self, guard: Guard) -> bool {
        let before = self.guard.swap(Some(Arc::new(guard.clone())));
        let lost =
            before.is_some_and(|known| known.key == guard.key && known.epoch() != guard.epoch());
        self.losses.fetch_add(u64::from(lost), Ordering::Relaxed);
        lost
    }

    /// Returns the last known epoch under a key, or an empty string.
    pub(crate) fn epoch_under(&self, key: &str) -> String {
        let guard = self.guard.load();
        let same = guard.as_ref().filter(|guard| guard.key == key);
        same.map_or_else(String::new, |guard| guard.epoch().to_owned())
    }

    pub(crate) fn now(&self) -> Option<Arc<Guard>> {
        self.guard.load_full()
    }

    /// Returns how often the shard lost its data.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }
}

/// Returns a guard that no shard has: the script executes nothing, and its reply causes the guard to be read.
fn unknown() -> Arc<Guard> {
    Arc::new(Guard { key: key_of(keys::ANY_TAG), text: String::new(), lost_us: 0 })
}

/// Returns the key of the guard on a shard whose keys have this tag.
pub fn key_of(tag: &str) -> String {
    format!("sg1:{{{tag}}}:epoch")
}
