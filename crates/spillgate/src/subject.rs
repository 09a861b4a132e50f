//! Who is limited, as keyed hashes: no byte of a caller's reaches a store, and nobody without the
//! secret can aim two subjects at one shard or guess who is behind a key.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};
use smallvec::SmallVec;

/// The name of one rule's state for one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubjectKey {
    /// What chooses the shard: the anchor, or else the subject.
    pub tag: u128,
    /// Domain, rule, generation and subject.
    pub id: u128,
    /// The rule alone: whose new subjects share a tier when memory is full of live ones.
    pub rule: u128,
}

/// Hashes subjects under one secret. Every process of a fleet holds the same.
#[derive(Clone)]
pub struct Secret {
    hasher: SipHasher24,
    /// With what all ad hoc keys begin: no rule has an empty domain and an empty name.
    ad_hoc: SipHasher24,
}

impl Secret {
    /// From 16 bytes.
    pub fn new(bytes: &[u8; 16]) -> Secret {
        let hasher = SipHasher24::new_with_key(bytes);
        Secret { hasher, ad_hoc: with_parts(hasher, [b"", b""]) }
    }

    /// The hash of an encoding.
    pub fn hash(&self, encoding: &Encoding) -> u128 {
        self.hash_bytes(&encoding.0)
    }

    /// The hash of a key that comes with its limit.
    pub fn hash_ad_hoc(&self, domain: &str, key: &str) -> u128 {
        with_parts(self.ad_hoc, [domain.as_bytes(), key.as_bytes()]).finish128().as_u128()
    }

    /// The hash of bytes that are an injective encoding already.
    pub fn hash_bytes(&self, bytes: &[u8]) -> u128 {
        self.hasher.hash(bytes).as_u128()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Takes in the encoding of `parts`, without making one.
fn with_parts(mut hasher: SipHasher24, parts: [&[u8]; 2]) -> SipHasher24 {
    for part in parts {
        hasher.write(&Encoding::length(part));
        hasher.write(part);
    }
    hasher
}

/// Parts glued so that no two lists of parts look alike: each part behind its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoding(SmallVec<[u8; 160]>);

impl Encoding {
    /// Nothing yet.
    pub fn new() -> Encoding {
        Encoding::default()
    }

    /// One part more.
    pub fn part(&mut self, part: &[u8]) {
        self.0.extend_from_slice(&Encoding::length(part));
        self.0.extend_from_slice(part);
    }

    /// No part comes near 4 GiB: requests are bounded, and policies are files.
    fn length(part: &[u8]) -> [u8; 4] {
        (part.len() as u32).to_le_bytes()
    }

    /// All of another encoding, in front of what follows.
    pub fn prefix(encoded: &[u8]) -> Encoding {
        Encoding(SmallVec::from_slice(encoded))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The secret of those who set none: the same everywhere, so that a fleet agrees without settings.
pub const SHARED_SECRET: [u8; 16] = *b"spillgate shared";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(parts: &[Vec<u8>]) -> Encoding {
        let mut encoding = Encoding::new();
        parts.iter().for_each(|part| encoding.part(part));
        encoding
    }

    proptest! {
        // ACCIDENTS 31: parts glued without a separator, two subjects shared a key.
        #[test]
        fn two_lists_of_parts_never_share_an_encoding(
            a: Vec<Vec<u8>>, b: Vec<Vec<u8>>
        ) {
            prop_assert_eq!(a == b, encoded(&a) == encoded(&b));
        }

        #[test]
        fn moving_a_byte_over_a_border_changes_the_key(head: Vec<u8>, tail: Vec<u8>, byte: u8) {
            let secret = Secret::new(&SHARED_SECRET);
            let left = encoded(&[[&head[..], &[byte]].concat(), tail.clone()]);
            let right = encoded(&[head, [&[byte], &tail[..]].concat()]);
            prop_assert_ne!(secret.hash(&left), secret.hash(&right));
        }
    }
}
