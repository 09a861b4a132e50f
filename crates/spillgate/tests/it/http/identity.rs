//! Tables of forged, broken and honest hops.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName};
use proptest::prelude::*;
use spillgate::http::ByIp;
use spillgate::{Policy, Request};

/// Returns the client, given the lines of the field as they arrive from 10.0.0.1.
fn client(by_ip: &ByIp, field: HeaderName, lines: &[&str]) -> String {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(&field, line.parse().unwrap());
    }
    by_ip.client("10.0.0.1".parse().unwrap(), &headers).to_string()
}

fn trusting_ten() -> ByIp {
    ByIp::trusting(["10.0.0.0/8", "fd00::/8"])
}

#[test]
fn the_rightmost_untrusted_hop_is_the_client() {
    let proxy = "10.0.0.1";
    for (lines, client_ip) in [
        (&[][..], proxy),
        (&["203.0.113.7"][..], "203.0.113.7"),
        (&["6.6.6.6, 203.0.113.7"], "203.0.113.7"),
        (&["6.6.6.6,203.0.113.7,10.0.0.2 , 10.0.0.3"], "203.0.113.7"),
        // Several lines are one list.
        (&["6.6.6.6", "203.0.113.7", "10.0.0.2"], "203.0.113.7"),
        (&["203.0.113.7", "", " , ,"], "203.0.113.7"),
        // All hops are trusted: the farthest is the client.
        (&["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        // Ports, brackets, quotes, zone ids.
        (&["203.0.113.7:1234"], "203.0.113.7"),
        (&["[2001:db8::7]:1234"], "2001:db8::7"),
        (&["[2001:db8::7]"], "2001:db8::7"),
        (&["\"[2001:db8::7]:1234\""], "2001:db8::7"),
        (&["2001:db8::7"], "2001:db8::7"),
        (&["fe80::7%eth0"], "fe80::7"),
        (&["[fe80::7%25eth0]:1234"], "fe80::7"),
        (&["2001:DB8:0:0::7, fd00::2"], "2001:db8::7"),
        // IPv4-mapped in both notations, as client and as proxy.
        (&["::ffff:203.0.113.7"], "203.0.113.7"),
        (&["::ffff:cb00:7107"], "203.0.113.7"),
        (&["203.0.113.7, ::ffff:10.0.0.2"], "203.0.113.7"),
        // Behind a hop without an address no entry is trusted: the client is the proxy that reported it.
        (&["unknown"], proxy),
        (&["203.0.113.7, unknown"], proxy),
        (&["203.0.113.7, _hidden, 10.0.0.2"], "10.0.0.2"),
        (&["203.0.113.7, 10.0.0.2.5"], proxy),
        (&["203.0.113.7, 010.0.0.2"], proxy),
        (&["203.0.113.7, 10.0.0.2:99999"], proxy),
        (&["203.0.113.7, 10.0.0.2:"], proxy),
        (&["203.0.113.7, [10.0.0.2"], proxy),
        (&["203.0.113.7, 10.0.0.2%eth0"], proxy),
        (&["203.0.113.7, 10.0.0.2 10.0.0.3"], proxy),
    ] {
        assert_eq!(client(&trusting_ten(), X_FORWARDED_FOR, lines), client_ip, "{lines:?}");
    }
}

#[test]
fn fields_of_an_untrusted_peer_are_ignored() {
    let mut headers = HeaderMap::new();
    headers.append(X_FORWARDED_FOR, "203.0.113.7".parse().unwrap());
    headers.append(FORWARDED, "for=203.0.113.7".parse().unwrap());
    for by_ip in [ByIp::direct(), trusting_ten(), trusting_ten().by_forwarded()] {
        for peer in ["192.0.2.1", "::ffff:192.0.2.1"] {
            let client = by_ip.client(peer.parse().unwrap(), &headers);
            assert_eq!(client.to_string(), "192.0.2.1");
        }
    }
}

#[test]
fn ten_thousand_forged_hops_change_nothing() {
    let forged = "10.0.0.9, ".repeat(10_000);
    assert_eq!(
        client(&trusting_ten(), X_FORWARDED_FOR, &[&forged, "203.0.113.7, 10.0.0.2"]),
        "203.0.113.7"
    );
    let forged = "for=10.0.0.9, ".repeat(10_000);
    let line = format!("{forged}for=203.0.113.7");
    assert_eq!(client(&trusting_ten().by_forwarded(), FORWARDED, &[&line]), "203.0.113.7");
}

#[test]
fn forwarded_is_parsed_as_in_rfc_7239() {
    let proxy = "10.0.0.1";
    for (lines, client_ip) in [
        // The examples of the RFC.
        (&["for=\"_gazonk\""][..], proxy),
        (&["For=\"[2001:db8:cafe::17]:4711\""][..], "2001:db8:cafe::17"),
        (&["for=192.0.2.60;proto=http;by=203.0.113.43"], "192.0.2.60"),
        (&["for=192.0.2.43, for=198.51.100.17"], "198.51.100.17"),
        (&["for=192.0.2.43, for=\"[2001:db8:cafe::17]\""], "2001:db8:cafe::17"),
        (&["for=192.0.2.43,for=\"[2001:db8:cafe::17]\",for=unknown"], proxy),
        (&["for=\"192.0.2.43:47011\""], "192.0.2.43"),
        (&["for=\"192.0.2.43:_port\""], "192.0.2.43"),
        (&["for=_SEVKISEK"], proxy),
        // Several lines, trusted hops, other parameters before and after, empty parts.
        (&["for=6.6.6.6", "for=203.0.113.7;by=10.0.0.2", "for=10.0.0.2"], "203.0.113.7"),
        (&["by=10.0.0.2 ; FOR=203.0.113.7 ;; host=\"a,b;c\" , , for=10.0.0.2"], "203.0.113.7"),
        (&["for=\"::ffff:203.0.113.7\""], "203.0.113.7"),
        // A quote that a client left open cannot swallow the proxy's entry.
        (&["for=\", for=203.0.113.7"], proxy),
        (&["for=6.6.6.6;x=\", for=\"[2001:db8::7]\""], proxy),
        (&["for=\"\\, for=203.0.113.7"], proxy),
        (&["for=\", for=6.6.6.6", "for=203.0.113.7"], "203.0.113.7"),
        // Elements with no address, or with two.
        (&["for=203.0.113.7, proto=https"], proxy),
        (&["for=203.0.113.7, for=10.0.0.2;for=10.0.0.3"], proxy),
        (&["for=203.0.113.7, for"], proxy),
        (&["for=203.0.113.7, for=\"10.0.0\\.2\""], proxy),
    ] {
        assert_eq!(
            client(&trusting_ten().by_forwarded(), FORWARDED, lines),
            client_ip,
            "{lines:?}"
        );
    }
}

#[test]
fn only_the_configured_field_is_read() {
    let mut headers = HeaderMap::new();
    headers.append(X_FORWARDED_FOR, "203.0.113.1".parse().unwrap());
    headers.append(FORWARDED, "for=203.0.113.2".parse().unwrap());
    let peer = "10.0.0.1".parse().unwrap();
    assert_eq!(trusting_ten().client(peer, &headers).to_string(), "203.0.113.1");
    assert_eq!(trusting_ten().by_forwarded().client(peer, &headers).to_string(), "203.0.113.2");
}

#[test]
fn networks_are_validated_when_configured() {
    let trusts = |networks: &[&str], address: &str| {
        ByIp::try_trusting(networks).unwrap().trusts(address.parse().unwrap())
    };
    assert!(trusts(&["192.0.2.1"], "192.0.2.1") && !trusts(&["192.0.2.1"], "192.0.2.2"));
    assert!(trusts(&["192.0.2.77/24"], "192.0.2.1"));
    assert!(trusts(&["2001:db8::/32"], "2001:db8:1::1"));
    assert!(
        trusts(&["::ffff:10.0.0.0/104"], "10.1.2.3") && trusts(&["::ffff:10.0.0.1"], "10.0.0.1")
    );
    assert!(trusts(&["10.0.0.0/8"], "::ffff:10.1.2.3"));
    assert!(!trusts(&["::/0"], "10.0.0.1"));
    for wrong in ["", "10.0.0.0/33", "10.0.0", "localhost", "10.0.0.1/8/8", "::/129"] {
        assert!(ByIp::try_trusting([wrong]).is_err(), "{wrong}");
    }
}

#[test]
fn addresses_have_one_spelling() {
    let text = |by_ip: &ByIp, address: &str| by_ip.attribute(address.parse().unwrap());
    let usual = ByIp::direct();
    assert_eq!(text(&usual, "203.0.113.7"), "203.0.113.7");
    assert_eq!(text(&usual, "::ffff:203.0.113.7"), "203.0.113.7");
    assert_eq!(text(&usual, "2001:DB8:1:2:3:4:5:6"), "2001:db8:1:2:3:4:5:6");
}

proptest! {
    #[test]
    fn any_two_addresses_of_one_64_share_a_key(network: u64, one: u64, other: u64) {
        // A mapped address is IPv4 and treated as such.
        prop_assume!(network != 0);
        let address = |host: u64| {
            IpAddr::V6(Ipv6Addr::from_bits(u128::from(network) << 64 | u128::from(host)))
        };
        let (by_ip, policy) = (ByIp::direct(), Policy::default());
        let subject = |address: IpAddr| {
            policy.typed(&Request::new().with("ip", by_ip.attribute(address))).attribute("ip").map(<[u8]>::to_vec)
        };
        prop_assert_eq!(subject(address(one)), subject(address(other)));
        let neighbour = IpAddr::V6(Ipv6Addr::from_bits(u128::from(network ^ 1) << 64));
        prop_assert_ne!(subject(address(one)), subject(neighbour));
    }

    #[test]
    fn entries_that_a_client_prepends_change_nothing(
        forged in "[0-9a-f:., \"\\[\\]_;=\\\\]{0,40}",
        client_bits: u32,
    ) {
        let address = Ipv4Addr::from_bits(client_bits);
        prop_assume!(!trusting_ten().trusts(IpAddr::V4(address)));
        let line = format!("{forged}, {address}, 10.0.0.2");
        prop_assert_eq!(client(&trusting_ten(), X_FORWARDED_FOR, &[&line]), address.to_string());
    }
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
