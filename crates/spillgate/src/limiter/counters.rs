//! What a limiter counts of its own decisions, for [`Stats`].

use std::sync::atomic::{AtomicU64, Ordering};

use crate::decision::Decision;

/// What a limiter has done since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Decisions that allowed.
    pub allowed: u64,
    /// Decisions that denied.
    pub denied: u64,
    /// Requests that met no rule.
    pub unmatched: u64,
    /// Shadow rules that would have denied.
    pub would_deny: u64,
    /// Decisions that the store had no part in.
    pub degraded: u64,
    /// Calls to the store that failed.
    pub store_errors: u64,
    /// How often a server of the store was found to have lost what it held.
    pub epoch_changes: u64,
    /// How often the clock of a server of the store stepped, by itself or with a failover: forward,
    /// each subject may have had one fresh allowance.
    pub clock_steps: u64,
    /// How many processes share each limit while the store is out of reach: those that the store
    /// heard of lately, or that were expected; 16 where nobody knows; 0 in memory.
    pub nodes: u32,
    /// What operators refunded without a receipt, which may have let more pass than a limit says.
    pub given_back: u64,
    /// How many wait for room in this process.
    pub waiting: usize,
    /// Counters that this process leases, or may soon.
    pub leased_counters: usize,
    /// Tokens that it has taken ahead, and not spent or returned yet.
    pub lease_outstanding: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    allowed: AtomicU64,
    denied: AtomicU64,
    unmatched: AtomicU64,
    would_deny: AtomicU64,
    degraded: AtomicU64,
    pub(super) given_back: AtomicU64,
}

impl Counters {
    pub(super) fn count(&self, decision: &Decision) {
        let add = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        add(if decision.allowed() { &self.allowed } else { &self.denied });
        if decision.is_unmatched() {
            add(&self.unmatched);
        }
        if decision.degraded() {
            add(&self.degraded);
        }
        for counter in decision.limits().filter(|counter| counter.shadow() && decision.allowed()) {
            if !counter.allowed() {
                add(&self.would_deny);
            }
        }
    }

    pub(super) fn read(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            allowed: read(&self.allowed),
            denied: read(&self.denied),
            unmatched: read(&self.unmatched),
            would_deny: read(&self.would_deny),
            degraded: read(&self.degraded),
            store_errors: 0,
            epoch_changes: 0,
            clock_steps: 0,
            nodes: 0,
            given_back: read(&self.given_back),
            waiting: 0,
            leased_counters: 0,
            lease_outstanding: 0,
        }
    }
}
