//! Checks that any bytes of a store are cut and parsed as the client library parses them.

use redis::parse_redis_value;

#[allow(dead_code, reason = "the store uses the rest")]
#[path = "../../crates/spillgate-redis/src/connecting/wire/reply.rs"]
mod reply;

use reply::{Cut, WireReply};

/// Panics if the reply is cut in the wrong place, or parsed otherwise than by the library.
pub fn holds(bytes: &[u8]) {
    let Ok(known) = parse_redis_value(bytes) else { return };
    let Ok(Some(end)) = Cut::new().end(bytes) else { return };
    let parsed = WireReply::parse(&bytes[..end]).map(WireReply::value);
    // Compared as text, because NaN does not equal itself.
    assert_eq!(format!("{parsed:?}"), format!("Ok({known:?})"));
}
