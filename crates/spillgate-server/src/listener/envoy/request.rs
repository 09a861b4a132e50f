//! Decodes Envoy's request into requests to the limiter.

use std::collections::HashMap;
use std::time::Duration;

use spillgate::{Limit, LimitSpec, Request};
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::proto::envoy::extensions::common::ratelimit::v3 as common;
use super::proto::envoy::r#type::v3::RateLimitUnit;
use super::rls::RateLimitRequest;
use crate::bounds::{DOMAIN, ENTRIES_MAX};
use common::RateLimitDescriptor;
use common::rate_limit_descriptor::{Entry, RateLimitOverride};

/// Returns the domain of a request. An empty one, which Envoy does not send, is the default domain.
pub fn domain(request: &RateLimitRequest) -> &str {
    if request.domain.is_empty() { DOMAIN } else { &request.domain }
}

/// Returns a request for each descriptor. Rules match each of them by itself.
///
/// # Errors
///
/// If there are too many descriptors or entries. The operator of Envoy configures their numbers and clients cannot
/// change them, so no client can cause this error, on which Envoy admits a request.
pub fn requests(request: &RateLimitRequest) -> Result<Vec<Request<'_>>, Status> {
    let too_many = |noun: &str, count: usize, max: usize| {
        Status::invalid_argument(format!("at most {max} {noun}, got {count}; leave some out"))
    };
    let descriptors = &request.descriptors;
    if descriptors.len() > ENTRIES_MAX {
        return Err(too_many("descriptors", descriptors.len(), ENTRIES_MAX));
    }
    let most = descriptors.iter().map(|descriptor| descriptor.entries.len()).max();
    if let Some(count) = most.filter(|count| *count > ENTRIES_MAX) {
        return Err(too_many("entries in a descriptor", count, ENTRIES_MAX));
    }
    Ok(descriptors.iter().map(|descriptor| one(request, descriptor)).collect())
}

/// Returns the longest wait for the store: three quarters of the client's own time-out, so that the answer still
/// arrives, and at most `most`.
pub fn store_timeout(metadata: &MetadataMap, most: Duration) -> Duration {
    let waits = metadata.get("grpc-timeout").and_then(|timeout| timeout.to_str().ok());
    let waits = waits.and_then(duration);
    waits.map_or(most, |waits| (waits.saturating_mul(3) / 4).min(most))
}

fn one<'a>(request: &'a RateLimitRequest, descriptor: &'a RateLimitDescriptor) -> Request<'a> {
    let attributes = attributes(&descriptor.entries);
    let names: Vec<&str> = attributes.attributes().map(|(name, _)| name).collect();
    let names = names.join(",");
    let attributes = attributes.with(ENTRIES, names);
    let of_request = match request.hits_addend {
        0 => 1,
        addend => u64::from(addend),
    };
    let cost = descriptor.hits_addend.unwrap_or(of_request);
    let one = attributes.in_domain(domain(request)).costing(cost);
    let one = match descriptor.limit.as_ref().and_then(limit) {
        Some(limit) => one.limited_to(limit),
        None => one,
    };
    if descriptor.is_negative_hits { one.refunding() } else { one }
}

/// Returns the entries of a descriptor as attributes. The second entry with the same key is named `key.2`, and so on.
pub fn attributes(entries: &[Entry]) -> Request<'_> {
    // The last number of each repeated key. Without it, 256 equal keys would try 32,000 names.
    let mut numbers: HashMap<&str, u32> = HashMap::new();
    entries.iter().fold(Request::new(), |request, Entry { key, value }| {
        if request.attribute(key).is_none() {
            return request.with(key, value.as_slice());
        }
        let number = numbers.entry(key).or_insert(1);
        let name = loop {
            *number += 1;
            let name = format!("{key}.{number}");
            if request.attribute(&name).is_none() {
                break name;
            }
        };
        request.with(name, value.as_slice())
    })
}

/// Returns the limit in a descriptor; `None` if it has no unit.
fn limit(limit: &RateLimitOverride) -> Option<Limit> {
    let unit = match limit.unit() {
        RateLimitUnit::Unknown => return None,
        RateLimitUnit::Second => "second",
        RateLimitUnit::Minute => "minute",
        RateLimitUnit::Hour => "hour",
        RateLimitUnit::Day => "day",
        RateLimitUnit::Month => "month",
        RateLimitUnit::Year => "year",
    };
    Some(match limit.requests_per_unit {
        0 => Limit::block(),
        count => {
            let spec = || LimitSpec::new(format!("{count}/{unit}"));
            // A bucket counts less far than Envoy, and a window as far.
            let window = || spec().algorithm("sliding-window").build();
            spec().build().or_else(|_| window()).unwrap_or_else(|_| Limit::block())
        }
    })
}

/// Parses a duration in the form of gRPC: up to eight digits and a unit.
fn duration(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let well_formed = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    let count: u64 = digits.parse().ok().filter(|_| well_formed)?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3_600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// The attribute that lists the names of the entries, for rules that match exactly these.
const ENTRIES: &str = "envoy.entries";

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: &[u8]) -> Entry {
        Entry { key: key.to_owned(), value: value.to_vec() }
    }

    #[test]
    fn a_repeated_key_is_numbered_and_replaces_nothing() {
        let entries = [
            entry("a", b"1"),
            entry("a", b"2"),
            entry("a.2", b"3"),
            entry("a", b"\xff"),
            entry("b", b""),
        ];
        let request = attributes(&entries);
        let named: Vec<_> = request.attributes().collect();
        let expected: [(&str, &[u8]); 5] =
            [("a", b"1"), ("a.2", b"2"), ("a.2.2", b"3"), ("a.3", b"\xff"), ("b", b"")];
        assert_eq!(named, expected);
    }

    #[test]
    fn every_count_of_a_descriptor_is_a_limit() {
        for (count, shown) in [
            (0, "block"),
            (1_000_000_000, "1000000000/day"),
            (3_000_000_000, "3000000000/day"),
            (u32::MAX, "4294967295/day"),
        ] {
            let asked =
                RateLimitOverride { requests_per_unit: count, unit: RateLimitUnit::Day.into() };
            assert_eq!(limit(&asked).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn the_store_gets_three_quarters_of_the_clients_timeout_within_a_bound() {
        let most = Duration::from_millis(15);
        let timeout_of = |timeout: &'static str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", timeout.parse().unwrap());
            store_timeout(&metadata, most)
        };
        assert_eq!(store_timeout(&MetadataMap::new(), most), most);
        assert_eq!(timeout_of("8m"), Duration::from_millis(6));
        assert_eq!(timeout_of("8000u"), Duration::from_millis(6));
        assert_eq!(timeout_of("8000000n"), Duration::from_millis(6));
        assert_eq!(timeout_of("0m"), Duration::ZERO);
        for long in ["20m", "1S", "1M", "99999999H"] {
            assert_eq!(timeout_of(long), most, "{long}");
        }
        for nonsense in ["", "m", "5", "-5m", "+5m", "123456789m", "5x"] {
            assert_eq!(timeout_of(nonsense), most, "{nonsense:?}");
        }
    }
}
