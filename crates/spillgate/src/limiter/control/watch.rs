//! The task that keeps runtime changes up to date. It follows the copies on the shards, completes
//! those that lack entries, and removes expired entries. It holds a weak reference, so it ends with
//! the limiter.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::super::Inner;
use super::exchange::Look;
use crate::control::random;

/// The handle of the task, if it runs.
#[derive(Debug, Default)]
pub(super) struct Watch {
    task: Mutex<Option<AbortHandle>>,
}

impl Inner {
    /// Waits briefly for earlier changes on the shards, then starts the task.
    pub(crate) async fn catch_up(self: &Arc<Self>) {
        let _ = tokio::time::timeout(CATCH_UP, self.follow(Look::Whole)).await;
        self.watch();
    }

    /// Starts the task if there is anything to watch and it does not run. The runtime of the last
    /// task may have ended.
    pub(crate) fn watch(self: &Arc<Self>) {
        let memory = self.engine.is_memory();
        if memory && !self.control.table.lock().will_expire() {
            return;
        }
        let mut task = self.control.watch.task.lock();
        if task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        // In memory nothing else needs a runtime. Without one, the next call notices expired
        // entries.
        let Ok(runtime) = Handle::try_current() else { return };
        let watcher = runtime.spawn(watch(Arc::downgrade(self)));
        *task = Some(watcher.abort_handle());
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
    }
}

async fn watch(limiter: Weak<Inner>) {
    let mut pause = LOOK_EVERY;
    for look in 1u64.. {
        tokio::time::sleep(pause + Duration::from_millis(random() % JITTER_MS)).await;
        let Some(limiter) = limiter.upgrade() else { return };
        let whole = look.is_multiple_of(LOOKS_UNTIL_WHOLE);
        let all_answered = limiter.follow(if whole { Look::Whole } else { Look::Quick }).await;
        pause = if all_answered { LOOK_EVERY } else { LOOK_AGAIN };
        limiter.learn([]);
    }
}

/// Short enough that a change or expiry takes effect everywhere within a second, even if one look
/// fails.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// While a shard is away. Changes made meanwhile must be everywhere within a second of its return:
/// half a second until a connection is open, this, and one look of the other instances.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The longest delay of a start. The first look follows soon after.
const CATCH_UP: Duration = Duration::from_millis(250);
/// Keeps instances from looking at the same time.
const JITTER_MS: u64 = 100;
/// A whole exchange about every ten seconds.
const LOOKS_UNTIL_WHOLE: u64 = 40;
