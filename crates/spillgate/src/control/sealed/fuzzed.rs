//! Checks for any bytes that a store returns as an entry, since they may be forged.

use super::{EntrySeal, decoded, encoded};
use crate::control::table::Stamp;
use crate::subject::{SHARED_SECRET, Secret};
use spillgate_redis::control::StoredEntry;

/// Panics if a decoded entry is not encoded the same way, or if a forgery is opened.
pub fn holds(text: &[u8]) {
    let stamp = Stamp { time_us: 1, random: 2 };
    if let Some(entry) = decoded(text, stamp) {
        assert_eq!(encoded(&entry).as_bytes(), text, "{entry:?}");
    }
    let seal = EntrySeal::new(&Secret::new(&SHARED_SECRET));
    let (time_us, random, forget_at_us) = (1, 2, 0);
    let forged = StoredEntry { id: 3, time_us, random, forget_at_us, sealed: text.into() };
    assert_eq!(seal.open(&forged), None);
}
