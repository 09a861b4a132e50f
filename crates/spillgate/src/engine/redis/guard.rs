//! What a shard says of itself under one key: the name of its epoch, which goes when all else goes;
//! when the epoch before it was lost; and of a ring's node, which is the oldest ring that is served
//! there. Calls that depend on it carry what they take it to be, and nothing is executed where it is
//! another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;

use super::failure::Failure;
use super::ring::Seal;
use crate::store::{OnStateLoss, Store};
use crate::time::monotonic_us;

/// A shard's guard, as a heartbeat found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Guard {
    /// The key that holds it; on a Cluster that may change, and then says nothing of the epoch.
    pub(super) key: String,
    /// As it stands in the store: epoch, lost, number and fingerprint of the oldest ring, and since
    /// when it is the oldest; with dots between.
    pub(super) text: String,
    /// When the epoch before was found to be lost; 0 if that is not known.
    lost_us: u64,
    /// The oldest ring that is served; of number 0 where there was none yet.
    oldest: Seal,
    /// Since when, on our own clock that nobody steps.
    oldest_since_us: u64,
}

/// What calls to a store go by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) on_state_loss: OnStateLoss,
    pub(super) ring: Option<Rings>,
}

/// The ring of this process, and the one that it takes the place of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rings {
    pub(super) own: Seal,
    pub(super) previous: Option<Seal>,
}

impl Rings {
    /// Which rings a process with this store knows.
    pub(super) fn of(store: &Store) -> Option<Rings> {
        let Store::Ring(ring) = store else { return None };
        Some(Rings { own: Seal::of(ring), previous: ring.previous().map(Seal::of) })
    }
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
    /// Why calls of this process are not for that shard, if they are not.
    refusal: ArcSwapOption<String>,
    /// Whoever finds another asks, and the others wait.
    pub(super) asking: tokio::sync::Mutex<()>,
    losses: AtomicU64,
    /// Others decide for its subjects for as long as it does not answer.
    given_up: AtomicBool,
}

impl Guard {
    /// Reads what a heartbeat answered, and for how long the oldest ring has been the oldest.
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

impl Terms {
    /// What a call to a shard is to find there, if its answer depends on it.
    pub(super) fn on(self, known: &KnownGuard, key: &str) -> Result<Option<Expected>, Failure> {
        let begins_empty = self.on_state_loss == OnStateLoss::Exhausted;
        if !begins_empty && self.ring.is_none() {
            return Ok(None);
        }
        if let Some(why) = known.refusal() {
            return Err(Failure::Unfit(why));
        }
        let guard = known.guard.load_full().unwrap_or_else(|| unknown(key));
        let lost_us = begins_empty.then_some(guard.lost_us);
        Ok(Some(Expected { guard, lost_us }))
    }

    /// Why our calls are not for a shard under this guard, if they are not.
    fn refusal(self, guard: &Guard) -> Option<String> {
        let (Rings { own, previous }, oldest) = (self.ring?, guard.oldest);
        let (ours, theirs) = (own.number, oldest.number);
        if theirs == 0 || own == oldest {
            return None;
        }
        if ours < theirs {
            return Some(format!(
                "ring {theirs} is in force there, and this process has ring {ours}; give it the new ring and restart it"
            ));
        }
        if ours == theirs {
            return Some(format!(
                "ring {ours} has other nodes or weights there than in this process; give a changed ring a larger number, and name the one it replaces"
            ));
        }
        let known = previous.is_some_and(|it| it.fingerprint == oldest.fingerprint);
        (!known).then(|| {
            format!(
                "ring {theirs} is in force there, and ring {ours} does not name it as the one it replaces; add its nodes as the previous ones"
            )
        })
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
    /// Takes note. Another key is another tag, as when slots move, and says nothing. Answers whether all that it held before is lost.
    pub(super) fn note(&self, mut guard: Guard, terms: Terms) -> bool {
        let before = self.now();
        let mut lost = false;
        if let Some(known) = before.as_deref() {
            if known.key == guard.key && known.epoch() != guard.epoch() {
                self.losses.fetch_add(1, Ordering::Relaxed);
                lost = true;
            }
            // The first sight counts: the store's clock may step later.
            if known.oldest == guard.oldest {
                guard.oldest_since_us = known.oldest_since_us;
            }
        }
        self.given_up.store(false, Ordering::Relaxed);
        self.refusal.store(terms.refusal(&guard).map(Arc::new));
        self.guard.store(Some(Arc::new(guard)));
        lost
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

    /// Why our calls are not for that shard, if they are not.
    pub(super) fn refusal(&self) -> Option<String> {
        self.refusal.load().as_deref().cloned()
    }

    /// Whether nobody has been served by an older ring than this for so long.
    pub(super) fn has_served_since(&self, number: u32, us: u64) -> bool {
        let guard = self.guard.load();
        guard.as_ref().is_some_and(|guard| {
            guard.oldest.number >= number && monotonic_us() - guard.oldest_since_us > us
        })
    }

    /// What it holds counts as lost, until it answers again.
    pub(super) fn give_up(&self) {
        if !self.given_up.swap(true, Ordering::Relaxed) {
            self.losses.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often a shard was found to have lost what it held.
    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }
}

/// Nothing is executed under this one, and the answer tells to ask.
fn unknown(key: &str) -> Arc<Guard> {
    let (key, oldest) = (key.to_owned(), Seal::NONE);
    Arc::new(Guard { key, text: String::new(), lost_us: 0, oldest, oldest_since_us: 0 })
}

/// Where a shard whose keys have this tag keeps its guard.
pub(super) fn key_of(tag: &str) -> String {
    format!("sg1:{{{tag}}}:epoch")
}
