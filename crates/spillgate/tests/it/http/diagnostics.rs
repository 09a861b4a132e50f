//! The warnings about a layer that cannot work: each comes once, has a name, and suggests a fix.

use std::convert::Infallible;
use std::future::ready;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use spillgate::http::ByIp;
use spillgate::tower::{RateLimitLayer, from_method};
use spillgate::{Limiter, Policy};
use tower::{Layer, ServiceExt, service_fn};

use super::layer::in_memory;
use crate::support::world::runtime;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A request from an address, with lines of header.
type Call<'a> = (&'a str, &'a [(&'static str, &'a str)]);

/// Returns the warnings of a layer that is used for two services and sees each of these calls `times` times.
fn warnings(layer: RateLimitLayer, calls: &[Call<'_>], times: usize) -> Vec<String> {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .without_time()
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        for _ in 0..2 {
            let service = layer
                .layer(service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(())))));
            for (peer, headers) in std::iter::repeat_n(calls, times).flatten() {
                let mut request = Request::new(());
                if let Ok(peer) = peer.parse::<SocketAddr>() {
                    request.extensions_mut().insert(peer);
                }
                for (name, value) in *headers {
                    request.headers_mut().append(*name, value.parse().unwrap());
                }
                runtime().block_on(service.clone().oneshot(request)).unwrap();
            }
        }
    });
    let written = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    written.lines().map(str::to_owned).collect()
}

#[track_caller]
fn check(warnings: &[String], name: &str, parts: &[&str]) {
    let [line] = warnings else { panic!("one warning, and not {warnings:#?}") };
    assert!(line.contains("WARN spillgate:"), "{line}");
    assert!(line.contains(&format!("diagnostic=\"{name}\"")), "{line}");
    for part in parts {
        assert!(line.contains(part), "{part} is missing: {line}");
    }
}

const BY_IP: &str = "[[rule]]\nname = \"r\"\nkey = [\"ip\"]\nlimits = [\"1/second\"]";
const FORWARDED: &[(&str, &str)] = &[("x-forwarded-for", "203.0.113.7")];

#[test]
fn warns_of_rules_that_never_match_and_names_missing_attributes() {
    let needs_more = "[[rule]]\nname = \"login\"\nmatch = { route = \"/login\" }\nkey = [\"ip\"]\nlimits = [\"1/second\"]";
    let given = in_memory(needs_more).with("method", from_method());
    let parts = ["login", "needs [route, ip]", "attributes [method]", ".with(..)"];
    check(&warnings(given, &[("-", &[])], 3), "rules-never-match", &parts);
    let elsewhere = "[[rule]]\nname = \"web\"\ndomain = \"web\"\nkey = []\nlimits = [\"1/second\"]";
    let parts = ["the domain default", "the domain web"];
    check(&warnings(in_memory(elsewhere), &[], 0), "rules-never-match", &parts);
    let off = "[[rule]]\nname = \"r\"\nmode = \"off\"\nkey = []\nlimits = [\"1/second\"]";
    check(&warnings(in_memory(off), &[], 0), "rules-never-match", &["rule r is off"]);
}

#[test]
fn one_rule_that_can_match_is_enough() {
    let policy =
        format!("{BY_IP}\n[[rule]]\nname = \"m\"\nkey = [\"method\"]\nlimits = [\"1/day\"]");
    let given = in_memory(&policy).with("method", from_method());
    assert_eq!(warnings(given, &[("-", &[])], 3), [""; 0]);
}

#[test]
fn a_policy_loaded_later_is_examined_then() {
    let limiter = runtime().block_on(Limiter::builder().build()).unwrap();
    let given = RateLimitLayer::new(limiter.clone());
    assert_eq!(warnings(given.clone(), &[("-", &[])], 2), [""; 0]);
    limiter.set_policy(Policy::from_toml(BY_IP).unwrap());
    check(&warnings(given, &[("-", &[])], 2), "rules-never-match", &["needs [ip]"]);
}

#[test]
fn a_layer_made_from_another_has_warnings_of_its_own() {
    let first = in_memory(BY_IP);
    let second = first.clone().in_domain("web");
    check(&warnings(first, &[], 0), "rules-never-match", &["the domain default"]);
    check(&warnings(second, &[], 0), "rules-never-match", &["have the domain web"]);
}

#[test]
fn warns_of_requests_without_a_peer_address() {
    let given = in_memory(BY_IP).identify(ByIp::direct());
    let parts = ["into_make_service_with_connect_info", "SocketAddr"];
    check(&warnings(given, &[("-", &[])], 3), "no-peer-address", &parts);
}

#[test]
fn warns_of_addresses_behind_an_untrusted_proxy() {
    let given = || in_memory(BY_IP).identify(ByIp::direct());
    let parts = ["10.0.0.1", "x-forwarded-for", "ByIp::trusting([\"10.0.0.1\"])"];
    check(&warnings(given(), &[("10.0.0.1:80", FORWARDED)], 3), "address-of-a-proxy", &parts);
    for field in ["forwarded", "x-real-ip"] {
        let calls: [Call<'_>; 1] = [("10.0.0.1:80", &[(field, "for=203.0.113.7")])];
        check(&warnings(given(), &calls, 3), "address-of-a-proxy", &[field]);
    }
    assert_eq!(warnings(given(), &[("10.0.0.1:80", &[])], 300), [""; 0]);
}

#[test]
fn warns_of_untrusted_clients_that_send_forwarded_fields() {
    let given = in_memory(BY_IP).identify(ByIp::trusting(["10.0.0.0/8"]));
    let calls = [("10.0.0.1:80", FORWARDED), ("192.0.2.9:80", FORWARDED)];
    let parts = ["192.0.2.9", "ignored", "ByIp::trusting(..)"];
    check(&warnings(given, &calls, 3), "forwarded-by-a-stranger", &parts);
}

#[test]
fn warns_of_a_forwarded_field_that_never_comes() {
    let given = || in_memory(BY_IP).identify(ByIp::trusting(["10.0.0.0/8"]));
    let calls: [Call<'_>; 1] = [("10.0.0.1:80", &[])];
    let parts = ["x-forwarded-for", "let the proxy send it"];
    check(&warnings(given(), &calls, 200), "forwarded-never-seen", &parts);
    assert_eq!(warnings(given(), &calls, 40), [""; 0]);

    let other: [Call<'_>; 1] = [("10.0.0.1:80", &[("forwarded", "for=203.0.113.7")])];
    check(&warnings(given(), &other, 200), "forwarded-never-seen", &["forwarded came instead"]);

    // One field in many requests is enough.
    let mut mixed = vec![("10.0.0.1:80", &[][..]); 50];
    mixed.push(("10.0.0.1:80", FORWARDED));
    assert_eq!(warnings(given(), &mixed, 5), [""; 0]);
}

#[test]
fn warns_of_trust_in_every_address() {
    for all in ["0.0.0.0/0", "::/0"] {
        let given = in_memory(BY_IP).identify(ByIp::trusting([all]));
        check(&warnings(given, &[], 0), "trusts-everyone", &["can forge its address"]);
    }
}
