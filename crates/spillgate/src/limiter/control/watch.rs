//! The task that looks after what is set: it follows the copies on the shards, mends those that lack
//! something, and takes out what has expired. It holds the limiter weakly, so it ends with it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::super::Inner;
use super::exchange::Look;
use crate::control::random;
use crate::engine::Engine;

/// The task, if there is one.
#[derive(Debug, Default)]
pub(super) struct Watch {
    task: Mutex<Option<AbortHandle>>,
}

impl Inner {
    /// Begins to watch, and waits a moment for what was set before this process began.
    pub(crate) async fn catch_up(self: &Arc<Self>) {
        let _ = tokio::time::timeout(CATCH_UP, self.follow(Look::Whole)).await;
        self.watch();
    }

    /// Sees to it that somebody watches, if there is anything to watch: also after the runtime that
    /// the last watcher ran on has ended.
    pub(crate) fn watch(self: &Arc<Self>) {
        let memory = matches!(self.engine, Engine::Memory(_));
        if memory && !self.control.table.lock().will_expire() {
            return;
        }
        let mut task = self.control.watch.task.lock();
        if task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        // In memory nothing else needs a runtime; without one, what expires is noticed by the next call.
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
    for look in 1u64.. {
        tokio::time::sleep(LOOK_EVERY + Duration::from_millis(random() % JITTER_MS)).await;
        let Some(limiter) = limiter.upgrade() else { return };
        let whole = look.is_multiple_of(LOOKS_UNTIL_WHOLE);
        limiter.follow(if whole { Look::Whole } else { Look::Quick }).await;
        limiter.control.learn([], &limiter.in_force);
    }
}

/// Often enough that what is set or expires anywhere holds everywhere within a second, one look
/// missed.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A start is not held up for longer: the first look comes soon after.
const CATCH_UP: Duration = Duration::from_millis(250);
/// So that the processes of a fleet do not look all at once.
const JITTER_MS: u64 = 100;
/// Every ten seconds.
const LOOKS_UNTIL_WHOLE: u64 = 40;
