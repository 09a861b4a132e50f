//! The heaviest of any number of subjects, in memory of a fixed size.
//!
//! Space-Saving, in buckets: a subject goes to one bucket by its hash. One that is not known there takes
//! the place, and the count, of the lightest; the count that it took over is its error. So whoever has
//! more than a small part of all is there, be the others few or countless.

/// Counts of the heaviest subjects. What is searched lies together, a line or two of cache for a bucket.
#[derive(Debug)]
pub(super) struct Sketch {
    /// Part of each subject's hash; 0 where there is none.
    tags: Box<[u64]>,
    counts: Box<[u64]>,
    places: Box<[Place]>,
    total: u64,
}

/// What is known of one subject besides.
#[derive(Clone, Debug)]
struct Place {
    /// As much of the count may be others'.
    error: u64,
    name: Name,
}

/// The values that say who a subject is, one behind the other, in as much room as there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    bytes: [u8; NAME_BYTES],
    length: u8,
    /// Whether it is all there.
    pub(super) whole: bool,
}

impl Default for Sketch {
    fn default() -> Sketch {
        let all = BUCKETS * BUCKET;
        let places = vec![Place { error: 0, name: Name::EMPTY }; all].into();
        Sketch { tags: vec![0; all].into(), counts: vec![0; all].into(), places, total: 0 }
    }
}

impl Sketch {
    /// Counts a subject, whose name is asked for only if it was not there.
    pub(super) fn add(&mut self, hash: u128, count: u64, name: impl FnOnce() -> Name) {
        self.total = self.total.saturating_add(count);
        let tag = hash as u64 | 1;
        let first = (hash >> 64) as usize % BUCKETS * BUCKET;
        let bucket = first..first + BUCKET;
        if let Some(known) = self.tags[bucket.clone()].iter().position(|known| *known == tag) {
            let known = &mut self.counts[first + known];
            *known = known.saturating_add(count);
            return;
        }
        let Some(lightest) = bucket.min_by_key(|place| self.counts[*place]) else { return };
        let error = self.counts[lightest];
        self.tags[lightest] = tag;
        self.counts[lightest] = error.saturating_add(count);
        self.places[lightest] = Place { error, name: name() };
    }

    /// All that was counted.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// What is known of each subject that is there: its hash, how much is surely its own, its name.
    pub(super) fn counts(&self) -> impl Iterator<Item = (u128, u64, &Name)> {
        let known = self.tags.iter().enumerate().filter(|(_, tag)| **tag > 0);
        known.map(|(at, tag)| {
            let hash = (((at / BUCKET) as u128) << 64) | u128::from(*tag);
            let Place { error, name } = &self.places[at];
            (hash, self.counts[at] - error, name)
        })
    }
}

impl Name {
    const EMPTY: Name = Name { bytes: [0; NAME_BYTES], length: 0, whole: true };

    /// The name of these values; where they are too long, as much of each as has room.
    pub(super) fn of<'v>(values: impl ExactSizeIterator<Item = &'v [u8]>) -> Name {
        let mut name = Name::EMPTY;
        let mut left = values.len();
        for value in values {
            let room = (NAME_BYTES - usize::from(name.length)) / left;
            left -= 1;
            // Without room for its length a value is left out.
            let Some(room) = room.checked_sub(1) else {
                name.whole = false;
                continue;
            };
            let kept = value.len().min(room);
            name.whole &= kept == value.len();
            let start = usize::from(name.length);
            name.bytes[start] = kept as u8;
            name.bytes[start + 1..start + 1 + kept].copy_from_slice(&value[..kept]);
            name.length += 1 + kept as u8;
        }
        name
    }

    /// The values again.
    pub(super) fn values(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.bytes[..usize::from(self.length)];
        std::iter::from_fn(move || {
            let (kept, after) = rest.split_first()?;
            let (value, after) = after.split_at(usize::from(*kept));
            rest = after;
            Some(value)
        })
    }
}

/// Twice as many as subjects can have a thousandth each: those are kept with room for chance.
const BUCKETS: usize = 128;
const BUCKET: usize = 16;
/// Two UUIDs, or an address and a name.
const NAME_BYTES: usize = 78;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{SHARED_SECRET, Secret};

    fn named(text: &str) -> Name {
        Name::of([text.as_bytes()].into_iter())
    }

    #[test]
    fn a_name_that_is_too_long_keeps_a_part_of_each_value() {
        let name = Name::of([b"acme".as_slice(), &[b'x'; 200]].into_iter());
        let values: Vec<&[u8]> = name.values().collect();
        assert_eq!((values[0], values[1].len(), name.whole), (&b"acme"[..], 72, false));
        let name = Name::of((0..100).map(|_| b"x".as_slice()));
        assert!(!name.whole && name.values().count() <= 100);
        assert!(named("ann").whole);
    }

    // Four hundred subjects with a little more than a thousandth each.
    #[test]
    fn nobody_with_a_thousandth_is_missed_among_a_million_others() {
        let secret = Secret::new(&SHARED_SECRET);
        let mut sketch = Sketch::default();
        let (heavy, mut each, mut others) = (400_u64, 2_200, 1_000_000);
        if std::env::var_os("SPILLGATE_EVIDENCE").is_some() {
            (each, others) = (10 * each, 10 * others);
        }
        for round in 0..each {
            for subject in 0..heavy {
                let text = format!("heavy-{subject}");
                sketch.add(secret.hash_bytes(text.as_bytes()), 1, || named(&text));
            }
            for other in 0..others / each {
                let text = format!("{round}-{other}");
                sketch.add(secret.hash_bytes(text.as_bytes()), 1, || named(&text));
            }
        }
        assert!(each * 1_000 > sketch.total(), "each has a thousandth");
        let mut counts: Vec<_> = sketch.counts().collect();
        counts.sort_by_key(|(_, count, _)| std::cmp::Reverse(*count));
        let found = counts.iter().take(heavy as usize);
        let found =
            found.filter(|(_, _, name)| name.values().next().unwrap().starts_with(b"heavy"));
        let found = found.count() as u64;
        assert!(found * 100 >= heavy * 99, "{found} of {heavy}");
    }
}
