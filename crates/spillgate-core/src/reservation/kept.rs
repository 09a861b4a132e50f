//! The counters of a reservation in its record. They suffice to refund or charge each under the
//! parameters of the reservation, in an instance that never saw the request.

use std::sync::Arc;

use siphasher::sip128::SipHasher13;

use crate::algorithm::LimitParams;
use crate::algorithm::bytes::Bytes;
use crate::counter::{LimitHandle, PlannedCharge};
use crate::limit::{Algorithm, Limit, NamedLimit, RecordName};
use crate::subject::SubjectKey;

/// One recorded counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedCharge {
    /// The key of its rule and subject.
    pub key: SubjectKey,
    /// The limit, with the parameters that it was charged under: the rule's, or a local share of
    /// them.
    pub limit: NamedLimit,
    /// The rule's limit, if `limit` is this instance's local share of it and the store surely does
    /// not have the charge. Its corrections then change the deferred charge of the rule's limit.
    pub share_of: Option<Box<NamedLimit>>,
    /// The hash of its unit.
    pub unit: u64,
    /// Whether the counter can deny. If it cannot, losing its permit changes no answer.
    pub is_enforced: bool,
}

/// The counters of one record, in order.
pub type RecordedCharges = Arc<[RecordedCharge]>;

impl RecordedCharge {
    /// Records a counter that was charged by its limit.
    pub fn new<L: LimitHandle>(counter: &PlannedCharge<L>) -> RecordedCharge {
        let limit = counter.limit().clone();
        RecordedCharge {
            key: counter.key,
            unit: unit(limit.limit().unit()),
            limit,
            share_of: None,
            is_enforced: counter.group == 0,
        }
    }

    /// Records a counter that was charged by this instance's local share of its limit.
    pub fn by_share(counter: &PlannedCharge, share: LimitParams) -> RecordedCharge {
        let share = counter.under(counter.limit.with_params(share));
        RecordedCharge {
            share_of: Some(Box::new(counter.limit.clone())),
            ..RecordedCharge::new(&share)
        }
    }

    /// Returns a charge of the counter.
    pub fn planned(&self, cost: u64) -> PlannedCharge<&NamedLimit> {
        PlannedCharge { cost, ..PlannedCharge::new(self.key, &self.limit) }
    }
}

/// Hashes a unit, with the same result in every instance. Units come from the operator, so no
/// secret is needed.
pub fn unit(name: &str) -> u64 {
    SipHasher13::new().hash(name.as_bytes()).h1
}

/// Encodes the counters as bytes.
pub fn encoded(counters: &[PlannedCharge]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(COUNTER_BYTES * counters.len());
    let mut known: Option<SubjectKey> = None;
    for counter in counters {
        // A counter with the key of the one before it omits the key.
        let same_key = known == Some(counter.key);
        let (record, unit) = (counter.limit.record(), counter.limit.limit().unit());
        let is_named = matches!(record, RecordName::Given(_));
        let is_of_requests = unit == crate::limit::REQUESTS;
        // Bit 0: the key is that of the counter before. Bit 1: the limit has a given name. Bit 2:
        // it counts requests. Bit 7: the counter cannot deny. The rest: the algorithm.
        bytes.push(
            u8::from(same_key)
                | u8::from(is_named) << 1
                | u8::from(is_of_requests) << 2
                | (counter.limit.algorithm() as u8) << 3
                | u8::from(counter.group > 0) << 7,
        );
        if !same_key {
            let SubjectKey { tag, id, rule } = counter.key;
            [tag, id, rule].iter().for_each(|part| bytes.extend(part.to_be_bytes()));
            known = Some(counter.key);
        }
        match record {
            RecordName::Position(position) => bytes.push(position),
            RecordName::Given(name) => {
                bytes.extend(name);
                bytes.extend(counter.limit.mix().to_be_bytes());
            }
        }
        if !is_of_requests {
            bytes.extend(self::unit(unit).to_be_bytes());
        }
        counter.params().counting().encode(&mut bytes);
    }
    bytes
}

/// Decodes counters that [`encoded`] wrote; returns `None` for other bytes.
pub fn decoded(bytes: &[u8]) -> Option<Vec<RecordedCharge>> {
    let mut rest = Bytes(bytes);
    let mut counters: Vec<RecordedCharge> = Vec::new();
    while !rest.0.is_empty() {
        let [flags] = rest.take()?;
        let algorithm = *Algorithm::ALL.get(usize::from(flags >> 3 & 15))?;
        let key = match (flags & 1, counters.last()) {
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
        // A counter divides by its count.
        let count = Some(u32::from_be_bytes(rest.take()?)).filter(|count| *count > 0)?;
        let length_us = u64::from_be_bytes(rest.take()?);
        let params = (algorithm.profile().decode)(count, length_us, &mut rest)?;
        let limit = NamedLimit::recorded(Limit::counted(params), record, mix)?;
        let is_enforced = flags & 1 << 7 == 0;
        counters.push(RecordedCharge { key, limit, share_of: None, unit, is_enforced });
    }
    Some(counters)
}

/// Enough for a counter with a key of its own.
const COUNTER_BYTES: usize = 72;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{concurrency, fixed_window, sliding_log, sliding_window, token_bucket};
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
            LimitSpec::new("4").algorithm("concurrency").max_hold("30s"),
        ];
        let named = |(position, spec): (usize, &LimitSpec)| {
            NamedLimit::new(spec.build().unwrap(), position)
        };
        specs.iter().enumerate().map(named).collect()
    }

    fn asked(limits: &[NamedLimit]) -> Vec<PlannedCharge> {
        let numbered = limits.iter().enumerate();
        numbered
            .map(|(number, limit)| PlannedCharge {
                cost: 1,
                attributes: 1,
                group: number as u16 / 4,
                ..PlannedCharge::new(
                    SubjectKey { tag: 1, id: number as u128 / 2, rule: 3 },
                    limit.clone(),
                )
            })
            .collect()
    }

    #[test]
    fn a_recorded_counter_has_the_same_state_and_parameters() {
        let limits = limits();
        let asked = asked(&limits);
        let bytes = encoded(&asked);
        let read = decoded(&bytes).unwrap();
        assert_eq!(read.len(), asked.len());
        for (read, asked) in read.iter().zip(&asked) {
            let kept = RecordedCharge::new(asked);
            let params = |counter: &RecordedCharge| counter.limit.params().cloned();
            assert_eq!((read.key, read.unit, params(read)), (kept.key, kept.unit, params(&kept)));
            assert_eq!(read.is_enforced, asked.group == 0);
            let (read, asked) = (&read.limit, &asked.limit);
            assert_eq!((read.record(), read.mix()), (asked.record(), asked.mix()));
            assert_eq!(read.algorithm(), asked.algorithm());
        }
        assert!(bytes.len() <= COUNTER_BYTES * asked.len(), "{}", bytes.len());
        assert_eq!(decoded(&bytes[..bytes.len() - 1]), None);
    }

    #[test]
    fn a_count_or_period_of_zero_and_a_log_beyond_its_bound_are_rejected() {
        let bucket = token_bucket::Params::new(1, 1_000, 1).unwrap();
        let every = |period_us| fixed_window::Window::Every { period_us };
        for params in [
            LimitParams::TokenBucket(token_bucket::Params { count: 0, ..bucket }),
            LimitParams::TokenBucket(token_bucket::Params { period_us: 0, ..bucket }),
            LimitParams::FixedWindow(fixed_window::Params { count: 0, window: every(1_000) }),
            LimitParams::SlidingLog(sliding_log::Params { count: 0, period_us: 1_000 }),
            LimitParams::SlidingLog(sliding_log::Params { count: 1, period_us: 0 }),
            LimitParams::SlidingLog(sliding_log::Params { count: 10_001, period_us: 1_000 }),
            LimitParams::SlidingWindow(sliding_window::Params { count: 1, period_us: 0 }),
            LimitParams::Concurrency(concurrency::Params { count: 1, max_hold_us: 0 }),
        ] {
            let limit = NamedLimit::new(Limit::counted(params), 0);
            assert_eq!(decoded(&encoded(&asked(&[limit]))), None, "{params:?}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_decoded_or_rejected_without_a_panic(bytes: Vec<u8>) {
            let _ = decoded(&bytes);
        }
    }
}
