//! The guard of a shard: one key that shows whether the shard lost its data, and which ring it serves.
//!
//! It holds the name of the epoch, which is lost together with all other data; the instant at which the epoch
//! before was found lost; and, on a ring, the oldest ring that is still served. A call whose result depends
//! on the guard carries the expected value. The script executes nothing if the guard has another value.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;

use super::failure::Failure;
use super::keys;
use super::ring::Seal;
use crate::store::{OnStateLoss, Store};
use crate::time::monotonic_us;

/// A shard's guard, as the last heartbeat read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Guard {
    /// The key that holds the guard. On a Cluster it may change, and then two epochs cannot be compared.
    pub(super) key: String,
    /// The value in the store, with dots between: epoch, loss, the oldest ring's number and fingerprint, and
    /// since when it is the oldest.
    pub(super) text: String,
    /// The instant at which the epoch before was found lost; 0 if unknown.
    lost_us: u64,
    /// The oldest ring that is served; number 0 if there is none.
    oldest: Seal,
    /// Since when it is the oldest, on this instance's monotonic clock.
    oldest_since_us: u64,
}

/// The settings that decide whether calls depend on the guard.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuardPolicy {
    pub(super) on_state_loss: OnStateLoss,
    pub(super) ring: Option<Rings>,
}

/// The ring of this instance, and the ring that it replaces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rings {
    pub(super) own: Seal,
    pub(super) previous: Option<Seal>,
}

impl Rings {
    /// Returns the rings of a store, if it is a ring.
    pub(super) fn of(store: &Store) -> Option<Rings> {
        let Store::Ring(ring) = store else { return None };
        Some(Rings { own: Seal::of(ring), previous: ring.previous().map(Seal::of) })
    }
}

/// The guard that a call expects.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    guard: Arc<Guard>,
    lost_us: Option<u64>,
}

/// The last known guard of a shard.
#[derive(Debug, Default)]
pub(super) struct KnownGuard {
    guard: ArcSwapOption<Guard>,
    /// The reason why this instance must not call the shard, if there is one.
    refusal: ArcSwapOption<String>,
    /// Held while the guard is read, so that concurrent callers read it once.
    pub(super) asking: tokio::sync::Mutex<()>,
    losses: AtomicU64,
    /// Set while the shard is out of reach, and the new owners decide for its subjects.
    given_up: AtomicBool,
}

impl Guard {
    /// Parses a heartbeat's reply. `oldest_for_us` is how long the oldest ring has been the oldest.
    pub(super) fn read(key: String, text: &[u8], oldest_for_us: u64) -> Option<Guard> {
        let text = String::from_utf8(text.to_vec()).ok()?;
        let mut words = text.split('.').skip(1);
        let lost_us = words.next()?.parse().ok()?;
        let number = words.next()?.parse().ok()?;
        let fingerprint = u64::from_str_radix(words.next()?, 16).ok()?;
        let oldest = Seal { number, fingerprint };
        let oldest_since_us = monotonic_us().saturating_sub(oldest_for_us);
        Some(Guard { key, text, lost_us, oldest, oldest_since_us })
    }

    pub(super) fn epoch(&self) -> &str {
        self.text.split('.').next().unwrap_or_default()
    }
}

impl GuardPolicy {
    /// Returns the guard that a call to a shard must expect, if its result depends on the guard.
    pub(super) fn on(self, known: &KnownGuard) -> Result<Option<Expected>, Failure> {
        let begins_empty = self.on_state_loss == OnStateLoss::Exhausted;
        if !begins_empty && self.ring.is_none() {
            return Ok(None);
        }
        if let Some(why) = known.refusal() {
            return Err(Failure::Unfit(why));
        }
        // With no guard known yet, the call expects an empty one. The script then executes nothing, and the
        // guard is read.
        let guard = known.guard.load_full().unwrap_or_else(unknown);
        let lost_us = begins_empty.then_some(guard.lost_us);
        Ok(Some(Expected { guard, lost_us }))
    }

    /// Returns the reason why a shard with this guard must not be called, if there is one.
    fn refusal(self, guard: &Guard) -> Option<String> {
        let (Rings { own, previous }, oldest) = (self.ring?, guard.oldest);
        let (ours, theirs) = (own.number, oldest.number);
        // The shard serves no ring yet, or exactly this one.
        if theirs == 0 || own == oldest {
            return None;
        }
        if ours < theirs {
            return Some(format!(
                "ring {theirs} is in force there, and this instance has ring {ours}; give it the new ring and restart it"
            ));
        }
        if ours == theirs {
            return Some(format!(
                "ring {ours} has other nodes or weights there than in this instance; give a changed ring a larger number, and name the one it replaces"
            ));
        }
        // Both rings are in use during a planned change. That is allowed if this ring names the other as its
        // predecessor.
        let known = previous.is_some_and(|it| it.fingerprint == oldest.fingerprint);
        (!known).then(|| {
            format!(
                "ring {theirs} is in force there, and ring {ours} does not name it as the one it replaces; add its nodes as the previous ones"
            )
        })
    }
}

impl Expected {
    /// Appends the expected guard to a command, after the program.
    pub(super) fn append_to(&self, command: &mut ::redis::Cmd) {
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
    /// Records a guard, and returns whether the shard lost all that it held before.
    ///
    /// A guard under another key, as after a move of slots, shows nothing about the old one.
    pub(super) fn note(&self, mut guard: Guard, policy: GuardPolicy) -> bool {
        let before = self.now();
        let mut lost = false;
        if let Some(known) = before.as_deref() {
            if known.key == guard.key && known.epoch() != guard.epoch() {
                self.losses.fetch_add(1, Ordering::Relaxed);
                lost = true;
            }
            // Keeps the instant read first: the store's clock may step later, and this instance's clock does not.
            if known.oldest == guard.oldest {
                guard.oldest_since_us = known.oldest_since_us;
            }
        }
        self.given_up.store(false, Ordering::Relaxed);
        self.refusal.store(policy.refusal(&guard).map(Arc::new));
        self.guard.store(Some(Arc::new(guard)));
        lost
    }

    /// Returns the last known epoch under a key, or an empty text.
    pub(super) fn epoch_under(&self, key: &str) -> String {
        let guard = self.guard.load();
        let same = guard.as_ref().filter(|guard| guard.key == key);
        same.map_or_else(String::new, |guard| guard.epoch().to_owned())
    }

    pub(super) fn now(&self) -> Option<Arc<Guard>> {
        self.guard.load_full()
    }

    /// Returns the reason why this instance must not call the shard, if there is one.
    pub(super) fn refusal(&self) -> Option<String> {
        self.refusal.load().as_deref().cloned()
    }

    /// Returns whether for `us` no instance has used a ring older than `number`.
    pub(super) fn has_served_since(&self, number: u32, us: u64) -> bool {
        let guard = self.guard.load();
        guard.as_ref().is_some_and(|guard| {
            guard.oldest.number >= number && monotonic_us() - guard.oldest_since_us > us
        })
    }

    /// Counts the shard's data as lost, once, until the shard answers again.
    pub(super) fn give_up(&self) {
        if !self.given_up.swap(true, Ordering::Relaxed) {
            self.losses.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how often the shard lost its data.
    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }
}

/// Returns a guard that no shard has: the script executes nothing, and its reply causes the guard to be read.
fn unknown() -> Arc<Guard> {
    let (key, oldest) = (key_of(keys::ANY_TAG), Seal::NONE);
    Arc::new(Guard { key, text: String::new(), lost_us: 0, oldest, oldest_since_us: 0 })
}

/// Returns the key of the guard on a shard whose keys have this tag.
pub(super) fn key_of(tag: &str) -> String {
    format!("sg1:{{{tag}}}:epoch")
}
