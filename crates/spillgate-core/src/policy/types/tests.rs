use proptest::prelude::*;

use super::*;
use crate::policy::Policy;
use crate::policy::problem::Problems;

fn types(text: &str) -> Policy {
    Policy::from_toml(text).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the value that a rule sees.
fn spelled(policy: &Policy, attribute: &str, value: &str) -> String {
    let request = Request::new().with(attribute.to_owned(), value);
    let typed = policy.typed(&request);
    String::from_utf8(typed.attribute(attribute).unwrap().to_vec()).unwrap()
}

#[test]
fn addresses_and_paths_have_one_spelling_and_texts_stay() {
    let policy = types(
        "[attribute.client]\ntype = 'ip'\nipv6_prefix = 48\n\
         [attribute.block]\ntype = 'ip'\nipv4_prefix = 24\n\
         [attribute.path]\ntype = 'path'\nignore_trailing_slash = true\nignore_case = true\n\
         [attribute.target]\ntype = 'path'\n[attribute.remote_address]\ntype = 'string'\n",
    );
    for (attribute, value, expected) in [
        ("ip", "203.0.113.7", "203.0.113.7"),
        ("ip", "::ffff:203.0.113.7", "203.0.113.7"),
        ("ip", "[2001:DB8:1:2::7]:443", "2001:db8:1:2::/64"),
        ("ip", "2001:db8:1:2::/64", "2001:db8:1:2::/64"),
        ("ip", "2001:db8:1:2::7/128", "2001:db8:1:2::/64"),
        ("client", "2001:db8:1:2::7", "2001:db8:1::/48"),
        ("client", "2001:db8:1:2::/64", "2001:db8:1::/48"),
        ("block", "203.0.113.7", "203.0.113.0/24"),
        ("path", "/A//b/./C/", "/a/b/c"),
        ("path", "/", "/"),
        ("target", "/A//b/./C/?x", "/A/b/C/"),
        ("target", "/a%2F..%2fb", "/b"),
        ("remote_address", "2001:DB8::7", "2001:DB8::7"),
        ("user", "2001:DB8::7", "2001:DB8::7"),
    ] {
        assert_eq!(spelled(&policy, attribute, value), expected, "{attribute} = {value}");
    }
}

#[test]
fn patterns_with_escapes_match_paths_in_any_case_if_case_is_ignored() {
    let policy = types(
        "[attribute.path]\ntype = 'path'\nignore_trailing_slash = true\nignore_case = true\n\
         [[rule]]\nname = 'a'\nkey = []\nlimits = ['1/s']\n\
         match.path = ['/Caf%C3%A9/*', '/{X}/%2F/']\n",
    );
    for (path, is_matched) in [
        ("/Caf%C3%A9/menu", true),
        ("/CAF%c3%a9/Menu/", true),
        ("/caf\u{e9}/x", true),
        ("/b/%2f", true),
        ("/cafe/menu", false),
    ] {
        let request = Request::new().with("path", path);
        let matched = policy.matched(&policy.typed(&request));
        assert_eq!(!matched.is_empty(), is_matched, "{path}");
    }
}

#[test]
fn a_rule_matches_by_either_reading_of_a_path_and_its_key_uses_the_decoded_one() {
    let policy = types(
        "[attribute.path]\ntype = 'path'\nignore_case = true\n\
         [[rule]]\nname = 'login'\nmatch.path = '/login'\nkey = ['path']\nlimits = ['1/s']\n\
         [[rule]]\nname = 'deep'\nmatch.path = '/a/login'\nkey = []\nlimits = ['1/s']\n\
         [[rule]]\nname = 'kept'\nmatch.path = '/x%2F..%2Flogin'\nkey = []\nlimits = ['1/s']\n\
         [[rule]]\nname = 'other'\nmatch.path = { not = '/login' }\nkey = []\nlimits = ['1/s']\n",
    );
    let of = |path: &str| {
        let request = Request::new().with("path", path);
        let typed = policy.typed(&request);
        let matched = policy.matched(&typed);
        let names: Vec<_> = matched.iter().map(|matched| matched.rule.name()).collect();
        let again = policy.typed(&typed);
        assert!(matches!(again, TypedRequest::Given(_)), "{path}: the spelling is its own");
        let subject = matched.first().map(|matched| {
            matched
                .rule
                .subject_key(&typed, &crate::subject::Secret::new(&crate::subject::SHARED_SECRET))
                .id
        });
        (names.join(" "), subject)
    };
    let login = of("/login");
    assert_eq!(login.0, "login");
    for path in ["/%2flogin", "/.%2FLogin", "/y%2f%2e%2e%2flogin", "/%2F%2f/login"] {
        assert_eq!(of(path), ("login other".to_owned(), login.1), "{path}");
    }
    assert_eq!(of("/X%2f..%2flogin").0, "login kept other");
    // The two readings resolve the dots differently.
    assert_eq!(of("/a%2fb/../login").0, "login deep other");
    assert_eq!(of("/%252flogin").0, "other");
}

/// Returns the names of the rules that match, and for each the value of an attribute by which its key names the subject.
fn subjects(policy: &Policy, request: &Request<'_>, attribute: &str) -> Vec<(String, String)> {
    let typed = policy.typed(request);
    assert!(matches!(policy.typed(&typed), TypedRequest::Given(_)), "{typed:?}: spelled anew");
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let matched = policy.matched(&typed).into_iter();
    let named = matched.map(|matched| {
        (matched.rule.name().to_owned(), text(matched.rule.subject_value(&typed, attribute)))
    });
    named.collect()
}

// Found by an attacker: each of these avoided the limit of its path, or made a quota of its own.
#[test]
fn a_key_uses_the_reading_that_matched_in_one_spelling() {
    let policy = types(
        "[[rule]]\nname = 'api'\nmatch.path = ['/api/login', '/gpt:go']\nkey = ['path']\nlimits = ['1/s']\n\
         [[override]]\nrule = 'api'\nsubject.path = '/api/login'\nlimits = ['block']\n",
    );
    for (target, subject) in [
        ("/api/login", "/api/login"),
        ("/api%2Flogin", "/api/login"),
        ("/q1%2fb/../api/login", "/api/login"),
        ("/a%2fb/../api%2flogin", "/api/login"),
        ("/a%2fb/../x/..%2fapi%2flogin", "/api/login"),
        ("/api/login%0a", "/api/login"),
        ("/api/login%0A%0a?x", "/api/login"),
        ("/x#/../api/login", "/api/login"),
        ("/x#%2f../api%2flogin%0a?y", "/api/login"),
        ("/api/login#x", "/api/login"),
        ("/gpt%3Ago", "/gpt:go"),
        ("/gpt%3a%67o%0A", "/gpt:go"),
        // Two of the rule's paths, of which a server may take either.
        ("/api/login#/../../gpt:go", "/several%20values"),
    ] {
        let request = Request::new().with("path", target);
        let expected = [("api".to_owned(), subject.to_owned())];
        assert_eq!(subjects(&policy, &request, "path"), expected, "{target}");
        let typed = policy.typed(&request);
        let blocked = policy.matched(&typed)[0].limits[0].limit().capacity() == Some(0);
        assert_eq!(blocked, subject == "/api/login", "{target}");
    }
    for target in ["/x", "/api/login%0ax", "/api%252flogin", "/x?#/../api/login"] {
        let request = Request::new().with("path", target);
        assert_eq!(subjects(&policy, &request, "path"), [], "{target}");
    }
}

#[test]
fn spellings_that_servers_read_differently_share_one_subject() {
    let policy =
        types("[[rule]]\nname = 'all'\nmatch.path = '/v1/*'\nkey = ['path']\nlimits = ['1/s']\n");
    for (target, subject) in [
        ("/v1/a:b,c", "/v1/a:b,c"),
        ("/v1/%61%3Ab%2Cc%0a", "/v1/a:b,c"),
        ("/v1/group%2Fname", "/v1/group/name"),
        ("/v1/x/../y", "/v1/y"),
        ("/v1/q1%2fb/../y", "/several%20values"),
        ("/v1/q2%2fb/../y", "/several%20values"),
        ("/v1/q#/../y", "/several%20values"),
    ] {
        let request = Request::new().with("path", target);
        let expected = [("all".to_owned(), subject.to_owned())];
        assert_eq!(subjects(&policy, &request, "path"), expected, "{target}");
    }
}

#[test]
fn a_repeated_field_of_a_type_matches_by_each_of_its_values() {
    let policy = types(
        "[attribute.next]\ntype = 'path'\n\
         [[rule]]\nname = 'net'\nmatch.ip = '10.0.0.0/8'\nkey = ['ip']\nlimits = ['1/s']\n\
         [[rule]]\nname = 'login'\nmatch.next = '/login'\nkey = ['next']\nlimits = ['1/s']\n",
    );
    for (attribute, values, found) in [
        ("ip", vec!["10.1.1.1", "8.8.8.8"], Some(("net", "unknown"))),
        ("ip", vec!["x", "10.1.1.1"], Some(("net", "unknown"))),
        ("ip", vec!["::ffff:10.1.1.1", "10.1.1.1"], Some(("net", "10.1.1.1"))),
        ("ip", vec!["x", "8.8.8.8"], None),
        ("next", vec!["//login", "x"], Some(("login", "/several%20values"))),
        ("next", vec!["/x%252f../login", "y"], None),
        ("next", vec!["/x", "/y%2f..%2flogin%0a"], Some(("login", "/several%20values"))),
        ("next", vec!["/login?a", "//login"], Some(("login", "/login"))),
    ] {
        let value = Value::of_repeated(values.iter().map(|value| value.as_bytes())).unwrap();
        let request = Request::new().with(attribute, value);
        let expected = found.map(|(rule, subject)| (rule.to_owned(), subject.to_owned()));
        let expected: Vec<_> = expected.into_iter().collect();
        assert_eq!(subjects(&policy, &request, attribute), expected, "{values:?}");
    }
}

#[test]
fn odd_values_are_one_subject_so_that_no_client_gets_another_limit_by_them() {
    for odd in ["", "x", "203.0.113.256", "010.0.0.1", "10.0.0.0/8", "::/0", "1.2.3.4:x", "unknown"]
    {
        assert_eq!(spelled(&Policy::default(), "ip", odd), "unknown", "{odd}");
    }
    let request = Request::new().with("ip", &b"\xff\xfe"[..]);
    assert_eq!(Policy::default().typed(&request).attribute("ip"), Some(UNKNOWN));
}

// Found by an operator: the block of a network behind NAT64 answered "done", and blocked no client.
#[test]
fn a_network_behind_nat64_matches_and_covers_ipv4_addresses() {
    let policy = types(
        "[[rule]]\nname = 'r'\nkey = ['ip']\nlimits = ['1/s']\n\
         match.ip.cidr = ['64:ff9b::203.0.113.0/120']\n\
         [[override]]\nrule = 'r'\nsubject.ip = '64:ff9b::203.0.113.128/121'\nlimits = ['block']\n",
    );
    for (ip, is_blocked) in [
        ("64:ff9b::203.0.113.7", Some(false)),
        ("203.0.113.7", Some(false)),
        ("64:ff9b::203.0.113.200", Some(true)),
        ("203.0.113.200", Some(true)),
        ("64:ff9b::203.0.114.7", None),
        ("203.0.114.7", None),
    ] {
        let request = Request::new().with("ip", ip);
        let matched = policy.matched(&policy.typed(&request));
        let found = matched.first().map(|rule| rule.limits[0].limit().capacity() == Some(0));
        assert_eq!(found, is_blocked, "{ip}");
    }
}

#[test]
fn a_request_in_the_one_spelling_is_not_copied() {
    let policy = Policy::default();
    for address in ["203.0.113.7", "2001:db8::/64", "unknown"] {
        let request = Request::new().with("ip", address).with("user", "ann");
        assert!(matches!(policy.typed(&request), TypedRequest::Given(_)), "{address}");
    }
}

#[test]
fn types_that_cannot_be_read_are_refused() {
    for (text, message) in [
        ("attribute = 5", "field `attribute`: write a table for each, such as [attribute.client]"),
        ("[attribute.a]", r#"attribute "a", field `type`: missing; write for example type = "ip""#),
        (
            "[attribute.a]\ntype = 'text'",
            r#"attribute "a", field `type`: "text" is none of string, ip, path; write one of these"#,
        ),
        (
            "[attribute.a]\ntype = 'ip'\nipv6_prefix = 129",
            r#"attribute "a", field `ipv6_prefix`: such an address has 128 bits; write 0 to 128"#,
        ),
        (
            "[attribute.a]\ntype = 'path'\nipv6_prefix = 64",
            r#"attribute "a", field `ipv6_prefix`: is for attributes of type ip; leave it out"#,
        ),
        (
            "[attribute.a]\ntype = 'ip'\n[[rule]]\nname = 'r'\nkey = []\nlimits = ['1/s']\n[attribute.a]\ntype = 'ip'",
            r#"attribute "a", field `type`: declared twice; keep one of the tables"#,
        ),
    ] {
        let mut problems = Problems::in_text(text);
        Policy::read(text, 0, &mut problems);
        let error = problems.into_errors("f").remove(0).to_string();
        let (_, shown) = error.split_once(": ").unwrap();
        assert_eq!(shown, message, "{text}");
    }
}

proptest! {
    #[test]
    fn the_one_spelling_is_its_own(
        value in "[0-9a-f:.\\[\\]/%]{0,24}|[0-9]{1,3}(\\.[0-9]{1,3}){3}|([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|(/[A-Za-z.%20]{0,4}){0,5}|(/|x|\\.\\.|%0A|%2F|#){0,9}",
        (case, slash) in (any::<bool>(), any::<bool>()), v4 in 0u8..=32, v6 in 0u8..=128,
    ) {
        let form = PathForm { ignore_trailing_slash: slash, ignore_case: case };
        let prefix = SubjectPrefix::new(v4, v6).unwrap();
        for of_type in [AttributeType::Ip(prefix), AttributeType::Path(form)] {
            let Some(once) = of_type.respelled(&value.as_str().into()) else { continue };
            prop_assert_eq!(of_type.respelled(&once), None, "{} {:?}", value, of_type);
            // An operator can name each subject by the text that a list of subjects shows.
            let named = of_type.named(once.as_bytes()).unwrap();
            prop_assert_eq!(named, Named::Value(once.as_bytes().into()));
        }
    }

    #[test]
    fn an_address_and_its_subject_name_the_same(bits: u128, v4: u32) {
        let address = core::net::Ipv6Addr::from_bits(bits);
        prop_assume!(address.to_ipv4_mapped().is_none());
        let of_type = AttributeType::Ip(SubjectPrefix::default());
        let subject = of_type.respelled(&address.to_string().into()).unwrap();
        let named = |text: String| of_type.named(text.as_bytes());
        prop_assert_eq!(named(address.to_string()), Ok(Named::Value(subject.as_bytes().into())));
        let v4 = core::net::Ipv4Addr::from_bits(v4);
        let plain = Named::Value(v4.to_string().into_bytes().into());
        prop_assert_eq!(named(v4.to_ipv6_mapped().to_string()), Ok(plain));
    }
}
