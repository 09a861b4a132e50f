//! Paths and hosts, each with one spelling.

use std::borrow::Cow;

use proptest::prelude::*;
use spillgate::http::{normalised_host, normalised_path, path_with_slashes_decoded};

#[test]
fn each_path_has_one_spelling() {
    for (written, normal) in [
        ("/", "/"),
        ("", "/"),
        ("*", "*"),
        ("/login", "/login"),
        ("login", "/login"),
        ("/login/", "/login/"),
        ("/login?next=/a//b", "/login"),
        ("/login#top?x", "/login"),
        ("//login", "/login"),
        ("///a////b///", "/a/b/"),
        ("/%6Cogi%6e", "/login"),
        ("/%2d%2E%5f%7e%41%7A%30", "/-._~Az0"),
        ("/a%2fb%3fc", "/a%2Fb%3Fc"),
        ("/a%20b%c3%a9", "/a%20b%C3%A9"),
        ("/é", "/%C3%A9"),
        ("/a|b\"<>\\^`{}", "/a%7Cb%22%3C%3E%5C%5E%60%7B%7D"),
        ("/100%", "/100%25"),
        ("/%zz%4", "/%25zz%254"),
        ("/%2541", "/%2541"),
        ("/a/./b/.", "/a/b/"),
        ("/a/../b", "/b"),
        ("/a/b/..", "/a/"),
        ("/../../etc", "/etc"),
        ("/a/%2e%2e/b/%2E/c", "/b/c"),
        ("/.well-known/..x", "/.well-known/..x"),
        ("/a//../b", "/b"),
        ("/!$&'()*+,;=:@", "/!$&'()*+,;=:@"),
        ("http://example.org/a/../b?c", "/b"),
        ("http://example.org", "/"),
        ("http://example.org?x", "/"),
        ("//example.org/a", "/example.org/a"),
        ("/a://b", "/a:/b"),
    ] {
        assert_eq!(normalised_path(written), normal, "{written}");
    }
}

#[test]
fn an_escaped_slash_has_a_second_reading() {
    for (written, decoded) in [
        ("/%2flogin", Some("/login")),
        ("/x%2F..%2Flogin", Some("/login")),
        ("/x%2f%2e%2e%2flogin?a=%2f", Some("/login")),
        ("/a%2fb/../login", Some("/a/login")),
        ("/login%2f", Some("/login/")),
        ("https://example.org/%2flogin", Some("/login")),
        ("%2f", Some("/")),
        ("/login", None),
        ("/login?next=%2f", None),
        ("/%252flogin", None),
        ("/%%2flogin", Some("/%25/login")),
        ("/%5clogin", None),
    ] {
        assert_eq!(path_with_slashes_decoded(written).as_deref(), decoded, "{written}");
    }
}

#[test]
fn a_normal_path_is_borrowed() {
    assert!(matches!(normalised_path("/api/v1/users/42"), Cow::Borrowed(_)));
}

proptest! {
    #[test]
    fn a_normal_path_stays_as_it_is(path in "[/.%a-cé26eE?#:*]{0,24}") {
        let once = normalised_path(&path).into_owned();
        prop_assert_eq!(normalised_path(&once), once.as_str());
    }

    #[test]
    fn any_bytes_make_an_absolute_ascii_path(bytes: Vec<u8>) {
        let decoded = path_with_slashes_decoded(&bytes);
        prop_assert!(decoded.as_ref().is_none_or(|path| normalised_path(path) == path.as_str()));
        let path = normalised_path(&bytes).into_owned();
        prop_assert!(path == "*" || path.starts_with('/'), "{path}");
        prop_assert!(path.is_ascii() && !path.contains("//"), "{path}");
        prop_assert!(!path.split('/').any(|segment| segment == "." || segment == ".."), "{path}");
    }
}

#[test]
fn a_host_has_one_spelling() {
    for (reply, spelling) in [
        ("example.org", "example.org"),
        ("Example.ORG:8443", "example.org"),
        ("example.org.", "example.org"),
        ("example.org.:80", "example.org"),
        (" example.org ", "example.org"),
        ("[2001:DB8::1]:443", "[2001:db8::1]"),
        ("[2001:db8::1", "[2001:db8::1"),
        ("a:b:c", "a"),
        ("", ""),
        (":80", ""),
    ] {
        assert_eq!(normalised_host(reply), spelling.as_bytes(), "{reply:?}");
    }
}
