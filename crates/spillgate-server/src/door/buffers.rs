//! What the connections of one listener buffer: a little is free to each, the rest comes out of one budget.
//!
//! A connection that needs more than there is waits and is not read meanwhile, so its client is held back
//! by TCP. Its message's deadline goes on, and so ends the wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::{Semaphore, TryAcquireError};

/// The bytes that all connections of one listener may buffer beyond what is free to each.
pub(super) struct Budget {
    blocks: Semaphore,
    /// Connections that may go beyond the budget to the end of one message. Without them many half messages
    /// could use up the budget, and none of them could end.
    overdrafts: Semaphore,
}

impl Budget {
    pub(super) fn new() -> Budget {
        Budget {
            blocks: Semaphore::new(BUFFERED_MAX / BLOCK),
            overdrafts: Semaphore::new(OVERDRAFTS_MAX),
        }
    }
}

/// What one connection has of the budget; dropping it returns all.
pub(super) struct Hold {
    budget: Arc<Budget>,
    blocks: AtomicUsize,
    overdrawn: AtomicBool,
}

impl Hold {
    pub(super) fn of(budget: &Arc<Budget>) -> Hold {
        Hold {
            budget: Arc::clone(budget),
            blocks: AtomicUsize::new(0),
            overdrawn: AtomicBool::new(false),
        }
    }

    /// How many bytes the connection may buffer with what it has.
    pub(super) fn allowance(&self) -> usize {
        if self.overdrawn.load(Ordering::Relaxed) {
            return usize::MAX;
        }
        FREE + self.blocks.load(Ordering::Relaxed) * BLOCK
    }

    /// Takes what is missing for so many bytes, and waits for it if need be. Dropping the future takes nothing.
    pub(super) async fn cover(&self, bytes: usize) {
        let missing = self.missing(bytes);
        if missing == 0 {
            return;
        }
        let count = u32::try_from(missing).unwrap_or(u32::MAX);
        tokio::select! {
            biased;
            Ok(permits) = self.budget.blocks.acquire_many(count) => {
                permits.forget();
                self.blocks.fetch_add(missing, Ordering::Relaxed);
            }
            Ok(permit) = self.budget.overdrafts.acquire() => {
                permit.forget();
                self.overdrawn.store(true, Ordering::Relaxed);
            }
            else => {}
        }
    }

    /// Takes what is missing for so many bytes if it is there.
    pub(super) fn try_cover(&self, bytes: usize) -> bool {
        let missing = self.missing(bytes);
        if missing == 0 {
            return true;
        }
        let count = u32::try_from(missing).unwrap_or(u32::MAX);
        match self.budget.blocks.try_acquire_many(count) {
            Ok(permits) => {
                permits.forget();
                self.blocks.fetch_add(missing, Ordering::Relaxed);
                true
            }
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => false,
        }
    }

    /// Returns what is not needed for so many bytes.
    pub(super) fn shrink_to(&self, bytes: usize) {
        let needed = blocks(bytes);
        let held = self.blocks.load(Ordering::Relaxed);
        if held > needed {
            self.blocks.store(needed, Ordering::Relaxed);
            self.budget.blocks.add_permits(held - needed);
        }
        if needed == 0 && self.overdrawn.swap(false, Ordering::Relaxed) {
            self.budget.overdrafts.add_permits(1);
        }
    }

    /// Whether the budget is used up, so that others may wait.
    pub(super) fn is_contended(&self) -> bool {
        self.budget.blocks.available_permits() == 0
    }

    fn missing(&self, bytes: usize) -> usize {
        if bytes <= self.allowance() {
            return 0;
        }
        blocks(bytes).saturating_sub(self.blocks.load(Ordering::Relaxed))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

fn blocks(bytes: usize) -> usize {
    bytes.saturating_sub(FREE).div_ceil(BLOCK)
}

/// What each connection may buffer without asking: nearly all messages are shorter, so those of good clients
/// get through while others use up the budget. For 20,000 connections these are 160 MiB.
pub(super) const FREE: usize = 8 * 1024;

/// What all connections of one listener may buffer beyond that: 64 of the longest messages at once.
const BUFFERED_MAX: usize = 64 * 1024 * 1024;

/// The unit of the budget: small enough that little is taken in vain, large enough that it is rarely asked for.
const BLOCK: usize = 16 * 1024;

/// Connections that may go beyond the budget at once, each to the end of one message of 2 MiB at most.
const OVERDRAFTS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use tokio::time::{Duration, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connections_buffer_the_budget_and_a_few_messages_more() {
        let budget = Arc::new(Budget::new());
        let holds: Vec<Hold> = (0..200).map(|_| Hold::of(&budget)).collect();
        let mut covered = 0;
        for hold in &holds {
            let waited = timeout(Duration::from_secs(1), hold.cover(1024 * 1024)).await;
            covered += usize::from(waited.is_ok());
        }
        // The free part of each makes room for a fraction of another.
        assert!((64..=65 + OVERDRAFTS_MAX).contains(&covered), "{covered}");
        assert!(holds[150].is_contended() && !holds[150].try_cover(100 * 1024));
        assert!(holds[150].try_cover(FREE), "a short message needs none of the budget");
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_or_leaves_returns_all_that_it_held() {
        let budget = Arc::new(Budget::new());
        let all = budget.blocks.available_permits();
        let hold = Hold::of(&budget);
        hold.cover(1024 * 1024).await;
        hold.shrink_to(100 * 1024);
        assert_eq!(all - budget.blocks.available_permits(), blocks(100 * 1024));
        drop(hold);
        let rest = Hold::of(&budget);
        rest.cover(BUFFERED_MAX).await;
        let late = Hold::of(&budget);
        late.cover(BUFFERED_MAX).await;
        assert_eq!(late.allowance(), usize::MAX, "an overdraft");
        drop((rest, late));
        assert_eq!(budget.blocks.available_permits(), all);
        assert_eq!(budget.overdrafts.available_permits(), OVERDRAFTS_MAX);
    }
}
