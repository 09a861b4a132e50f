//! Counts how often each subject is denied, in memory of a fixed size.
//!
//! It keeps the most denied subjects like the limiter's own list of top subjects (Space-Saving in buckets): a new
//! subject takes the place and the count of the lightest one in its bucket, and the count it took over is its error.

use std::collections::HashSet;

/// The counts of denied subjects.
#[derive(Debug)]
pub(in crate::simulate) struct Denied {
    places: Vec<Place>,
    /// The hashes of all subjects that were ever denied, up to [`DISTINCT_MAX`].
    known: HashSet<u64>,
    by_rule: Vec<u64>,
}

/// One subject of one rule.
#[derive(Clone, Debug, Default)]
pub(in crate::simulate) struct Place {
    hash: u64,
    pub(in crate::simulate) rule: usize,
    /// How often it was denied; up to `error` of these may be other subjects'.
    pub(in crate::simulate) count: u64,
    pub(in crate::simulate) error: u64,
    pub(in crate::simulate) name: Box<str>,
}

impl Denied {
    pub(in crate::simulate) fn new(rules: usize) -> Denied {
        Denied { places: Vec::new(), known: HashSet::new(), by_rule: vec![0; rules] }
    }

    /// Counts a denial by a rule, of the subject with this hash. `name` is called only if the subject is new here.
    pub(super) fn add(&mut self, rule: usize, hash: u64, name: impl FnOnce() -> String) {
        if self.known.len() < DISTINCT_MAX && self.known.insert(hash) {
            self.by_rule[rule] += 1;
        }
        if self.places.is_empty() {
            self.places = vec![Place::default(); BUCKETS * BUCKET];
        }
        let first = (hash >> 32) as usize % BUCKETS * BUCKET;
        let bucket = &mut self.places[first..first + BUCKET];
        if let Some(known) = bucket.iter_mut().find(|place| place.count > 0 && place.hash == hash) {
            known.count += 1;
            return;
        }
        let Some(lightest) = bucket.iter_mut().min_by_key(|place| place.count) else { return };
        let error = lightest.count;
        *lightest = Place { hash, rule, count: error + 1, error, name: name().into() };
    }

    /// Returns how many subjects a rule denied.
    pub(in crate::simulate) fn subjects_of(&self, rule: usize) -> u64 {
        self.by_rule[rule]
    }

    /// Returns how many subjects were denied by any rule, each counted once for each rule.
    pub(in crate::simulate) fn subjects(&self) -> u64 {
        self.known.len() as u64
    }

    /// Returns whether there were more subjects than are counted.
    pub(in crate::simulate) fn is_full(&self) -> bool {
        self.known.len() == DISTINCT_MAX
    }

    /// Returns the subjects that were denied most often for certain.
    pub(in crate::simulate) fn most(&self, number: usize) -> Vec<Place> {
        let mut all: Vec<&Place> = self.places.iter().filter(|place| place.count > 0).collect();
        let order = |place: &&Place| (std::cmp::Reverse(place.count - place.error), place.rule);
        all.sort_by(|a, b| order(a).cmp(&order(b)).then_with(|| a.name.cmp(&b.name)));
        all.into_iter().take(number).cloned().collect()
    }
}

/// 16,384 places: every count is exact below some thousands of denied subjects.
const BUCKETS: usize = 1_024;
const BUCKET: usize = 16;
/// A million, at some 18 bytes each.
const DISTINCT_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::random::Random;

    fn hash(subject: u64) -> u64 {
        Random::new(subject).next()
    }

    #[test]
    fn few_subjects_are_counted_exactly() {
        let mut denied = Denied::new(2);
        for subject in 1..=3_000 {
            for _ in 0..subject % 5 + 1 {
                denied.add(subject as usize % 2, hash(subject), || subject.to_string());
            }
        }
        assert_eq!((denied.subjects_of(0), denied.subjects_of(1)), (1_500, 1_500));
        let all = denied.most(9_999);
        assert_eq!((all.len(), denied.subjects()), (3_000, 3_000));
        for Place { count, error, name, .. } in all {
            assert_eq!((count, error), (name.parse::<u64>().unwrap() % 5 + 1, 0));
        }
    }

    #[test]
    fn heavy_subjects_are_found_among_400000_others() {
        let mut denied = Denied::new(1);
        for other in 0..400_000 {
            denied.add(0, hash(1_000 + other), || format!("other-{other}"));
            if other % 400 == 0 {
                (0..10).for_each(|heavy| denied.add(0, hash(heavy), || format!("heavy-{heavy}")));
            }
        }
        let most = denied.most(10);
        assert!(most.iter().all(|place| place.name.starts_with("heavy")), "{most:?}");
        assert!(
            most.iter().all(|place| place.count >= 1_000 && place.count - place.error <= 1_000)
        );
    }
}
