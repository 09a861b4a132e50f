//! Random numbers, from the keys that the standard library draws for its hash maps.

use std::hash::{BuildHasher, RandomState};

/// Returns a random number that cannot be guessed from earlier ones. It tells ids, instances and waits apart; a key
/// needs more.
pub fn random() -> u64 {
    RandomState::new().hash_one(())
}
