//! The heaviest of any number of subjects, in memory of a fixed size.
//!
//! Space-Saving, in buckets: a subject goes to one bucket by its hash. A subject that is not in its bucket takes the
//! place and the count of the lightest; the count that it took over is its error. So each subject with more than a small
//! part of the whole is present, however many others there are.

/// Counts of the heaviest subjects. The tags of a bucket lie together, in one or two cache lines.
#[derive(Debug)]
pub struct Sketch {
    /// A part of each subject's hash; 0 if the place is empty.
    tags: Box<[u64]>,
    counts: Box<[u64]>,
    places: Box<[Place]>,
    total: u64,
}

/// The name of one subject, and the error of its count.
#[derive(Clone, Debug)]
struct Place {
    /// The part of the count that may be of other subjects.
    error: u64,
    name: Name,
}

/// The values of a subject, one after the other, cut to the room that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    bytes: [u8; NAME_BYTES],
    length: u8,
    /// Whether no value is cut.
    pub(crate) whole: bool,
}

impl Default for Sketch {
    fn default() -> Sketch {
        let all = BUCKETS * BUCKET;
        let places = vec![Place { error: 0, name: Name::EMPTY }; all].into();
        Sketch { tags: vec![0; all].into(), counts: vec![0; all].into(), places, total: 0 }
    }
}

impl Sketch {
    /// Counts a subject. Makes its name only if the subject was not present.
    pub fn add(&mut self, hash: u128, count: u64, name: impl FnOnce() -> Name) {
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

    /// Returns the sum of all counts.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns each present subject: its hash, the part of its count that is certainly its own, and its name.
    pub fn counts(&self) -> impl Iterator<Item = (u128, u64, &Name)> {
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

    /// Returns the name of these values; long values are cut to equal parts of the room.
    pub fn from_values<'v>(values: impl ExactSizeIterator<Item = &'v [u8]>) -> Name {
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

    /// Returns the values.
    pub fn values(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.bytes[..usize::from(self.length)];
        std::iter::from_fn(move || {
            let (kept, after) = rest.split_first()?;
            let (value, after) = after.split_at(usize::from(*kept));
            rest = after;
            Some(value)
        })
    }
}

/// Twice the number of subjects that can have a thousandth each, because hashes spread unevenly.
const BUCKETS: usize = 128;
const BUCKET: usize = 16;
/// Two UUIDs, or an address and a name.
const NAME_BYTES: usize = 78;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{SHARED_SECRET, Secret};

    fn named(text: &str) -> Name {
        Name::from_values([text.as_bytes()].into_iter())
    }

    #[test]
    fn a_name_that_is_too_long_keeps_a_part_of_each_value() {
        let name = Name::from_values([b"acme".as_slice(), &[b'x'; 200]].into_iter());
        let values: Vec<&[u8]> = name.values().collect();
        assert_eq!((values[0], values[1].len(), name.whole), (&b"acme"[..], 72, false));
        let name = Name::from_values((0..100).map(|_| b"x".as_slice()));
        assert!(!name.whole && name.values().count() <= 100);
        assert!(named("ann").whole);
    }

    // Four hundred subjects with a little more than a thousandth each.
    #[test]
    fn finds_each_subject_with_a_thousandth_among_a_million_others() {
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
