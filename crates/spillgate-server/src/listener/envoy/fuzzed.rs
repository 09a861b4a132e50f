//! A claim about every message of Envoy, and about every time-out in its metadata.
//!
//! An input is one byte with the length of the time-out's text, then that text, then the message.

use std::collections::BTreeSet;
use std::time::Duration;

use prost::Message;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};

use super::request::{attributes, domain, requests, store_timeout};
use super::rls::RateLimitRequest;
use crate::bounds::ENTRIES_MAX;

/// Panics if an entry is lost or gets the name of another, or if a bound does not hold.
pub fn holds(input: &[u8]) {
    let Some((length, rest)) = input.split_first() else { return };
    let (timeout, message) = rest.split_at(rest.len().min(usize::from(*length)));
    if let Ok(timeout) = AsciiMetadataValue::try_from(timeout) {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", timeout);
        assert!(store_timeout(&metadata, TIMEOUT) <= TIMEOUT);
    }
    let Ok(request) = RateLimitRequest::decode(message) else { return };
    let again = RateLimitRequest::decode(&request.encode_to_vec()[..]);
    assert_eq!(again.as_ref(), Ok(&request));
    assert!(!domain(&request).is_empty());
    let Ok(requests) = requests(&request) else {
        let entries = request.descriptors.iter().map(|descriptor| descriptor.entries.len());
        assert!(request.descriptors.len() > ENTRIES_MAX || entries.max() > Some(ENTRIES_MAX));
        return;
    };
    assert_eq!(requests.len(), request.descriptors.len());
    for descriptor in &request.descriptors {
        let request = attributes(&descriptor.entries);
        let names: BTreeSet<&str> = request.attributes().map(|(name, _)| name).collect();
        assert_eq!(names.len(), descriptor.entries.len());
        for ((name, value), entry) in request.attributes().zip(&descriptor.entries) {
            assert_eq!(value, entry.value);
            let number = name.strip_prefix(entry.key.as_str());
            assert!(number.is_some_and(|number| number.is_empty() || number.starts_with('.')));
        }
    }
}

const TIMEOUT: Duration = Duration::from_millis(15);
