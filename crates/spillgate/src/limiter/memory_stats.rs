//! What the memory store holds.

use super::Limiter;

/// What the memory store holds. [`Stats`](crate::Stats) counts the effects of running out of room.
///
/// `Limiter::memory_stats` returns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Counters.
    pub counters: usize,
    /// Bytes of the counters' tables. Logs and permits take more.
    pub counter_bytes: usize,
    /// Reservations that are open, or expired without an end.
    pub open_reservations: u64,
    /// Reservations that were settled, cancelled or released, and are remembered.
    pub ended_reservations: u64,
    /// Bytes of the records of reservations.
    pub reservation_bytes: u64,
}

impl Limiter {
    /// Returns what the memory store holds; `None` if state is on a shared store.
    ///
    /// Sums over all tables, so call it now and then, not for each request.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::{Limit, Limiter, Request};
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// let request = Request::keyed("user:42", Limit::per_minute(5));
    /// assert!(limiter.check(&request).await.allowed());
    /// assert_eq!(limiter.memory_stats().unwrap().counters, 1);
    /// # });
    /// ```
    pub fn memory_stats(&self) -> Option<MemoryStats> {
        let memory = self.inner.engine.memory()?;
        let records = memory.records();
        Some(MemoryStats {
            counters: memory.len(),
            counter_bytes: memory.bytes(),
            open_reservations: records.open,
            ended_reservations: records.ended,
            reservation_bytes: records.bytes,
        })
    }
}
