//! The settings that all instances on one store must share; each instance reports them.
//!
//! Instances that differ keep separate counters for the same subject, so while both kinds run, a subject can get each
//! limit once from either.

use std::fmt;

use super::ring;
use crate::calls::keys::SCHEMA;
use crate::store::{InstanceMismatch, Presence, Store, StoreOptions};
use crate::subject::Secret;

/// The settings that decide the key, the server and the format of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    schema: u32,
    secret: u64,
    /// The hash of the ring's nodes and weights; 0 for a store that is no ring.
    ring: u64,
}

/// An instance as others see it.
#[derive(Clone, Copy, Debug)]
pub struct Instance {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) presence: Presence,
}

impl Instance {
    pub fn new(store: &Store, options: &StoreOptions) -> Instance {
        let ring = match store {
            Store::Ring(ring) => ring::fingerprint(ring),
            _ => 0,
        };
        let fingerprint = Fingerprint::new(&options.secret, ring);
        Instance { fingerprint, presence: options.presence }
    }
}

impl Fingerprint {
    pub fn new(secret: &Secret, ring: u64) -> Fingerprint {
        Fingerprint { schema: SCHEMA, secret: secret.fingerprint(), ring }
    }

    /// Parses the output of `Display`; `None` for the heartbeat of a version with another layout.
    pub fn read(text: &str) -> Option<Fingerprint> {
        let mut words = text.split(':');
        let schema = words.next()?.parse().ok()?;
        let secret = u64::from_str_radix(words.next()?, 16).ok()?;
        let ring = u64::from_str_radix(words.next()?, 16).ok()?;
        words.next().is_none().then_some(Fingerprint { schema, secret, ring })
    }

    /// Returns which settings differ from those of a kind of instance, of which there are `live`.
    pub fn mismatch(&self, other: Option<&Fingerprint>, live: u32) -> InstanceMismatch {
        let count = |differs: bool| if differs { live } else { 0 };
        let Some(other) = other else {
            return InstanceMismatch { schema: live, live, ..InstanceMismatch::default() };
        };
        InstanceMismatch {
            secret: count(self.secret != other.secret),
            ring: count(self.ring != other.ring),
            schema: count(self.schema != other.schema),
            live,
            ..InstanceMismatch::default()
        }
    }
}

/// The form in a heartbeat.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fingerprint { schema, secret, ring } = self;
        write!(f, "{schema}:{secret:x}:{ring:x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> Secret {
        Secret::new(&[byte; 16])
    }

    #[test]
    fn a_fingerprint_survives_a_heartbeat() {
        for fingerprint in [Fingerprint::new(&secret(1), 0), Fingerprint::new(&secret(2), 7)] {
            assert_eq!(Fingerprint::read(&fingerprint.to_string()), Some(fingerprint));
        }
        for other in ["", "0", "1:2", "1:2:x", "1:2:3:4"] {
            assert_eq!(Fingerprint::read(other), None, "{other}");
        }
    }

    #[test]
    fn instances_with_other_secrets_or_rings_are_counted() {
        let own = Fingerprint::new(&secret(1), 1);
        let counted = |other: &Fingerprint| own.mismatch(Some(other), 3);
        let none = InstanceMismatch { live: 3, ..InstanceMismatch::default() };
        assert!(none.is_none());
        assert_eq!(counted(&own), none);
        let other_secret = Fingerprint::new(&secret(2), 1);
        assert_eq!(counted(&other_secret), InstanceMismatch { secret: 3, ..none });
        let other_ring = Fingerprint::new(&secret(1), 2);
        assert_eq!(counted(&other_ring), InstanceMismatch { ring: 3, ..none });
        let no_ring = Fingerprint::new(&secret(1), 0);
        assert_eq!(counted(&no_ring), InstanceMismatch { ring: 3, ..none });
        let other_schema = Fingerprint { schema: own.schema + 1, ..own };
        assert_eq!(counted(&other_schema), InstanceMismatch { schema: 3, ..none });
        assert_eq!(own.mismatch(None, 3), InstanceMismatch { schema: 3, ..none });
    }
}
