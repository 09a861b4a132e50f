//! The messages of Envoy's rate limit service, with the fields that a load needs. Numbers and types are those of
//! `envoy/service/ratelimit/v3/rls.proto`; fields that are left out are not sent, and skipped when read.

use prost::{Enumeration, Message};

/// `envoy.service.ratelimit.v3.RateLimitRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub(super) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) descriptors: Vec<RateLimitDescriptor>,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<Entry>,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Entry {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitResponse {
    #[prost(enumeration = "Code", tag = "1")]
    pub(super) overall_code: i32,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse.Code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(super) enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_bytes_of_the_protocol() {
        let entry = Entry { key: "ip".to_owned(), value: "10.0.0.1".to_owned() };
        let descriptors = vec![RateLimitDescriptor { entries: vec![entry] }];
        let request = RateLimitRequest { domain: "web".to_owned(), descriptors };
        // Written by hand from the field numbers of rls.proto and ratelimit.proto.
        let expected = b"\x0a\x03web\x12\x10\x0a\x0e\x0a\x02ip\x12\x0810.0.0.1";
        assert_eq!(request.encode_to_vec(), expected);
    }

    #[test]
    fn fields_that_a_load_does_not_need_are_skipped() {
        // A code, the status of a descriptor, a header, and a body.
        let bytes = b"\x08\x02\x12\x02\x08\x02\x1a\x06\x0a\x01a\x12\x01b\x2a\x02no";
        let response = RateLimitResponse::decode(bytes.as_slice()).unwrap();
        assert_eq!(response.overall_code(), Code::OverLimit);
    }
}
