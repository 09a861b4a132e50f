//! The tiers of a reservation as its record keeps them: enough to give back to each, or to charge it
//! more, in a process that never saw the request, under the numbers that it was reserved by.

use std::sync::Arc;

use siphasher::sip128::SipHasher13;

use crate::algorithm::{
    Numbers, concurrency, fixed_window, sliding_log, sliding_window, token_bucket,
};
use crate::calendar::{Calendar, CalendarUnit};
use crate::counter::{AskTier, HoldsLimit};
use crate::limit::{Algorithm, Limit, NamedLimit, RecordName};
use crate::subject::SubjectKey;

/// One tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptTier {
    pub(crate) key: SubjectKey,
    /// With the parameters that it was reserved by: the rule's, or a share of them.
    pub(crate) limit: NamedLimit,
    /// The rule's limit, if `limit` is this instance's share of it.
    pub(crate) share_of: Option<Box<NamedLimit>>,
    /// The hash of its unit.
    pub(crate) unit: u64,
}

/// Those of one record, in its order.
pub(crate) type KeptTiers = Arc<[KeptTier]>;

impl KeptTier {
    pub(crate) fn of<L: HoldsLimit>(tier: &AskTier<L>) -> KeptTier {
        let limit = tier.limit().clone();
        KeptTier { key: tier.key, unit: unit(limit.limit().unit()), limit, share_of: None }
    }

    /// Keeps a tier that was charged by this instance's share of its limit.
    #[cfg(feature = "redis")]
    pub(crate) fn by_share(tier: &AskTier, share: Numbers) -> KeptTier {
        let share = tier.under(tier.limit.with_numbers(share));
        KeptTier { share_of: Some(Box::new(tier.limit.clone())), ..KeptTier::of(&share) }
    }

    pub(crate) fn asked(&self, cost: u64) -> AskTier<&NamedLimit> {
        AskTier { cost, ..AskTier::new(self.key, &self.limit) }
    }
}

/// The same in every process; units are the operator's, so no secret is needed.
pub(crate) fn unit(name: &str) -> u64 {
    SipHasher13::new().hash(name.as_bytes()).h1
}

/// The tiers as bytes.
#[cfg(feature = "redis")]
pub(crate) fn encoded(tiers: &[AskTier]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(TIER_BYTES * tiers.len());
    let mut known: Option<SubjectKey> = None;
    for tier in tiers {
        let same_key = known == Some(tier.key);
        let (record, unit) = (tier.limit.record(), tier.limit.limit().unit());
        let is_named = matches!(record, RecordName::Given(_));
        let is_of_requests = unit == crate::limit::REQUESTS;
        bytes.push(
            u8::from(same_key)
                | u8::from(is_named) << 1
                | u8::from(is_of_requests) << 2
                | (tier.limit.algorithm() as u8) << 3,
        );
        if !same_key {
            let SubjectKey { tag, id, rule } = tier.key;
            [tag, id, rule].iter().for_each(|part| bytes.extend(part.to_be_bytes()));
            known = Some(tier.key);
        }
        match record {
            RecordName::Position(position) => bytes.push(position),
            RecordName::Given(name) => {
                bytes.extend(name);
                bytes.extend(tier.limit.mix().to_be_bytes());
            }
        }
        if !is_of_requests {
            bytes.extend(self::unit(unit).to_be_bytes());
        }
        encode_numbers(tier.numbers(), &mut bytes);
    }
    bytes
}

#[cfg(feature = "redis")]
fn encode_numbers(numbers: &Numbers, bytes: &mut Vec<u8>) {
    let mut put = |count: u32, us: u64| {
        bytes.extend(count.to_be_bytes());
        bytes.extend(us.to_be_bytes());
    };
    match numbers {
        Numbers::TokenBucket(numbers) => {
            put(numbers.count, numbers.period_us);
            bytes.extend(numbers.burst.to_be_bytes());
        }
        Numbers::SlidingLog(numbers) => put(numbers.count, numbers.period_us),
        Numbers::SlidingWindow(numbers) => put(numbers.count, numbers.period_us),
        Numbers::Concurrency(numbers) => put(numbers.count, numbers.hold_us),
        Numbers::FixedWindow(fixed_window::Numbers { count, window }) => match window {
            fixed_window::Window::Every { period_us } => put(*count, *period_us),
            fixed_window::Window::Calendar(calendar) => {
                let (unit, zone) = calendar.parts();
                put(*count, 0);
                // No zone's name comes near 255 bytes.
                bytes.extend([unit as u8, zone.len() as u8]);
                bytes.extend(zone.as_bytes());
            }
        },
    }
}

/// The tiers that [`encoded`] wrote; nothing for bytes that it did not.
#[cfg(feature = "redis")]
pub(crate) fn decoded(bytes: &[u8]) -> Option<Vec<KeptTier>> {
    let mut rest = Bytes(bytes);
    let mut tiers: Vec<KeptTier> = Vec::new();
    while !rest.0.is_empty() {
        let [flags] = rest.take()?;
        let algorithm = *Algorithm::ALL.get(usize::from(flags >> 3))?;
        let key = match (flags & 1, tiers.last()) {
            (0, _) => SubjectKey { tag: rest.long()?, id: rest.long()?, rule: rest.long()? },
            (_, last) => last?.key,
        };
        let (record, mix) = match flags & 2 {
            0 => (RecordName::Position(rest.take::<1>()?[0]), None),
            _ => (RecordName::Given(rest.take()?), Some(rest.long()?)),
        };
        let unit = match flags & 4 {
            0 => u64::from_be_bytes(rest.take()?),
            _ => self::unit(crate::limit::REQUESTS),
        };
        let numbers = decode_numbers(algorithm, &mut rest)?;
        let limit = NamedLimit::recorded(Limit::counted(numbers), record, mix)?;
        tiers.push(KeptTier { key, limit, share_of: None, unit });
    }
    Some(tiers)
}

#[cfg(feature = "redis")]
fn decode_numbers(algorithm: Algorithm, rest: &mut Bytes<'_>) -> Option<Numbers> {
    let count = u32::from_be_bytes(rest.take()?);
    let period_us = u64::from_be_bytes(rest.take()?);
    Some(match algorithm {
        Algorithm::TokenBucket => {
            let burst = u32::from_be_bytes(rest.take()?);
            let sound = count > 0 && period_us > 0;
            let numbers = sound
                .then(|| token_bucket::Numbers::new(count, period_us, u64::from(burst)).ok())?;
            Numbers::TokenBucket(numbers?)
        }
        Algorithm::SlidingLog => Numbers::SlidingLog(sliding_log::Numbers { count, period_us }),
        Algorithm::SlidingWindow => {
            Numbers::SlidingWindow(sliding_window::Numbers { count, period_us })
        }
        Algorithm::Concurrency => {
            Numbers::Concurrency(concurrency::Numbers { count, hold_us: period_us })
        }
        Algorithm::FixedWindow if period_us > 0 => {
            let window = fixed_window::Window::Every { period_us };
            Numbers::FixedWindow(fixed_window::Numbers { count, window })
        }
        Algorithm::FixedWindow => {
            let [unit, length] = rest.take()?;
            let zone = std::str::from_utf8(rest.slice(usize::from(length))?).ok()?;
            let calendar = Calendar::new(*CalendarUnit::ALL.get(usize::from(unit))?, zone)?;
            let window = fixed_window::Window::Calendar(calendar);
            Numbers::FixedWindow(fixed_window::Numbers { count, window })
        }
    })
}

/// What is left of some bytes.
#[cfg(feature = "redis")]
struct Bytes<'b>(&'b [u8]);

#[cfg(feature = "redis")]
impl<'b> Bytes<'b> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn slice(&mut self, length: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn long(&mut self) -> Option<u128> {
        self.take().map(u128::from_be_bytes)
    }
}

/// One with a key of its own, and little more.
#[cfg(feature = "redis")]
const TIER_BYTES: usize = 72;

#[cfg(feature = "redis")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::LimitSpec;
    use proptest::prelude::*;

    fn limits() -> Vec<NamedLimit> {
        let month = LimitSpec::new("5/month").algorithm("fixed-window");
        let specs = [
            LimitSpec::new("3/90s").burst(7),
            LimitSpec::new("5/10s").algorithm("fixed-window"),
            month.clone().time_zone("Europe/Berlin"),
            LimitSpec { unit: Some("tokens".into()), ..month },
            LimitSpec::new("7/hour").algorithm("sliding-log"),
            LimitSpec {
                name: Some("daily".into()),
                ..LimitSpec::new("9/day").algorithm("sliding-window")
            },
            LimitSpec::new("4").algorithm("concurrency").hold("30s"),
        ];
        let named = |(position, spec): (usize, &LimitSpec)| {
            NamedLimit::new(spec.build().unwrap(), position)
        };
        specs.iter().enumerate().map(named).collect()
    }

    fn asked(limits: &[NamedLimit]) -> Vec<AskTier> {
        let numbered = limits.iter().enumerate();
        numbered
            .map(|(number, limit)| AskTier {
                cost: 1,
                attributes: 1,
                ..AskTier::new(
                    SubjectKey { tag: 1, id: number as u128 / 2, rule: 3 },
                    limit.clone(),
                )
            })
            .collect()
    }

    #[test]
    fn what_is_kept_of_a_tier_names_the_same_state_under_the_same_numbers() {
        let limits = limits();
        let asked = asked(&limits);
        let bytes = encoded(&asked);
        let read = decoded(&bytes).unwrap();
        assert_eq!(read.len(), asked.len());
        for (read, asked) in read.iter().zip(&asked) {
            let kept = KeptTier::of(asked);
            let numbers = |tier: &KeptTier| tier.limit.numbers().cloned();
            assert_eq!((read.key, read.unit, numbers(read)), (kept.key, kept.unit, numbers(&kept)));
            let (read, asked) = (&read.limit, &asked.limit);
            assert_eq!((read.record(), read.mix()), (asked.record(), asked.mix()));
            assert_eq!(read.algorithm(), asked.algorithm());
        }
        assert!(bytes.len() <= TIER_BYTES * asked.len(), "{}", bytes.len());
        assert_eq!(decoded(&bytes[..bytes.len() - 1]), None);
    }

    proptest! {
        #[test]
        fn bytes_of_anybodys_are_read_or_not_without_a_panic(bytes: Vec<u8>) {
            let _ = decoded(&bytes);
        }
    }
}
