//! Checks the client's address from any forwarded field.
//!
//! An input is one byte that chooses the field and whether the peer is trusted, then the lines of the field, each on
//! a line of its own.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue};
use spillgate::http::ByIp;

/// Panics if these lines name a client that they must not name.
pub fn holds(input: &[u8]) {
    let Some((choice, lines)) = input.split_first() else { return };
    let (is_forwarded, is_trusted) = (choice & 1 == 1, choice & 2 == 0);
    let by_ip = ByIp::trusting(["10.0.0.0/8", "fd00::/8"]);
    let by_ip = if is_forwarded { by_ip.by_forwarded() } else { by_ip };
    let field = if is_forwarded { "forwarded" } else { "x-forwarded-for" };
    let peer = address(if is_trusted { "10.0.0.1" } else { "192.0.2.1" });

    let mut headers = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n') {
        if let Ok(line) = HeaderValue::from_bytes(line) {
            headers.append(field, line);
        }
    }
    let client = by_ip.client(peer, &headers);
    assert_eq!(client, client.to_canonical(), "an IPv4-mapped address is the IPv4 one");
    assert!(is_trusted || client == peer, "an untrusted peer speaks for itself alone");
    let text = by_ip.attribute(client);
    assert_eq!(address(&text), client, "its text is the address");

    // Neither the other field nor earlier lines change the client once a trusted proxy has written the address that
    // it saw.
    let seen = address("203.0.113.7");
    let written = if is_forwarded { "for=203.0.113.7" } else { "203.0.113.7" };
    headers.append(field, HeaderValue::from_static(written));
    assert_eq!(by_ip.client(peer, &headers), if is_trusted { seen } else { peer });
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("it is one of the constants above, or was just written by the library")
}
