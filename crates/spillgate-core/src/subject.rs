//! Subjects as keyed hashes. No byte of a client's values reaches a store. Clients
//! without the secret cannot choose subjects that fall on one shard, or guess the subject of a key.

use std::hash::Hasher;

use siphasher::sip128::SipHasher13;
use smallvec::SmallVec;

/// The domain of requests and rules without a domain.
pub const DEFAULT_DOMAIN: &str = "default";

/// The namespace of fleets that have none of their own.
pub const DEFAULT_NAMESPACE: &str = "default";

/// The keys of one rule's state for one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubjectKey {
    /// The hash that chooses the Redis node or slot: of the anchor, or else of the subject. In memory
    /// `id` chooses the lock shard.
    pub tag: u128,
    /// The hash of domain, rule, generation and subject; for an inline limit that of domain and key,
    /// and its period.
    pub id: u128,
    /// The hash of the rule alone. New subjects of a rule share a counter when memory is full of
    /// live ones.
    pub rule: u128,
}

/// Hashes subjects under one secret, by SipHash-1-3 with 128 bits. Every instance of a fleet has
/// the same secret.
#[derive(Clone)]
pub struct Secret {
    hasher: SipHasher13,
    /// The hasher after the prefix of inline keys in the domain `default`.
    in_default_domain: SipHasher13,
}

impl Secret {
    /// Makes a secret from 16 bytes.
    pub fn new(bytes: &[u8; 16]) -> Secret {
        let hasher = SipHasher13::new_with_key(bytes);
        Secret { hasher, in_default_domain: in_domain(hasher, DEFAULT_DOMAIN) }
    }

    /// Returns the secret of a namespace. Under the secrets of two namespaces nothing has the same hash.
    pub fn in_namespace(&self, namespace: &str) -> Secret {
        if namespace == DEFAULT_NAMESPACE {
            return self.clone();
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.derived(&[b"namespace ", namespace.as_bytes()].concat())[..16]);
        Secret::new(&bytes)
    }

    /// Returns the hash of an encoding.
    #[inline]
    pub fn hash(&self, encoding: &Encoding) -> u128 {
        self.hash_bytes(&encoding.0)
    }

    /// Returns the keys of a caller's key in the domain `default`, for inline limits.
    #[inline]
    pub fn inline_key(&self, key: &str) -> SubjectKey {
        SubjectKey::inline(self.in_default_domain.hash(key.as_bytes()).as_u128())
    }

    /// Returns the keys of a caller's key in any domain, for inline limits.
    #[inline]
    pub fn inline_key_in(&self, domain: &str, key: &str) -> SubjectKey {
        if domain == DEFAULT_DOMAIN {
            return self.inline_key(key);
        }
        let hasher = in_domain(self.hasher, domain);
        SubjectKey::inline(hasher.hash(key.as_bytes()).as_u128())
    }

    /// Returns the hash of bytes that are already an injective encoding.
    #[inline]
    pub fn hash_bytes(&self, bytes: &[u8]) -> u128 {
        self.hasher.hash(bytes).as_u128()
    }

    /// Returns a number that is equal for equal secrets and does not reveal them: part of a keyed
    /// hash of a constant.
    pub fn fingerprint(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.derived(b"fingerprint")[..8]);
        u64::from_le_bytes(bytes)
    }

    /// Derives a separate key for another use of the secret.
    pub fn derived(&self, purpose: &[u8]) -> [u8; 32] {
        let mut key = [0; 32];
        for (half, number) in key.chunks_mut(16).zip(0u8..) {
            let mut encoding = Encoding::new();
            [b"#derived".as_slice(), purpose, &[number]]
                .iter()
                .for_each(|part| encoding.part(part));
            half.copy_from_slice(&self.hash(&encoding).to_le_bytes());
        }
        key
    }
}

impl SubjectKey {
    fn inline(id: u128) -> SubjectKey {
        SubjectKey { tag: id, id, rule: 0 }
    }

    /// Returns the keys of an inline limit of one period. A limit by the second must not end what a
    /// limit by the day counts under the same key.
    #[inline]
    pub(crate) fn of_period(self, period: u64) -> SubjectKey {
        SubjectKey { id: self.id ^ u128::from(period), ..self }
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Hashes the prefix of an inline key: the domain after its length, padded to whole words, for
/// which the hasher needs no buffer.
fn in_domain(mut hasher: SipHasher13, domain: &str) -> SipHasher13 {
    let length = Encoding::length(domain.as_bytes());
    let filling =
        (length.len() + domain.len()).next_multiple_of(WORD) - length.len() - domain.len();
    hasher.write(&length);
    hasher.write(domain.as_bytes());
    hasher.write(&[0; WORD][..filling]);
    hasher
}

/// An injective encoding of a list of parts: each part follows its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoding(SmallVec<[u8; 128]>);

impl Encoding {
    /// Makes an empty encoding.
    #[inline]
    pub fn new() -> Encoding {
        Encoding::default()
    }

    /// Adds a part.
    #[inline]
    pub fn part(&mut self, part: &[u8]) {
        self.0.extend_from_slice(&Encoding::length(part));
        self.0.extend_from_slice(part);
    }

    /// No part comes near 4 GiB, since requests are bounded and policies are files.
    fn length(part: &[u8]) -> [u8; 4] {
        (part.len() as u32).to_le_bytes()
    }

    /// Returns the encoded bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Hashes parts without a secret, with the same result in every instance and version. For texts of
/// the operator, which need none.
pub fn fixed_hash<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> u128 {
    let mut encoding = Encoding::new();
    parts.into_iter().for_each(|part| encoding.part(part));
    SipHasher13::new().hash(encoding.as_bytes()).as_u128()
}

/// The word size of the hash, in bytes.
const WORD: usize = 8;
/// The secret used if none is set. It is the same everywhere, so that a fleet agrees without
/// settings.
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
        // ACCIDENTS 31: parts were joined without a separator, so that two subjects shared a key.
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
