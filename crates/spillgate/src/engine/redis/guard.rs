//! What a shard says of itself under one key: the name of its epoch, which goes when all else goes,
//! and when the epoch before it was lost. Calls that depend on it carry what they take it to be, and
//! nothing is executed where it is another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;

use crate::store::OnStateLoss;

/// A shard's guard, as a heartbeat found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Guard {
    /// The key that holds it; on a Cluster that may change, and then says nothing of the epoch.
    pub(super) key: String,
    /// As it stands in the store.
    pub(super) text: String,
    /// When the epoch before was found to be lost; 0 if that is not known.
    lost_us: u64,
}

/// What calls to a store go by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) on_state_loss: OnStateLoss,
}

/// What a call is to find.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    guard: Arc<Guard>,
    lost_us: Option<u64>,
}

/// What is known of one shard's guard.
#[derive(Debug, Default)]
pub(super) struct KnownGuard {
    guard: ArcSwapOption<Guard>,
    /// Whoever finds another asks, and the others wait.
    pub(super) asking: tokio::sync::Mutex<()>,
    losses: AtomicU64,
}

impl Guard {
    /// Reads what a heartbeat answered.
    pub(super) fn read(key: String, text: &[u8]) -> Option<Guard> {
        let text = String::from_utf8(text.to_vec()).ok()?;
        let lost_us = text.split('.').nth(1)?.parse().ok()?;
        Some(Guard { key, text, lost_us })
    }

    pub(super) fn epoch(&self) -> &str {
        self.text.split('.').next().unwrap_or_default()
    }
}

impl Terms {
    /// What a call to a shard is to find there, if its answer depends on it.
    pub(super) fn on(self, known: &KnownGuard, key: &str) -> Option<Expected> {
        match self.on_state_loss {
            OnStateLoss::Normal => None,
            OnStateLoss::Empty => {
                let guard = known.guard.load_full().unwrap_or_else(|| unknown(key));
                let lost_us = Some(guard.lost_us);
                Some(Expected { guard, lost_us })
            }
        }
    }
}

impl Expected {
    /// Adds it to the words of a call, behind the program.
    pub(super) fn tell(&self, command: &mut ::redis::Cmd) {
        command.arg(&self.guard.text);
        if let Some(lost_us) = self.lost_us {
            command.arg(lost_us);
        }
    }

    pub(super) fn key(&self) -> &str {
        &self.guard.key
    }
}

impl KnownGuard {
    /// Takes note. Another key is another tag, as when slots move, and says nothing.
    pub(super) fn note(&self, guard: Guard) {
        let before = self.guard.swap(Some(Arc::new(guard.clone())));
        let lost = |known: &Guard| known.key == guard.key && known.epoch() != guard.epoch();
        if before.as_deref().is_some_and(lost) {
            self.losses.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The epoch that was heard last under a key.
    pub(super) fn epoch_under(&self, key: &str) -> String {
        let guard = self.guard.load();
        let same = guard.as_ref().filter(|guard| guard.key == key);
        same.map_or_else(String::new, |guard| guard.epoch().to_owned())
    }

    pub(super) fn now(&self) -> Option<Arc<Guard>> {
        self.guard.load_full()
    }

    /// How often a shard was found to have lost what it held.
    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }
}

/// Nothing is executed under this one, and the answer tells to ask.
fn unknown(key: &str) -> Arc<Guard> {
    Arc::new(Guard { key: key.to_owned(), text: String::new(), lost_us: 0 })
}

/// Where a shard whose keys have this tag keeps its guard.
pub(super) fn key_of(tag: &str) -> String {
    format!("sg1:{{{tag}}}:epoch")
}
