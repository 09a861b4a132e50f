//! Bounds the bytes that the connections of one listener buffer. Each connection may buffer a few bytes freely. For
//! more it takes a share of the listener's budget.
//!
//! If the budget has too little left, the connection waits and is not read meanwhile, so TCP makes its client wait too.
//! The deadline of the message still runs, and ends the wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::{Semaphore, TryAcquireError};

/// The bytes that all connections of one listener may buffer beyond the free bytes of each.
pub struct Budget {
    blocks: Semaphore,
    /// Permits to go beyond the budget to the end of one message. Without them many half messages could use up the
    /// budget, and none of them could be completed.
    overdrafts: Semaphore,
}

impl Budget {
    pub fn new() -> Budget {
        Budget {
            blocks: Semaphore::new(BUFFERED_MAX / BLOCK),
            overdrafts: Semaphore::new(OVERDRAFTS_MAX),
        }
    }
}

/// The share of the budget that one connection has. Dropping it returns the share.
pub struct BufferShare {
    budget: Arc<Budget>,
    blocks: AtomicUsize,
    overdrawn: AtomicBool,
}

impl BufferShare {
    pub fn new(budget: &Arc<Budget>) -> BufferShare {
        BufferShare {
            budget: Arc::clone(budget),
            blocks: AtomicUsize::new(0),
            overdrawn: AtomicBool::new(false),
        }
    }

    /// Returns how many bytes the connection may buffer with its share.
    pub fn allowance(&self) -> usize {
        if self.overdrawn.load(Ordering::Relaxed) {
            return usize::MAX;
        }
        FREE + self.blocks.load(Ordering::Relaxed) * BLOCK
    }

    /// Enlarges the share to `bytes`, and waits for the budget if need be. Dropping the future takes nothing.
    pub async fn cover(&self, bytes: usize) {
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

    /// Enlarges the share to `bytes` if the budget has enough left, and returns whether it did.
    pub fn try_cover(&self, bytes: usize) -> bool {
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

    /// Returns the part of the share beyond `bytes` to the budget.
    pub fn shrink_to(&self, bytes: usize) {
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

    /// Returns whether the budget is used up, so that other connections may wait.
    pub fn is_contended(&self) -> bool {
        self.budget.blocks.available_permits() == 0
    }

    fn missing(&self, bytes: usize) -> usize {
        if bytes <= self.allowance() {
            return 0;
        }
        blocks(bytes).saturating_sub(self.blocks.load(Ordering::Relaxed))
    }
}

impl Drop for BufferShare {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

fn blocks(bytes: usize) -> usize {
    bytes.saturating_sub(FREE).div_ceil(BLOCK)
}

/// The bytes that each connection may buffer without the budget. Nearly all messages are shorter, so good clients are
/// served even if others use up the budget. For 20,000 connections these are 160 MiB.
pub const FREE: usize = 8 * 1024;

/// The bytes of the budget: 64 of the longest bodies at once. A check or batch also takes room for its decoded requests,
/// its decisions and the longest answer that it can have, until it is decided.
const BUFFERED_MAX: usize = 64 * 1024 * 1024;

/// The unit of the budget: small enough to waste little, large enough that a connection rarely takes another.
const BLOCK: usize = 16 * 1024;

/// The most connections beyond the budget at once, each to the end of one message.
const OVERDRAFTS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use tokio::time::{Duration, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connections_buffer_the_budget_and_a_few_messages_more() {
        let budget = Arc::new(Budget::new());
        let shares: Vec<BufferShare> = (0..200).map(|_| BufferShare::new(&budget)).collect();
        let mut covered = 0;
        for share in &shares {
            let waited = timeout(Duration::from_secs(1), share.cover(1024 * 1024)).await;
            covered += usize::from(waited.is_ok());
        }
        // The free part of each makes room for a fraction of another.
        assert!((64..=65 + OVERDRAFTS_MAX).contains(&covered), "{covered}");
        assert!(shares[150].is_contended() && !shares[150].try_cover(100 * 1024));
        assert!(shares[150].try_cover(FREE), "a short message needs none of the budget");
    }

    #[tokio::test(start_paused = true)]
    async fn shrinking_and_dropping_return_the_share_to_the_budget() {
        let budget = Arc::new(Budget::new());
        let all = budget.blocks.available_permits();
        let share = BufferShare::new(&budget);
        share.cover(1024 * 1024).await;
        share.shrink_to(100 * 1024);
        assert_eq!(all - budget.blocks.available_permits(), blocks(100 * 1024));
        drop(share);
        let rest = BufferShare::new(&budget);
        rest.cover(BUFFERED_MAX).await;
        let late = BufferShare::new(&budget);
        late.cover(BUFFERED_MAX).await;
        assert_eq!(late.allowance(), usize::MAX, "an overdraft");
        drop((rest, late));
        assert_eq!(budget.blocks.available_permits(), all);
        assert_eq!(budget.overdrafts.available_permits(), OVERDRAFTS_MAX);
    }
}
