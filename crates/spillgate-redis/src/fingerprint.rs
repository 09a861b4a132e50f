//! The settings that all instances on one store must share; heartbeats carry them.
//!
//! Instances that differ keep separate counters for the same subject, so each limit is admitted more than once.

use std::fmt;

use super::guard::Rings;
use super::keys::SCHEMA;
use super::ring::Seal;
use crate::store::{InstanceMismatch, Presence, StoreOptions};
use crate::subject::Secret;

/// The settings that decide the key, the server and the format of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    schema: u32,
    secret: u64,
    previous_secret: Option<u64>,
    ring: Seal,
    previous_ring: Option<Seal>,
}

/// An instance as others see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instance {
    pub(super) fingerprint: Fingerprint,
    pub(super) presence: Presence,
}

impl Instance {
    pub(super) fn new(options: &StoreOptions, rings: Option<Rings>) -> Instance {
        let fingerprint = Fingerprint::new(&options.secret, rings);
        Instance { fingerprint, presence: options.presence }
    }
}

impl Fingerprint {
    pub(super) fn new(secret: &Secret, rings: Option<Rings>) -> Fingerprint {
        Fingerprint {
            schema: SCHEMA,
            secret: secret.fingerprint(),
            previous_secret: secret.previous().map(Secret::fingerprint),
            ring: rings.map_or(Seal::NONE, |rings| rings.own),
            previous_ring: rings.and_then(|rings| rings.previous),
        }
    }

    /// Parses the output of `Display`; `None` for the heartbeat of a version with another layout.
    pub(super) fn read(text: &str) -> Option<Fingerprint> {
        let mut words = text.split(':');
        let mut word = || words.next();
        let schema = word()?.parse().ok()?;
        let secret = hexadecimal(word()?)?;
        let previous_secret = Some(hexadecimal(word()?)?).filter(|secret| *secret != 0);
        let fingerprint = hexadecimal(word()?)?;
        let previous = Seal { fingerprint: hexadecimal(word()?)?, number: word()?.parse().ok()? };
        let ring = Seal { fingerprint, number: word()?.parse().ok()? };
        let previous_ring = Some(previous).filter(|previous| *previous != Seal::NONE);
        let whole = word().is_none();
        whole.then_some(Fingerprint { schema, secret, previous_secret, ring, previous_ring })
    }

    /// Returns which settings differ from those of another kind of instance, of which there are `instances`.
    pub(super) fn mismatch(&self, other: Option<&Fingerprint>, instances: u32) -> InstanceMismatch {
        let count = |differs: bool| if differs { instances } else { 0 };
        let Some(other) = other else {
            return InstanceMismatch { schema: instances, ..InstanceMismatch::default() };
        };
        let secrets =
            agree((self.secret, self.previous_secret), (other.secret, other.previous_secret));
        let rings = agree((self.ring, self.previous_ring), (other.ring, other.previous_ring));
        InstanceMismatch {
            secret: count(!secrets),
            ring: count(!rings),
            schema: count(self.schema != other.schema),
        }
    }
}

/// The form in a heartbeat. The ring's number comes last: the script reads it.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fingerprint { schema, secret, previous_secret, ring, previous_ring } = self;
        let (before, previous) =
            (previous_secret.unwrap_or(0), previous_ring.unwrap_or(Seal::NONE));
        write!(
            f,
            "{schema}:{secret:x}:{before:x}:{:x}:{:x}:{}:{}",
            ring.fingerprint, previous.fingerprint, previous.number, ring.number
        )
    }
}

/// Returns whether two settings agree.
///
/// During a planned change, one side names the other's setting as the previous one, and charges there too.
fn agree<T: PartialEq>(own: (T, Option<T>), other: (T, Option<T>)) -> bool {
    own.0 == other.0
        || own.1.is_some_and(|previous| previous == other.0)
        || other.1.is_some_and(|previous| previous == own.0)
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> Secret {
        Secret::new(&[byte; 16])
    }

    fn rings(number: u32, previous: Option<u32>) -> Option<Rings> {
        let seal = |number: u32| Seal { number, fingerprint: 100 + u64::from(number) };
        Some(Rings { own: seal(number), previous: previous.map(seal) })
    }

    #[test]
    fn a_fingerprint_survives_a_heartbeat() {
        let both = secret(2).after(secret(1));
        for fingerprint in [
            Fingerprint::new(&secret(1), None),
            Fingerprint::new(&both, rings(1, None)),
            Fingerprint::new(&both, rings(2, Some(1))),
        ] {
            assert_eq!(Fingerprint::read(&fingerprint.to_string()), Some(fingerprint));
        }
        for other in ["", "0", "1:2:3", "1:2:3:4:5:6:x", "1:2:3:4:5:6:7:8"] {
            assert_eq!(Fingerprint::read(other), None, "{other}");
        }
    }

    #[test]
    fn instances_with_other_secrets_or_rings_are_counted() {
        let own = Fingerprint::new(&secret(1), rings(1, None));
        let counted = |other: &Fingerprint| own.mismatch(Some(other), 3);
        let none = InstanceMismatch::default();
        assert_eq!(counted(&own), none);
        let other_secret = Fingerprint::new(&secret(2), rings(1, None));
        assert_eq!(counted(&other_secret), InstanceMismatch { secret: 3, ..none });
        let other_ring = Fingerprint::new(&secret(1), rings(2, None));
        assert_eq!(counted(&other_ring), InstanceMismatch { ring: 3, ..none });
        let no_ring = Fingerprint::new(&secret(1), None);
        assert_eq!(counted(&no_ring), InstanceMismatch { ring: 3, ..none });
        let other_schema = Fingerprint { schema: own.schema + 1, ..own };
        assert_eq!(counted(&other_schema), InstanceMismatch { schema: 3, ..none });
        assert_eq!(own.mismatch(None, 3), InstanceMismatch { schema: 3, ..none });
    }

    #[test]
    fn a_planned_change_of_secret_or_ring_is_no_mismatch_on_either_side() {
        let old = Fingerprint::new(&secret(1), rings(1, None));
        let changing = Fingerprint::new(&secret(2).after(secret(1)), rings(2, Some(1)));
        let new = Fingerprint::new(&secret(2), rings(2, None));
        for (one, other) in [(old, changing), (changing, new)] {
            assert!(one.mismatch(Some(&other), 1).is_none());
            assert!(other.mismatch(Some(&one), 1).is_none());
        }
        let both = InstanceMismatch { secret: 1, ring: 1, schema: 0 };
        assert_eq!(old.mismatch(Some(&new), 1), both, "neither charges what the other does");
    }
}
