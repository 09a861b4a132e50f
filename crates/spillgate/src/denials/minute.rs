//! Counts the denials of the current minute. Every denial is counted, so a known subject costs one lock of a shard and
//! no allocation.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::allowed::AllowedOfMinute;
use super::{AllowedCounts, DenialCount, Denied};
use crate::decision::Reason;

/// The counts of the current minute.
#[derive(Debug)]
pub(crate) struct MinuteCounts {
    pub(crate) allowed: AllowedCounts,
    /// The minute that is counted.
    minute: AtomicU64,
    subjects: AtomicUsize,
    /// Denials without a place.
    others: AtomicU64,
    shards: [Mutex<HashMap<u64, DenialCount>>; SHARDS],
}

/// A minute that is over, as it was counted.
#[derive(Debug)]
pub(crate) struct CountedMinute {
    minute: u64,
    others: u64,
    shards: Vec<HashMap<u64, DenialCount>>,
    allowed: AllowedOfMinute,
}

/// A minute that is over, with the most denied subjects of each rule.
#[derive(Debug)]
pub(crate) struct EndedMinute {
    pub(crate) minute: u64,
    pub(crate) others: u64,
    pub(crate) subjects: Vec<(u64, DenialCount)>,
}

impl MinuteCounts {
    pub(crate) fn new(allowed: AllowedCounts) -> MinuteCounts {
        MinuteCounts {
            allowed,
            minute: AtomicU64::default(),
            subjects: AtomicUsize::default(),
            others: AtomicU64::default(),
            shards: Default::default(),
        }
    }

    /// Counts one denial under the hash of rule, limit and subject. Makes the subject only if it is new.
    pub(crate) fn count(
        &self,
        field: u64,
        reason: Reason,
        subject: impl FnOnce() -> Option<Denied>,
    ) {
        let mut shard = self.shards[field as usize % SHARDS].lock();
        if let Some(known) = shard.get_mut(&field) {
            known.denied = known.denied.saturating_add(1);
            known.reason = reason;
            return;
        }
        let has_room = self.subjects.fetch_add(1, Ordering::Relaxed) < SUBJECTS_MAX;
        let Some(subject) = has_room.then(subject).flatten() else {
            self.subjects.fetch_sub(1, Ordering::Relaxed);
            self.others.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let subject = Arc::new(subject);
        shard.insert(field, DenialCount { denied: 1, allowed: None, minutes: 0, reason, subject });
    }

    /// Begins another minute if it is a later one, and returns the one before if it has denials. Of several callers one
    /// gets it. Denials that are counted meanwhile may go to either minute.
    #[inline]
    pub(crate) fn turn(&self, minute: u64) -> Option<CountedMinute> {
        let before = self.minute.load(Ordering::Relaxed);
        // A clock that was set back begins anew, but two threads that read it around a new minute do not.
        if before == minute || before == minute + 1 { None } else { self.end(before, minute) }
    }

    #[cold]
    fn end(&self, before: u64, minute: u64) -> Option<CountedMinute> {
        let (done, read) = (Ordering::Relaxed, Ordering::Relaxed);
        self.minute.compare_exchange(before, minute, done, read).ok()?;
        let shards = self.shards.iter().map(|shard| mem::take(&mut *shard.lock()));
        let shards: Vec<HashMap<u64, DenialCount>> = shards.collect();
        let subjects = shards.iter().map(HashMap::len).sum::<usize>();
        self.subjects.fetch_sub(subjects, Ordering::Relaxed);
        let others = self.others.swap(0, Ordering::Relaxed);
        let (minute, allowed) = (before, self.allowed.take());
        let is_counted = subjects > 0 || others > 0;
        is_counted.then_some(CountedMinute { minute, others, shards, allowed })
    }
}

impl CountedMinute {
    /// Returns the minute with the most denied subjects of each rule. This takes a while, so no decision does it.
    pub(crate) fn ended(self) -> EndedMinute {
        let CountedMinute { minute, others, shards, allowed } = self;
        let subjects = shards.into_iter().flatten().collect();
        let mut ended = EndedMinute { minute, others, subjects }.most_denied();
        for (field, count) in &mut ended.subjects {
            count.allowed = allowed.of(*field);
        }
        ended
    }
}

impl EndedMinute {
    /// Keeps the most denied subjects of each rule, and counts the denials of the rest.
    fn most_denied(mut self) -> EndedMinute {
        self.subjects.sort_unstable_by(|(_, one), (_, other)| {
            let rules = one.subject.rule.cmp(&other.subject.rule);
            rules.then(other.denied.cmp(&one.denied))
        });
        let rest = |of_rule: &[(u64, DenialCount)]| {
            let rest = of_rule.get(OF_RULE_MAX..).unwrap_or_default();
            rest.iter().map(|(_, count)| u64::from(count.denied)).sum::<u64>()
        };
        let by_rule = |(_, one): &(u64, DenialCount), (_, next): &(u64, DenialCount)| {
            one.subject.rule == next.subject.rule
        };
        self.others += self.subjects.chunk_by(by_rule).map(rest).sum::<u64>();
        let kept = self.subjects.chunk_by(by_rule).flat_map(|rule| rule.iter().take(OF_RULE_MAX));
        self.subjects = kept.cloned().collect();
        self
    }
}

const SHARDS: usize = 16;
/// The most subjects of one minute, about 2 MB. Denials of others are counted together.
const SUBJECTS_MAX: usize = 4_096;
/// The most subjects of a rule that one instance records of one minute.
const OF_RULE_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn deny(counts: &MinuteCounts, rule: &str, user: u64, times: u64) {
        for _ in 0..times {
            let value = user.to_be_bytes();
            let subject = || Denied::new(rule, "0", [("user", &value[..])].into_iter());
            counts.count(user, Reason::LimitExceeded, subject);
        }
    }

    #[test]
    fn a_customer_beside_an_attack_is_found_if_at_most_19_subjects_are_denied_more_often() {
        let counts = MinuteCounts::new(AllowedCounts::sampled());
        assert!(counts.turn(7).is_none());
        (1..=19).for_each(|attacker| deny(&counts, "api", attacker, 500));
        (100..3_000).for_each(|other| deny(&counts, "api", other, 1 + other % 11));
        deny(&counts, "api", 99, 12);
        deny(&counts, "login", 5_000, 1);
        let ended = counts.turn(8).unwrap().ended();
        let found = ended.subjects.iter().find(|(field, _)| *field == 99);
        assert_eq!(found.map(|(_, count)| count.denied), Some(12));
        assert_eq!((ended.minute, ended.subjects.len()), (7, 21), "20 of one rule, 1 of the other");
        assert_eq!(ended.others, (100..3_000).map(|other| 1 + other % 11).sum::<u64>());
        assert!(counts.turn(9).is_none(), "nothing was denied since");
    }

    #[test]
    fn allowed_requests_of_a_minute_count_also_before_its_first_denial() {
        let counts = MinuteCounts::new(AllowedCounts::sampled());
        assert!(counts.turn(7).is_none());
        counts.allowed.add(1, 8);
        counts.allowed.add(1, 1);
        counts.allowed.add(3, 1);
        deny(&counts, "api", 1, 2);
        deny(&counts, "api", 2, 1);
        let allowed = |counts: CountedMinute| {
            let subjects = counts.ended().subjects.into_iter();
            subjects.map(|(field, count)| (field, count.allowed)).collect::<Vec<_>>()
        };
        assert_eq!(allowed(counts.turn(8).unwrap()), [(1, Some(9)), (2, Some(0))]);
        deny(&counts, "api", 1, 1);
        assert_eq!(allowed(counts.turn(9).unwrap()), [(1, Some(0))], "another minute");
        counts.allowed.add(1, 5);
        assert!(counts.turn(10).is_none(), "nothing was denied");
        deny(&counts, "api", 1, 1);
        assert_eq!(allowed(counts.turn(11).unwrap()), [(1, Some(0))]);
    }

    #[test]
    fn denials_beyond_4096_subjects_are_counted_together_until_the_minute_ends() {
        let counts = MinuteCounts::new(AllowedCounts::sampled());
        assert!(counts.turn(7).is_none());
        let rules: Vec<String> = (0..300).map(|rule| rule.to_string()).collect();
        for user in 0..5_000 {
            deny(&counts, &rules[user as usize % 300], user, 1);
        }
        deny(&counts, "0", 1, 1);
        let ended = counts.turn(8).unwrap().ended();
        assert_eq!((ended.subjects.len(), ended.others), (4_096, 904));
        deny(&counts, "0", 4_999, 1);
        let next = counts.turn(9).unwrap().ended();
        assert_eq!((next.minute, next.subjects.len(), next.others), (8, 1, 0));
    }

    #[test]
    fn a_subject_with_names_too_long_to_keep_counts_as_others() {
        let counts = MinuteCounts::new(AllowedCounts::sampled());
        assert!(counts.turn(7).is_none());
        deny(&counts, &"r".repeat(600), 1, 3);
        let ended = counts.turn(8).unwrap().ended();
        assert_eq!((ended.subjects.len(), ended.others), (0, 3));
    }

    #[test]
    fn two_threads_around_a_new_minute_end_it_once_and_a_clock_set_back_begins_anew() {
        let counts = MinuteCounts::new(AllowedCounts::sampled());
        assert!(counts.turn(7).is_none());
        deny(&counts, "api", 1, 1);
        assert_eq!(counts.turn(8).unwrap().minute, 7);
        deny(&counts, "api", 1, 1);
        assert!(counts.turn(7).is_none());
        assert_eq!(counts.turn(3).unwrap().minute, 8);
    }
}
