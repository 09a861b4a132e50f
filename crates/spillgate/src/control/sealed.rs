//! Seals entries with the secret, so that a store can keep and pass them on without learning the
//! subjects. Sealing is deterministic, so that an entry can be sealed again for a copy that lost
//! it.

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};

use super::note::ChangeNote;
use super::table::{Effect, Entry, EntryId, GENERATION, MODE, OVERRIDE, Stamp};
use crate::limit::LimitSpec;
use crate::policy::{Mode, RuntimeEntry, Subject};
use crate::subject::{Encoding, Secret};
use spillgate_redis::control::StoredEntry;

mod audit;

pub(crate) use audit::AuditSeal;

/// Seals and opens entries.
pub(crate) struct EntrySeal(XChaCha20Poly1305);

impl EntrySeal {
    pub(crate) fn new(secret: &Secret) -> EntrySeal {
        EntrySeal(XChaCha20Poly1305::new(&secret.derived(b"entries set while running").into()))
    }

    pub(crate) fn sealed(&self, id: EntryId, entry: &Entry) -> StoredEntry {
        let Stamp { time_us, random } = entry.stamp;
        let forget_at_us = entry.forget_at_us().unwrap_or(0);
        let mut stored = StoredEntry { id, time_us, random, forget_at_us, sealed: Vec::new() };
        let msg = encoded(entry);
        let payload = Payload { msg: msg.as_bytes(), aad: &bound_to(&stored) };
        let sealed = self.0.encrypt(&nonce(&stored), payload);
        stored.sealed = sealed.expect("an entry is far below the cipher's 256 GiB");
        stored
    }

    /// Opens an entry. Returns `None` if it was sealed with another secret or by a later version,
    /// or if it is forged.
    pub(crate) fn open(&self, stored: &StoredEntry) -> Option<Entry> {
        let payload = Payload { msg: &stored.sealed, aad: &bound_to(stored) };
        let opened = self.0.decrypt(&nonce(stored), payload).ok()?;
        let stamp = Stamp { time_us: stored.time_us, random: stored.random };
        decoded(&opened, stamp)
    }
}

impl std::fmt::Debug for EntrySeal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EntrySeal(..)")
    }
}

/// Returns the nonce of an entry. One secret never uses a nonce for two different texts, since no
/// two entries have the same stamp.
fn nonce(stored: &StoredEntry) -> XNonce {
    let mut nonce = XNonce::default();
    let parts = [stored.time_us, stored.random, stored.id as u64].map(u64::to_be_bytes);
    nonce.copy_from_slice(parts.as_flattened());
    nonce
}

/// Returns the fields that the store can read but not change or move to another entry.
fn bound_to(stored: &StoredEntry) -> Vec<u8> {
    let numbers = [stored.time_us, stored.random, stored.forget_at_us].map(u64::to_be_bytes);
    [&stored.id.to_be_bytes(), numbers.as_flattened()].concat()
}

fn encoded(entry: &Entry) -> Encoding {
    let mut text = Encoding::new();
    text.part(&entry.expires_at_us.unwrap_or(0).to_le_bytes());
    entry.note.texts().iter().for_each(|part| text.part(part.as_bytes()));
    text.part(match entry.effect {
        Effect::Set => SET,
        Effect::Removed => REMOVED,
    });
    match &entry.what {
        RuntimeEntry::Mode { rule, mode } => {
            [MODE, rule.as_bytes(), mode.name().as_bytes()].iter().for_each(|part| text.part(part));
        }
        RuntimeEntry::Generation { rule, number } => {
            let number = number.to_le_bytes();
            [GENERATION, rule.as_bytes(), &number].iter().for_each(|part| text.part(part));
        }
        RuntimeEntry::Override { rule, subject, limits } => {
            [OVERRIDE, rule.as_bytes()].iter().for_each(|part| text.part(part));
            encode_subject(subject, &mut text);
            limits.iter().for_each(|limit| encode_limit(limit, &mut text));
        }
    }
    text
}

fn encode_subject(subject: &Subject, text: &mut Encoding) {
    text.part(&(subject.len() as u64).to_le_bytes());
    for (attribute, value) in subject {
        text.part(attribute.as_bytes());
        text.part(value);
    }
}

fn encode_limit(limit: &LimitSpec, text: &mut Encoding) {
    let LimitSpec { quota, algorithm, burst, name, unit, time_zone, max_hold } = limit;
    text.part(quota.as_bytes());
    text.part(burst.map(u64::to_le_bytes).as_ref().map_or(&[], |burst| burst));
    for field in [algorithm, name, unit, time_zone, max_hold] {
        // An empty text stands for `None`, since none of these is valid when empty.
        text.part(field.as_deref().unwrap_or_default().as_bytes());
    }
}

fn decoded(text: &[u8], stamp: Stamp) -> Option<Entry> {
    let mut parts = Parts::of(text);
    let expires_at_us = Some(parts.number()?).filter(|end| *end > 0);
    let note = ChangeNote::of_texts([parts.text()?, parts.text()?]);
    let effect = match parts.next()? {
        SET => Effect::Set,
        REMOVED => Effect::Removed,
        _ => return None,
    };
    let what = match parts.next()? {
        MODE => RuntimeEntry::Mode { rule: parts.text()?, mode: Mode::named(&parts.text()?)? },
        GENERATION => RuntimeEntry::Generation { rule: parts.text()?, number: parts.number()? },
        OVERRIDE => RuntimeEntry::Override {
            rule: parts.text()?,
            subject: parts.subject()?,
            limits: parts.limits()?,
        },
        _ => return None,
    };
    parts.is_empty().then_some(Entry { stamp, expires_at_us, what, effect, note })
}

/// The undecoded rest of an encoding.
pub(crate) struct Parts<'t>(&'t [u8]);

impl<'t> Parts<'t> {
    pub(crate) fn of(text: &'t [u8]) -> Parts<'t> {
        Parts(text)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn next(&mut self) -> Option<&'t [u8]> {
        let (length, rest) = self.0.split_first_chunk()?;
        let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        self.0 = rest;
        Some(part)
    }

    pub(crate) fn text(&mut self) -> Option<Box<str>> {
        std::str::from_utf8(self.next()?).ok().map(Into::into)
    }

    fn number(&mut self) -> Option<u64> {
        self.next()?.try_into().ok().map(u64::from_le_bytes)
    }

    fn subject(&mut self) -> Option<Subject> {
        let count = self.number()?;
        (0..count).map(|_| Some((self.text()?, self.next()?.into()))).collect()
    }

    /// Reads the rest as limits.
    fn limits(&mut self) -> Option<Vec<LimitSpec>> {
        let mut limits = Vec::new();
        while !self.0.is_empty() {
            limits.push(self.limit()?);
        }
        Some(limits)
    }

    fn limit(&mut self) -> Option<LimitSpec> {
        let quota = self.text()?.into();
        let burst = match self.next()? {
            [] => None,
            burst => Some(u64::from_le_bytes(burst.try_into().ok()?)),
        };
        let mut field = || Some(Some(String::from(self.text()?)).filter(|text| !text.is_empty()));
        let [algorithm, name, unit, time_zone, max_hold] =
            [field()?, field()?, field()?, field()?, field()?];
        Some(LimitSpec { quota, algorithm, burst, name, unit, time_zone, max_hold })
    }
}

// These are stored, so they never change.
const SET: &[u8] = b"+";
const REMOVED: &[u8] = b"-";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::SHARED_SECRET;
    use proptest::prelude::*;

    fn limit() -> impl Strategy<Value = LimitSpec> {
        let text = || prop::option::of("[a-z]{1,9}");
        ("[ -~]{0,9}", prop::option::of(any::<u64>()), text(), text(), text(), text(), text())
            .prop_map(|(quota, burst, algorithm, name, unit, time_zone, max_hold)| LimitSpec {
                quota,
                algorithm,
                burst,
                name,
                unit,
                time_zone,
                max_hold,
            })
    }

    fn what() -> impl Strategy<Value = RuntimeEntry> {
        let rule = || "[a-z]{1,9}".prop_map(Box::<str>::from);
        let pair =
            ("[a-z]{1,9}", any::<Vec<u8>>()).prop_map(|(name, value)| (name.into(), value.into()));
        let subject = prop::collection::vec(pair, 0..4).prop_map(Subject::from);
        let modes = prop::sample::select(vec![Mode::Enforce, Mode::Shadow, Mode::Off]);
        prop_oneof![
            (rule(), modes).prop_map(|(rule, mode)| RuntimeEntry::Mode { rule, mode }),
            (rule(), any::<u64>())
                .prop_map(|(rule, number)| RuntimeEntry::Generation { rule, number }),
            (rule(), subject, prop::collection::vec(limit(), 0..4)).prop_map(
                |(rule, subject, limits)| RuntimeEntry::Override { rule, subject, limits }
            ),
        ]
    }

    fn entry() -> impl Strategy<Value = Entry> {
        let stamp =
            (0u64..1 << 50, 0u64..1 << 48).prop_map(|(time_us, random)| Stamp { time_us, random });
        let effect = prop::sample::select(vec![Effect::Set, Effect::Removed]);
        let note = ("\\PC{0,70}", "\\PC{0,9}")
            .prop_map(|(actor, reason)| ChangeNote::by(actor).because(reason));
        (stamp, prop::option::of(1u64..1 << 50), what(), effect, note).prop_map(
            |(stamp, expires_at_us, what, effect, note)| Entry {
                stamp,
                expires_at_us,
                what,
                effect,
                note,
            },
        )
    }

    proptest! {
        #[test]
        fn a_sealed_entry_opens_unchanged_and_seals_identically(id: u128, entry in entry()) {
            let seal = EntrySeal::new(&Secret::new(&SHARED_SECRET));
            let stored = seal.sealed(id, &entry);
            prop_assert_eq!(seal.sealed(id, &entry), stored.clone());
            prop_assert_eq!(seal.open(&stored), Some(entry));
        }

        #[test]
        fn a_flipped_bit_or_another_secret_opens_nothing(
            id: u128, entry in entry(), bit: prop::sample::Index
        ) {
            let seal = EntrySeal::new(&Secret::new(&SHARED_SECRET));
            let stored = seal.sealed(id, &entry);
            prop_assert_eq!(EntrySeal::new(&Secret::new(&[7; 16])).open(&stored), None);
            let mut flipped = stored.clone();
            let bit = bit.index(stored.sealed.len() * 8);
            flipped.sealed[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(seal.open(&flipped), None);
            for moved in [
                StoredEntry { id: id ^ 1, ..stored.clone() },
                StoredEntry { time_us: stored.time_us + 1, ..stored.clone() },
                StoredEntry { random: stored.random + 1, ..stored.clone() },
                StoredEntry { forget_at_us: stored.forget_at_us + 1, ..stored.clone() },
            ] {
                prop_assert_eq!(seal.open(&moved), None);
            }
        }

        #[test]
        fn arbitrary_bytes_are_decoded_or_rejected_without_a_panic(text: Vec<u8>) {
            let _ = decoded(&text, Stamp::default());
        }
    }
}
