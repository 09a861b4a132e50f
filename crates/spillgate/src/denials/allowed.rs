//! Counts the allowed requests of the current minute by rule, limit and subject. They come from sampled decisions, and
//! most come before the subject's first denial, so all subjects have a count until the minute ends.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// The counts of the current minute.
#[derive(Debug, Default)]
pub(crate) struct AllowedCounts {
    sampling: Sampling,
    fields: AtomicUsize,
    shards: [Mutex<HashMap<u64, u32>>; SHARDS],
}

/// The counts of a minute that is over.
#[derive(Debug)]
pub(crate) struct AllowedOfMinute {
    shards: Vec<HashMap<u64, u32>>,
    absent: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sampling {
    On,
    /// No decision is sampled, so all counts are unknown.
    #[default]
    Off,
}

impl AllowedCounts {
    /// Returns counts of sampled decisions.
    pub(crate) fn sampled() -> AllowedCounts {
        AllowedCounts { sampling: Sampling::On, ..AllowedCounts::default() }
    }

    /// Returns counts that are all unknown, because no decision is sampled.
    pub(crate) fn unknown() -> AllowedCounts {
        AllowedCounts::default()
    }

    /// Counts one sample under the hash of rule, limit and subject. It stands for `weight` decisions.
    pub(crate) fn add(&self, field: u64, weight: u64) {
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        let mut shard = self.shards[field as usize % SHARDS].lock();
        if let Some(known) = shard.get_mut(&field) {
            *known = known.saturating_add(weight);
        } else if self.fields.fetch_add(1, Ordering::Relaxed) < FIELDS_MAX {
            shard.insert(field, weight);
        }
    }

    /// Returns the counts, and begins anew.
    pub(crate) fn take(&self) -> AllowedOfMinute {
        let shards = self.shards.iter().map(|shard| mem::take(&mut *shard.lock())).collect();
        // A subject without a count was not sampled, or there was no room to count it.
        let is_whole = self.fields.swap(0, Ordering::Relaxed) <= FIELDS_MAX;
        let absent = (is_whole && self.sampling == Sampling::On).then_some(0);
        AllowedOfMinute { shards, absent }
    }
}

impl AllowedOfMinute {
    /// Returns about how many requests were allowed; `None` if unknown.
    pub(crate) fn of(&self, field: u64) -> Option<u32> {
        self.shards[field as usize % SHARDS].get(&field).copied().or(self.absent)
    }
}

const SHARDS: usize = 16;
/// The most limits of subjects of one minute, about 2 MB. The counts of others are unknown.
const FIELDS_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_65536_subjects_a_new_one_is_unknown_until_the_minute_ends() {
        let counts = AllowedCounts::sampled();
        (0..65_536).for_each(|field| counts.add(field, 1));
        counts.add(7, 2);
        let full = counts.take();
        assert_eq!((full.of(7), full.of(70_000)), (Some(3), Some(0)));
        (0..65_537).for_each(|field| counts.add(field, 1));
        let over = counts.take();
        assert_eq!((over.of(7), over.of(65_536), over.of(70_000)), (Some(1), None, None));
        assert_eq!(counts.take().of(7), Some(0));
    }

    #[test]
    fn without_samples_no_count_is_called_zero() {
        assert_eq!(AllowedCounts::unknown().take().of(7), None);
    }
}
