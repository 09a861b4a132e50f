//! Seals changes for the audit in the fleet's record, so that a store learns neither subjects nor reasons.

use chacha20poly1305::aead::{Aead, KeyInit};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};

use super::{Parts, encode_limit, encode_subject};
use crate::control::note::ChangeNote;
use crate::control::random;
use crate::control::table::Stamp;
use crate::control::{AuditRecord, AuditedAction};
use crate::policy::Mode;
use crate::request::Cost;
use crate::subject::{Encoding, Secret};

/// Seals and opens changes, or events of instances. Its key is not that of entries, since a change and its entry have one
/// stamp.
pub(crate) struct AuditSeal(XChaCha20Poly1305);

impl AuditSeal {
    pub(crate) fn new(secret: &Secret) -> AuditSeal {
        AuditSeal(XChaCha20Poly1305::new(&secret.derived(b"audit of changes").into()))
    }

    pub(crate) fn of_events(secret: &Secret) -> AuditSeal {
        AuditSeal(XChaCha20Poly1305::new(&secret.derived(b"events of instances").into()))
    }

    /// Returns the nonce, which begins with the stamp, and the sealed change.
    pub(crate) fn sealed(&self, stamp: Stamp, record: &AuditRecord) -> Vec<u8> {
        self.sealed_text(stamp, &encoded(record))
    }

    /// Opens a change. Returns `None` if it was sealed with another secret or by a later version, or if it is forged.
    pub(crate) fn open(&self, stored: &[u8]) -> Option<(Stamp, AuditRecord)> {
        let (stamp, text) = self.open_text(stored)?;
        Some((stamp, decoded(&text, stamp.time_us)?))
    }

    pub(crate) fn sealed_text(&self, stamp: Stamp, text: &Encoding) -> Vec<u8> {
        let nonce = [stamp.time_us, stamp.random, random()].map(u64::to_be_bytes);
        let sealed = self.0.encrypt(&nonce_of(nonce.as_flattened()), text.as_bytes());
        let sealed = sealed.expect("a change is far below the cipher's 256 GiB");
        [nonce.as_flattened(), &sealed].concat()
    }

    pub(crate) fn open_text(&self, stored: &[u8]) -> Option<(Stamp, Vec<u8>)> {
        let (nonce, sealed) = stored.split_at_checked(NONCE_BYTES)?;
        let (time_us, rest) = nonce.split_first_chunk()?;
        let (random, _) = rest.split_first_chunk()?;
        let [time_us, random] = [time_us, random].map(|number| u64::from_be_bytes(*number));
        let opened = self.0.decrypt(&nonce_of(nonce), sealed).ok()?;
        Some((Stamp { time_us, random }, opened))
    }
}

impl std::fmt::Debug for AuditSeal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuditSeal(..)")
    }
}

fn nonce_of(bytes: &[u8]) -> XNonce {
    let mut nonce = XNonce::default();
    nonce.copy_from_slice(bytes);
    nonce
}

fn encoded(record: &AuditRecord) -> Encoding {
    let AuditRecord { at_us: _, note, rule, subject, action, expires_at_us } = record;
    let mut text = Encoding::new();
    text.part(&expires_at_us.unwrap_or(0).to_le_bytes());
    note.texts().iter().for_each(|part| text.part(part.as_bytes()));
    text.part(rule.as_bytes());
    encode_subject(subject, &mut text);
    text.part(action.name().as_bytes());
    match action {
        AuditedAction::SetMode(mode) => text.part(mode.name().as_bytes()),
        AuditedAction::SetOverride(limits) => {
            limits.iter().for_each(|limit| encode_limit(limit, &mut text));
        }
        AuditedAction::Charge(cost) | AuditedAction::Refund(cost) => {
            for (unit, amount) in cost.amounts() {
                text.part(unit.as_bytes());
                text.part(&amount.to_le_bytes());
            }
        }
        AuditedAction::ClearMode
        | AuditedAction::RemoveOverride
        | AuditedAction::ResetRule
        | AuditedAction::ResetSubject => {}
    }
    text
}

fn decoded(text: &[u8], at_us: u64) -> Option<AuditRecord> {
    let mut parts = Parts(text);
    let expires_at_us = Some(parts.number()?).filter(|end| *end > 0);
    let note = ChangeNote::of_texts([parts.text()?, parts.text()?]);
    let (rule, subject) = (parts.text()?, parts.subject()?);
    let action = match &*parts.text()? {
        "set-mode" => AuditedAction::SetMode(Mode::named(&parts.text()?)?),
        "clear-mode" => AuditedAction::ClearMode,
        "set-override" => AuditedAction::SetOverride(parts.limits()?),
        "remove-override" => AuditedAction::RemoveOverride,
        "reset-rule" => AuditedAction::ResetRule,
        "reset-subject" => AuditedAction::ResetSubject,
        "charge" => AuditedAction::Charge(parts.cost()?),
        "refund" => AuditedAction::Refund(parts.cost()?),
        _ => return None,
    };
    let record = AuditRecord { at_us, note, rule, subject, action, expires_at_us };
    parts.0.is_empty().then_some(record)
}

impl Parts<'_> {
    /// Reads the rest as a cost.
    fn cost(&mut self) -> Option<Cost<'static>> {
        let mut cost = Cost::requests(0);
        while !self.0.is_empty() {
            cost = cost.and(self.text()?.into_string(), self.number()?);
        }
        Some(cost)
    }
}

const NONCE_BYTES: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::LimitSpec;
    use crate::policy::Subject;
    use crate::subject::SHARED_SECRET;

    const STAMP: Stamp = Stamp { time_us: 7, random: 8 };

    fn record(action: AuditedAction) -> AuditRecord {
        AuditRecord {
            at_us: STAMP.time_us,
            note: ChangeNote::by("ann").because("ticket 17"),
            rule: "api".into(),
            subject: Subject::from([("tenant".into(), b"canary"[..].into())]),
            action,
            expires_at_us: Some(9),
        }
    }

    #[test]
    fn every_action_opens_as_it_was_sealed_and_shows_nothing_of_it() {
        let seal = AuditSeal::new(&Secret::new(&SHARED_SECRET));
        let cost = || Cost::of_unit("tokens", 7).and("requests", 2);
        let limits = vec![LimitSpec::new("5/day").burst(9), LimitSpec::new("block")];
        for action in [
            AuditedAction::SetMode(Mode::Off),
            AuditedAction::ClearMode,
            AuditedAction::SetOverride(limits),
            AuditedAction::RemoveOverride,
            AuditedAction::ResetRule,
            AuditedAction::ResetSubject,
            AuditedAction::Charge(cost()),
            AuditedAction::Refund(cost()),
        ] {
            let record = record(action);
            let sealed = seal.sealed(STAMP, &record);
            let (stamp, opened) = seal.open(&sealed).unwrap();
            assert_eq!((stamp, format!("{opened:?}")), (STAMP, format!("{record:?}")));
            assert!(!sealed.windows(6).any(|part| part == b"canary"));
        }
    }

    #[test]
    fn another_secret_or_a_flipped_bit_opens_nothing() {
        let seal = AuditSeal::new(&Secret::new(&SHARED_SECRET));
        let sealed = seal.sealed(STAMP, &record(AuditedAction::ResetRule));
        assert!(AuditSeal::new(&Secret::new(&[7; 16])).open(&sealed).is_none());
        for bit in 0..8 * sealed.len() {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(seal.open(&flipped).is_none(), "bit {bit}");
        }
        (0..sealed.len()).for_each(|length| assert!(seal.open(&sealed[..length]).is_none()));
    }
}
