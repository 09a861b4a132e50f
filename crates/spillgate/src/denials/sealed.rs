//! Seals rule, limit and subject of a count with the secret, so that the store keeps no caller's value in clear.

use std::sync::Arc;

use chacha20poly1305::aead::{Aead, KeyInit};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};

use super::{DenialCount, Denied};
use crate::control::Parts;
use crate::decision::Reason;
use crate::subject::{Encoding, Secret};
use spillgate_redis::denials::{ALLOWED_UNKNOWN, StoredDenials};

/// Seals and opens counts.
pub(crate) struct DenialSeal {
    cipher: XChaCha20Poly1305,
    secret: Secret,
}

impl DenialSeal {
    pub(crate) fn new(secret: &Secret) -> DenialSeal {
        let cipher = XChaCha20Poly1305::new(&secret.derived(b"denials").into());
        DenialSeal { cipher, secret: secret.clone() }
    }

    pub(crate) fn sealed(&self, field: u64, count: &DenialCount) -> StoredDenials {
        let text = encoded(&count.subject);
        // A keyed hash of the text, so one secret never uses a nonce for two different texts.
        let hash = self.secret.hash(&text).to_be_bytes();
        let sealed = self.cipher.encrypt(&nonce(field, &hash), text.as_bytes());
        let sealed = sealed.expect("a subject is far below the cipher's 256 GiB");
        StoredDenials {
            field,
            denied: count.denied,
            allowed: count.allowed.unwrap_or(ALLOWED_UNKNOWN),
            minutes: count.minutes,
            reason: code(count.reason),
            sealed: [&hash[..], &sealed].concat(),
        }
    }

    /// Opens a count. Returns `None` if it was sealed with another secret or by a later version, or is forged.
    pub(crate) fn open(&self, stored: &StoredDenials) -> Option<DenialCount> {
        let (hash, sealed) = stored.sealed.split_first_chunk()?;
        let text = self.cipher.decrypt(&nonce(stored.field, hash), sealed).ok()?;
        let reason = REASONS.get(usize::from(stored.reason))?;
        let StoredDenials { denied, minutes, .. } = *stored;
        let allowed = Some(stored.allowed).filter(|allowed| *allowed != ALLOWED_UNKNOWN);
        let subject = Arc::new(decoded(&text)?);
        Some(DenialCount { denied, allowed, minutes, reason: *reason, subject })
    }
}

impl std::fmt::Debug for DenialSeal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DenialSeal(..)")
    }
}

/// The nonce has the field, so that the store cannot move a text to another one.
fn nonce(field: u64, hash: &[u8; 16]) -> XNonce {
    let mut nonce = XNonce::default();
    nonce[..8].copy_from_slice(&field.to_be_bytes());
    nonce[8..].copy_from_slice(hash);
    nonce
}

fn encoded(subject: &Denied) -> Encoding {
    let mut text = Encoding::new();
    let whole: &[u8] = if subject.is_whole { WHOLE } else { CUT };
    [whole, subject.rule.as_bytes(), subject.limit.as_bytes()]
        .iter()
        .for_each(|part| text.part(part));
    for (name, value) in &subject.attributes {
        text.part(name.as_bytes());
        text.part(value);
    }
    text
}

fn decoded(text: &[u8]) -> Option<Denied> {
    let mut parts = Parts::of(text);
    let is_whole = match parts.next()? {
        WHOLE => true,
        CUT => false,
        _ => return None,
    };
    let (rule, limit) = (parts.text()?, parts.text()?);
    let mut attributes = Vec::new();
    while !parts.is_empty() {
        attributes.push((parts.text()?, parts.next()?.into()));
    }
    Some(Denied { rule, limit, attributes, is_whole })
}

fn code(reason: Reason) -> u8 {
    REASONS.iter().position(|it| *it == reason).map_or(u8::MAX, |code| code as u8)
}

// These are stored, so they never change.
const WHOLE: &[u8] = b"+";
const CUT: &[u8] = b"-";
/// The code of a reason is its place.
const REASONS: [Reason; 5] = [
    Reason::Blocked,
    Reason::CostExceedsLimit,
    Reason::LimitExceeded,
    Reason::StoreUnavailable,
    Reason::Overloaded,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::SHARED_SECRET;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_sealed_count_opens_unchanged_but_not_in_another_field_or_by_another_secret(
            field: u64, denied: u32, allowed in proptest::option::of(0..u32::MAX), minutes in 0u64..1 << 60,
            reason in 0usize..5, value: Vec<u8>, name in "[a-z]{1,9}",
        ) {
            let attributes = [(&name[..], &value[..]), ("other", b"")].into_iter();
            let subject = Denied::new("api", "tokens", attributes).unwrap();
            let (reason, subject) = (REASONS[reason], subject.into());
            let count = DenialCount { denied, allowed, minutes, reason, subject };
            let seal = DenialSeal::new(&Secret::new(&SHARED_SECRET));
            let stored = seal.sealed(field, &count);
            let opened = seal.open(&stored).unwrap();
            prop_assert_eq!((opened.denied, opened.allowed), (denied, allowed));
            prop_assert_eq!((opened.minutes, opened.reason), (minutes, reason));
            prop_assert_eq!(&opened.subject, &count.subject);
            prop_assert_eq!(opened.subject.is_whole, value.len() <= 64);
            prop_assert!(DenialSeal::new(&Secret::new(&[7; 16])).open(&stored).is_none());
            let moved = StoredDenials { field: field ^ 1, ..stored };
            prop_assert!(seal.open(&moved).is_none());
        }

        #[test]
        fn arbitrary_bytes_are_decoded_or_rejected_without_a_panic(text: Vec<u8>) {
            let _ = decoded(&text);
        }
    }
}
