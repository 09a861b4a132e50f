//! The header `x-request-id`, by which a client and the services on its way name one request.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};

/// Returns the id that the client sent, if an answer may repeat it: up to 128 visible ASCII characters.
pub fn sent(headers: &HeaderMap) -> Option<HeaderValue> {
    let is_plain = |id: &&HeaderValue| {
        (1..=BYTES_MAX).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    headers.get(&X_REQUEST_ID).filter(is_plain).cloned()
}

/// Makes an id that no other answer has: a random number of this process, and the number of the id.
pub fn made() -> HeaderValue {
    static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());
    static MADE: AtomicU64 = AtomicU64::new(0);
    let id = format!("{:016x}-{}", *PROCESS, MADE.fetch_add(1, Ordering::Relaxed));
    HeaderValue::try_from(id).expect("hexadecimal digits and a hyphen make a header value")
}

/// The name of the header.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const BYTES_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_plain_ids_only() {
        let sent_as = |id: &[u8]| {
            let id = HeaderValue::from_bytes(id).unwrap();
            sent(&HeaderMap::from_iter([(X_REQUEST_ID, id)]))
        };
        let longest = [b'x'; BYTES_MAX];
        for plain in [&b"a"[..], b"4f1c-9b:1/2", &longest] {
            assert_eq!(sent_as(plain).unwrap().as_bytes(), plain);
        }
        for other in [&b""[..], b"a b", b"a\tb", b"\xc3\xa9", &[b'x'; BYTES_MAX + 1]] {
            assert_eq!(sent_as(other), None, "{other:?}");
        }
        assert_eq!(sent(&HeaderMap::new()), None);
    }

    #[test]
    fn made_ids_are_plain_and_differ() {
        let (first, second) = (made(), made());
        assert_ne!(first, second);
        assert_eq!(sent(&HeaderMap::from_iter([(X_REQUEST_ID, first.clone())])), Some(first));
    }
}
