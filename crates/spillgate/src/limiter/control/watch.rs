//! The task that keeps this instance and its runtime changes up to date. It reports the instance to the
//! fleet's record, follows the record, completes it if it lacks entries, adds the denials of each minute, and removes
//! expired entries. It holds a weak reference, so it ends with the limiter.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::super::Inner;
use crate::control::random;

/// The handle of the task, if it runs.
#[derive(Debug, Default)]
pub struct Watch {
    task: Mutex<Option<AbortHandle>>,
    /// Set if entries may expire while no task runs. Decisions then look for expired entries.
    unwatched: AtomicBool,
}

/// Belongs to the task. Its drop notes that the task has ended, perhaps with its runtime.
struct Watching(Weak<Inner>);

impl Inner {
    /// Waits briefly for the changes in the store, then starts the task.
    pub(crate) async fn read_changes_and_watch(self: &Arc<Self>) {
        let _ = tokio::time::timeout(FIRST_LOOK, self.report_and_follow()).await;
        self.watch();
    }

    /// Starts the task if there is anything to watch and it does not run. The runtime of the last
    /// task may have ended.
    pub(crate) fn watch(self: &Arc<Self>) {
        let memory = self.engine.is_memory();
        if memory && !self.control.table.lock().will_expire() && !self.denials.is_on() {
            return;
        }
        let mut task = self.control.watch.task.lock();
        if task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        // In memory nothing else needs a runtime. Without one, the next decision notices expired
        // entries.
        let Ok(runtime) = Handle::try_current() else {
            self.control.watch.unwatched.store(true, Ordering::Relaxed);
            return;
        };
        // Before the spawn: a runtime that is ending drops the task at once.
        self.control.watch.unwatched.store(false, Ordering::Relaxed);
        let watcher = runtime.spawn(watch(Watching(Arc::downgrade(self))));
        *task = Some(watcher.abort_handle());
    }

    /// Removes expired entries if no task does. Otherwise this is one relaxed load.
    pub(crate) fn expire_if_unwatched(&self) {
        if self.control.watch.unwatched.load(Ordering::Relaxed) {
            self.expire_unwatched();
        }
    }

    #[cold]
    fn expire_unwatched(&self) {
        self.learn([]);
        // Cleared under the lock: a later change that expires sets it again.
        let table = self.control.table.lock();
        if !table.will_expire() {
            self.control.watch.unwatched.store(false, Ordering::Relaxed);
        }
    }
}

impl Watch {
    /// Ends the task.
    pub fn stop(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(limiter) = self.0.upgrade() {
            limiter.control.watch.unwatched.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
    }
}

async fn watch(watching: Watching) {
    let (mut pause, mut has_joined) = (LOOK_EVERY, false);
    loop {
        tokio::time::sleep(pause + Duration::from_millis(random() % JITTER_MS)).await;
        let Some(limiter) = watching.0.upgrade() else { return };
        let is_up = limiter.report_and_follow().await;
        limiter.denials.settle();
        #[cfg(feature = "redis")]
        limiter.settle_history();
        if is_up {
            limiter.add_denials().await;
            #[cfg(feature = "redis")]
            limiter.add_history().await;
            has_joined = has_joined || limiter.join_earlier_record().await;
        }
        pause = match is_up {
            true if limiter.engine.is_memory() => EXPIRY_EVERY,
            true => LOOK_EVERY,
            false => LOOK_AGAIN,
        };
        limiter.learn([]);
    }
}

/// With the jitter and the look itself, a change or expiry takes effect everywhere within a second.
const LOOK_EVERY: Duration = Duration::from_millis(800);
/// In memory only expiries and ended minutes are looked for, which costs next to nothing.
const EXPIRY_EVERY: Duration = Duration::from_millis(200);
/// While the store is down. Changes made meanwhile must be everywhere within two seconds of its return:
/// half a second until a connection is open, this, and one look of the other instances.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The longest delay of a start. If the first look takes longer, the next one follows soon after.
const FIRST_LOOK: Duration = Duration::from_millis(250);
/// Keeps instances from looking at the same time.
const JITTER_MS: u64 = 100;
