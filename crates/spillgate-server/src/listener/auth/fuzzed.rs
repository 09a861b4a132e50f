//! A claim about every request to the forward-auth API.
//!
//! An input is one byte that selects the source and whether the peer is trusted, then a request: its target on the
//! first line, and on each line after it a header, `name: value`.

use std::sync::{LazyLock, Once};

use axum::body::Body;
use axum::extract::Request;
use hyper::header::{HeaderName, HeaderValue};
use spillgate::Policy;
use spillgate::http::{ByIp, normalised_path, path_with_slashes_decoded};

use super::Gate;
use super::original::{X_FORWARDED, X_ORIGINAL, upper_case};
use crate::app::App;
use crate::config::{Auth, Original, Store};

/// Panics if a forged value becomes an attribute, or if a value has two spellings.
pub fn holds(input: &[u8]) {
    let Some((choice, rest)) = input.split_first() else { return };
    let gate = &GATES[usize::from(choice % 3)];
    let is_trusted = choice & 0x80 == 0;
    let peer = if is_trusted { "10.0.0.1" } else { "192.0.2.1" };
    let peer = peer.parse().expect("an address of ours");
    let mut lines = rest.split(|byte| *byte == b'\n');
    let headers: Vec<(HeaderName, HeaderValue)> =
        lines.clone().skip(1).filter_map(header).collect();
    let target = lines.next().unwrap_or_default();
    let Some(received) = request(target, &headers) else { return };

    let asked = gate.request(peer, &received);
    for (name, value) in asked.attributes() {
        match name {
            "ip" => assert!(value.len() <= 43 && value.is_ascii()),
            "x-api-key" => {}
            "method" => assert_eq!(upper_case(value), value),
            "host" => assert!(!value.iter().any(u8::is_ascii_uppercase)),
            "path" => {
                assert_eq!(normalised_path(value).as_bytes(), value);
                assert_eq!(path_with_slashes_decoded(value), None);
            }
            "user" | "b c" => assert!(std::str::from_utf8(value).is_ok()),
            other => panic!("{other:?} is no attribute of this API"),
        }
        assert!(is_trusted || ["ip", "x-api-key"].contains(&name), "{name:?} of an untrusted peer");
    }
    assert!(
        gate.deny_status(received.uri())
            .is_none_or(|status| { status.is_client_error() || status.is_server_error() })
    );

    // Header lines that a client sent change nothing if the proxy adds its own after them.
    let from_proxy = |name: &str| headers.iter().any(|(known, _)| known == name);
    let forged = [X_FORWARDED, X_ORIGINAL].concat().into_iter().filter(|name| from_proxy(name));
    let forged = forged.map(|name| (HeaderName::from_static(name), FORGED));
    let with_forged: Vec<_> = forged.chain(headers.iter().cloned()).collect();
    let received = request(target, &with_forged).expect("the request was valid with fewer headers");
    assert!(gate.request(peer, &received).attributes().eq(asked.attributes()));
}

fn header(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?))
}

fn request(target: &[u8], headers: &[(HeaderName, HeaderValue)]) -> Option<Request> {
    let mut request = Request::builder().uri(target).body(Body::empty()).ok()?;
    for (name, value) in headers {
        request.headers_mut().append(name, value.clone());
    }
    Some(request)
}

static GATES: LazyLock<[Gate; 3]> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let app = runtime.block_on(App::open(&Store::default(), Policy::default()));
    let app = app.expect("memory opens always");
    [Original::XForwarded, Original::XOriginal, Original::Request].map(|original| Gate {
        app: app.clone(),
        auth: Auth {
            original,
            headers: vec![HeaderName::from_static("x-api-key")],
            query: vec!["user".to_owned(), "b c".to_owned()],
            deny_status: None,
        },
        by_ip: ByIp::trusting(["10.0.0.0/8"]),
        untrusted_peer: Once::new(),
        silent: Once::new(),
    })
});

const FORGED: HeaderValue = HeaderValue::from_static("/forged?user=forged");
