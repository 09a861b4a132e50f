//! Counts that no two threads write to.

use std::sync::atomic::{AtomicU64, Ordering};

use thread_local::ThreadLocal;

/// `N` counts. Each thread adds to counts of its own, so that threads on a busy server do not wait
/// for each other's cache lines. The counts of a thread that ended go on in the next thread.
#[derive(Debug, Default)]
pub(crate) struct Tally<const N: usize>(ThreadLocal<OfThread<N>>);

/// The counts of one thread. Others only read them.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct OfThread<const N: usize>([AtomicU64; N]);

impl<const N: usize> Tally<N> {
    /// Returns the counts of this thread.
    #[inline]
    pub(crate) fn of_this_thread(&self) -> &OfThread<N> {
        self.0.get().unwrap_or_else(|| self.first_of_this_thread())
    }

    #[cold]
    #[inline(never)]
    fn first_of_this_thread(&self) -> &OfThread<N> {
        self.0.get_or(|| OfThread([const { AtomicU64::new(0) }; N]))
    }

    /// Returns the sum over all threads.
    pub(crate) fn read(&self) -> [u64; N] {
        let mut all = [0; N];
        for of_thread in &self.0 {
            let counts = all.iter_mut().zip(&of_thread.0);
            counts.for_each(|(all, count)| *all += count.load(Ordering::Relaxed));
        }
        all
    }
}

impl<const N: usize> OfThread<N> {
    /// Adds one. No other thread writes here, so the addition need not be atomic.
    #[inline]
    pub(crate) fn add(&self, place: usize) {
        let count = &self.0[place];
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_count_apart_and_are_read_together() {
        let tally = Tally::<2>::default();
        for _ in 0..3 {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| (0..10_000).for_each(|_| tally.of_this_thread().add(1)));
                }
            });
        }
        assert_eq!(tally.read(), [0, 120_000]);
    }
}
