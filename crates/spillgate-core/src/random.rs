//! Random numbers, from the keys that the standard library draws for its hash maps.

use std::hash::{BuildHasher, RandomState};

/// Returns a random number that cannot be guessed from earlier ones. It tells ids, instances, waits and the
/// names of counters in memory apart; a key that protects secrets needs more.
pub fn random() -> u64 {
    RandomState::new().hash_one(())
}
