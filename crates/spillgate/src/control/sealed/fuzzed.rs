//! What holds of anything that a store hands out as an entry: it may be another's.

use super::{Seal, decoded, encoded};
use crate::control::table::Stamp;
use crate::engine::redis::control::StoredEntry;
use crate::subject::{SHARED_SECRET, Secret};

/// Panics if what an entry says is not what would be written for it, or a forgery is opened.
pub fn holds(text: &[u8]) {
    let stamp = Stamp { time_us: 1, random: 2 };
    if let Some(entry) = decoded(text, stamp) {
        assert_eq!(encoded(&entry).as_bytes(), text, "{entry:?}");
    }
    let seal = Seal::new(&Secret::new(&SHARED_SECRET));
    let (time_us, random, forget_at_us) = (1, 2, 0);
    let forged = StoredEntry { id: 3, time_us, random, forget_at_us, sealed: text.into() };
    assert_eq!(seal.open(&forged), None);
}
