use std::slice::from_ref;

use proptest::prelude::*;

use super::*;
use crate::request::Request;

const TEXT: &str = r#"
    [[rule]]
    name = "api"
    key = ["tenant", "user"]
    limits = [{ quota = "10/day" }, { quota = "20/day", name = "daily", algorithm = "fixed-window" }]

    [[override]]
    rule = "api"
    subject = { tenant = "acme", user = "ann" }
    limits = ["11/day"]

    [[override]]
    rule = "api"
    subject = { tenant = "acme" }
    limits = ["12/day"]
"#;

fn subject(pairs: &[(&str, &str)]) -> Subject {
    pairs.iter().map(|(name, value)| ((*name).into(), value.as_bytes().into())).collect()
}

fn set(pairs: &[(&str, &str)], quota: &str) -> RuntimeEntry {
    let limits = vec![LimitSpec::new(quota)];
    RuntimeEntry::Override { rule: "api".into(), subject: subject(pairs), limits }
}

fn with(entries: &[RuntimeEntry]) -> Policy {
    let (policy, held) = Policy::from_toml(TEXT).unwrap().with_entries(entries);
    assert!(held.iter().all(Result::is_ok), "{held:?}");
    policy
}

fn capacity(policy: &Policy, tenant: &str, user: &str) -> Option<u64> {
    let request = Request::new().with("tenant", tenant).with("user", user);
    policy.matched(&request)[0].limits[0].limit().capacity()
}

#[test]
fn more_attributes_win_then_the_runtime_change() {
    let written = with(&[]);
    assert_eq!(capacity(&written, "acme", "ann"), Some(11));
    let tenant = with(&[set(&[("tenant", "acme")], "30/day")]);
    assert_eq!(capacity(&tenant, "acme", "ann"), Some(11), "the file's names more attributes");
    assert_eq!(capacity(&tenant, "acme", "bob"), Some(30), "the same subject as the file's");
    assert_eq!(capacity(&tenant, "other", "bob"), Some(10));
    let both = with(&[set(&[("tenant", "acme"), ("user", "ann")], "block")]);
    assert_eq!(capacity(&both, "acme", "ann"), Some(0));
    assert_eq!(capacity(&both, "acme", "bob"), Some(12));
}

#[test]
fn the_newest_of_two_that_tie_wins() {
    let (tenant, user) = (set(&[("tenant", "acme")], "30/day"), set(&[("user", "bob")], "40/day"));
    assert_eq!(capacity(&with(&[tenant.clone(), user.clone()]), "acme", "bob"), Some(40));
    assert_eq!(capacity(&with(&[user, tenant]), "acme", "bob"), Some(30));
}

#[test]
fn entries_replace_earlier_ones_and_never_change_the_file() {
    let first = with(&[set(&[("tenant", "acme")], "30/day")]);
    assert_eq!(capacity(&first.as_written(), "acme", "bob"), Some(12));
    let off = RuntimeEntry::Mode { rule: "api".into(), mode: Mode::Off };
    let (off, _) = first.with_entries([&off]);
    assert!(off.matched(&Request::new().with("tenant", "a").with("user", "b")).is_empty());
    assert_eq!(off.written_mode("api"), Some(Mode::Enforce));
    assert_eq!(capacity(&off.as_written(), "acme", "bob"), Some(12));
}

#[test]
fn a_generation_changes_the_state_of_its_rule_and_no_shard() {
    let secret = crate::subject::Secret::new(&crate::subject::SHARED_SECRET);
    let request = Request::new().with("tenant", "a").with("user", "b");
    let key = |number: Option<u64>| {
        let entry = number.map(|number| RuntimeEntry::Generation { rule: "api".into(), number });
        with(entry.as_slice()).rule("api").unwrap().subject_key(&request, &secret)
    };
    assert_eq!(key(None).tag, key(Some(7)).tag);
    assert_ne!(key(None).id, key(Some(7)).id);
    assert_ne!(key(None).rule, key(Some(7)).rule);
    assert_ne!(key(Some(8)).id, key(Some(7)).id);
}

#[test]
fn invalid_entries_are_left_out_and_reported() {
    let named = |name: &str| LimitSpec { name: Some(name.into()), ..LimitSpec::new("9/day") };
    let entry = |rule: &str, pairs: &[(&str, &str)], limits: Vec<LimitSpec>| {
        RuntimeEntry::Override { rule: rule.into(), subject: subject(pairs), limits }
    };
    let ann = [("user", "ann")];
    for (entry, message) in [
        (
            entry("apis", &ann, vec![named("0")]),
            r#"rule: there is no rule "apis"; did you mean "api"?"#,
        ),
        (
            entry("login", &ann, vec![named("0")]),
            r#"rule: there is no rule "login"; write the name of one in the policy"#,
        ),
        (
            entry("api", &[("ip", "x")], vec![named("0")]),
            r#"subject: "ip" is not in the rule's key; name one or more of ["tenant", "user"]"#,
        ),
        (entry("api", &ann, vec![]), "limits: 0 limits; write 1 to 64, for example"),
        (
            entry("api", &ann, vec![named("x")]),
            r#"limit "x": the rule has no limit "x"; name one of ["0", "daily"]"#,
        ),
        (
            entry("api", &ann, vec![named("0"), named("0")]),
            r#"limit "0": another limit replaces the rule's limit "0" already"#,
        ),
        (
            entry("api", &ann, vec![LimitSpec::new("9/fortnight")]),
            r#"limit "0": quota: "9/fortnight" is not a quota: "fortnight" is not a length of time"#,
        ),
    ] {
        let good = set(&[("tenant", "acme")], "30/day");
        let (policy, held) = Policy::from_toml(TEXT).unwrap().with_entries([&entry, &good]);
        let why = held[0].as_ref().unwrap_err().to_string();
        assert!(why.starts_with(message), "{why}");
        assert_eq!(held[1], Ok(()));
        assert_eq!(capacity(&policy, "acme", "bob"), Some(30), "the other entry holds");
    }
}

#[test]
fn the_sets_of_attributes_are_bounded() {
    let key: Vec<String> = (0..7).map(|place| format!("\"k{place}\"")).collect();
    let text =
        format!("[[rule]]\nname = \"api\"\nkey = [{}]\nlimits = [\"9/day\"]", key.join(", "));
    let entries: Vec<RuntimeEntry> = (1u32..=65)
        .map(|set_of| {
            let named = (0..7).filter(|place| set_of & 1 << place != 0);
            let subject = named.map(|k| (format!("k{k}").into(), b"v"[..].into())).collect();
            let limits = vec![LimitSpec::new("1/day")];
            RuntimeEntry::Override { rule: "api".into(), subject, limits }
        })
        .collect();
    let (policy, held) = Policy::from_toml(&text).unwrap().with_entries(&entries);
    assert!(held[..64].iter().all(Result::is_ok));
    assert_eq!(held[64], Err(InvalidChange::TooManySets));
    let pairs = |entry: &RuntimeEntry| {
        let RuntimeEntry::Override { subject, limits, .. } = entry else { panic!("{entry:?}") };
        policy.pairs("api", subject, limits)
    };
    assert_eq!(pairs(&entries[64]), Err(InvalidChange::TooManySets));
    assert_eq!(pairs(&entries[63]), Ok(()), "a set that is looked up already");
    let newer = policy.with_newest(&entries[0]).unwrap();
    let RuntimeEntry::Override { subject, limits, .. } = &entries[64] else { panic!() };
    assert_eq!(newer.pairs("api", subject, limits), Err(InvalidChange::TooManySets));
    assert!(newer.with_newest(&entries[64]).is_none());
}

// Found by an operator: a block of a network, or of an IPv6 address as an access log has it,
// answered "done" and blocked no client.
#[test]
fn a_change_names_the_subject_of_an_address_or_a_network() {
    let text = "[[rule]]\nname = 'api'\nkey = ['ip']\nlimits = ['10/day', '20/day']";
    let policy = Policy::from_toml(text).unwrap();
    for (written, stored) in [
        ("203.0.113.9/24", "203.0.113.0/24"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("64:ff9b::203.0.113.7", "203.0.113.7"),
        ("64:ff9b::203.0.113.9/120", "203.0.113.0/24"),
        ("2001:DB8::7", "2001:db8::/64"),
        ("2001:db8::7/48", "2001:db8::/48"),
        ("2001:db8::/64", "2001:db8::/64"),
    ] {
        let named = policy.named_subject(&Request::new().with("ip", written));
        assert_eq!(named, subject(&[("ip", stored)]), "{written}");
        let (blocked, held) = policy.with_entries([&set(&[("ip", stored)], "block")]);
        assert_eq!(held, [Ok(())]);
        let address = written.split('/').next().unwrap();
        let request = Request::new().with("ip", address);
        let matched = blocked.matched(&blocked.typed(&request));
        assert_eq!(matched[0].limits[0].limit().capacity(), Some(0), "{written}");
    }
    let limits = [LimitSpec::new("block")];
    let pairs = |address: &str| policy.pairs("api", &subject(&[("ip", address)]), &limits);
    let too_narrow = pairs("2001:db8::7/80").unwrap_err().to_string();
    let part = r#"subject: "ip": "2001:db8::7/80" is only a part of"#;
    assert!(too_narrow.starts_with(part), "{too_narrow}");
    assert!(too_narrow.contains("write \"2001:db8::/64\" to cover it"), "{too_narrow}");
    assert!(pairs("localhost").is_err());
}

// Found by an operator: the reset of a network, or of a text that is no address, answered "done" and
// reset the subject `unknown`.
#[test]
fn only_an_address_names_one_subject() {
    let text = "[[rule]]\nname = 'api'\nkey = ['ip', 'user']\nlimits = ['10/day']";
    let policy = Policy::from_toml(text).unwrap();
    let rule = policy.rule("api").unwrap();
    let named = |address: &'static str| {
        let subject =
            Request::new().with("ip", address).with("user", "").with("remote_address", "x");
        policy.names_one_subject(rule, &subject)
    };
    for one in [
        "203.0.113.7",
        "203.0.113.7/32",
        "2001:db8::7",
        "2001:db8::/64",
        "2001:db8::/80",
        "unknown",
    ] {
        assert_eq!(named(one), Ok(()), "{one}");
    }
    for (value, message) in [
        ("", r#"subject: "ip": "" is not an IP address; write one such as "203.0.113.7""#),
        ("bad", r#"subject: "ip": "bad" is not an IP address; write one such as "203.0.113.7""#),
        ("10.0.0.0/8", r#"subject: "ip": "10.0.0.0/8" is a network; write one address such as"#),
        ("2001:db8::/48", r#"subject: "ip": "2001:db8::/48" is a network; write one address"#),
    ] {
        let refused = named(value).unwrap_err().to_string();
        assert!(refused.starts_with(message), "{refused}");
    }
}

#[test]
fn an_override_covers_subjects_with_its_values_and_networks() {
    let text = "[[rule]]\nname = 'api'\nkey = ['ip', 'user']\nlimits = ['10/day']";
    let policy = Policy::from_toml(text).unwrap();
    let one = subject(&[("ip", "10.0.0.7"), ("user", "ann")]);
    for wide in [&[][..], &[("user", "ann")], &[("ip", "10.0.0.0/8")], &[("ip", "10.0.0.7")]] {
        assert!(policy.covers(&subject(wide), &one), "{wide:?}");
    }
    for other in [&[("user", "bob")][..], &[("ip", "11.0.0.0/8")], &[("ip", "2001:db8::/32")]] {
        assert!(!policy.covers(&subject(other), &one), "{other:?}");
    }
    assert!(!policy.covers(&one, &subject(&[("ip", "10.0.0.7")])));
}

#[test]
fn between_the_file_and_a_runtime_change_the_smaller_network_wins() {
    let text = "[[rule]]\nname = 'api'\nkey = ['ip', 'tenant']\nlimits = ['10/day']\n\
                [[override]]\nrule = 'api'\nsubject = { ip = '10.0.0.7' }\nlimits = ['unlimited']\n\
                [[override]]\nrule = 'api'\nsubject = {}\nlimits = ['11/day']\n";
    let policy = Policy::from_toml(text).unwrap();
    let blocked = |entries: &[RuntimeEntry], address: &str| {
        let (policy, _) = policy.with_entries(entries);
        let request = Request::new().with("ip", address).with("tenant", "acme");
        let capacity = policy.matched(&request)[0].limits[0].limit().capacity();
        capacity == Some(0)
    };
    let network = set(&[("ip", "10.0.0.0/8")], "block");
    assert!(!blocked(from_ref(&network), "10.0.0.7"), "the file exempts this address");
    assert!(blocked(&[network], "10.0.0.8"));
    let everyone = set(&[], "block");
    assert!(blocked(from_ref(&everyone), "11.0.0.1") && !blocked(&[everyone], "10.0.0.7"));
    let tenant = set(&[("tenant", "acme")], "block");
    assert!(blocked(&[tenant], "10.0.0.7"), "of other attributes the runtime change wins");
}

/// One of some overrides that differ in attributes, values and networks, and overlap.
fn overlapping() -> impl Strategy<Value = RuntimeEntry> {
    let tenant = prop::option::of(prop::sample::select(vec!["a", "b"]));
    let user = prop::option::of(prop::sample::select(vec!["x", "y"]));
    let ip = prop::sample::select(vec!["10.0.0.1", "10.0.0.0/24", "10.0.0.0/8"]);
    (tenant, user, prop::option::of(ip), 1..1_000u32).prop_map(|(tenant, user, ip, quota)| {
        let named = [("ip", ip), ("tenant", tenant), ("user", user)];
        let named: Vec<_> =
            named.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        set(&named, &format!("{quota}/day"))
    })
}

const OVERLAPPING: &str = r#"
    attribute.ip.type = "ip"

    [[rule]]
    name = "api"
    key = ["ip", "tenant", "user"]
    limits = ["10/day"]

    [[override]]
    rule = "api"
    subject = { tenant = "a" }
    limits = ["12/day"]
"#;

const SUBJECTS: [(&str, &str, &str); 4] = [
    ("10.0.0.1", "a", "x"),
    ("10.0.0.2", "a", "y"),
    ("10.9.0.1", "b", "x"),
    ("11.0.0.1", "b", "y"),
];

proptest! {
    #[test]
    fn changes_that_come_one_by_one_hold_as_if_they_were_joined_at_once(
        entries in prop::collection::vec(overlapping(), 1..40)
    ) {
        let written = Policy::from_toml(OVERLAPPING).unwrap();
        let mut policy = written.clone();
        for count in 1..=entries.len() {
            let (joined, _) = written.with_entries(&entries[..count]);
            policy = policy.with_newest(&entries[count - 1]).unwrap_or_else(|| joined.clone());
            for (ip, tenant, user) in SUBJECTS {
                let request = Request::new().with("ip", ip).with("tenant", tenant);
                let request = request.with("user", user);
                let limits = |policy: &Policy| {
                    let ever = policy.limits_ever_in_force(policy.rule("api").unwrap(), &request);
                    (policy.matched(&request)[0].limits.to_vec(), ever)
                };
                prop_assert_eq!(limits(&policy), limits(&joined), "{} of {:?}", count, &request);
            }
        }
    }
}

#[test]
fn one_more_override_is_added_to_many_without_entering_them_again() {
    let of =
        |number: usize| set(&[("tenant", &*number.to_string())], &format!("{}/day", number + 1));
    let (mut policy, mut joined) = (with(&[]), 0);
    let mut entries = Vec::new();
    for number in 0..1_000 {
        entries.push(of(number));
        policy = policy.with_newest(&entries[number]).unwrap_or_else(|| {
            joined += 1;
            with(&entries)
        });
    }
    assert_eq!(joined, 4);
    for number in 0..1_000 {
        assert_eq!(capacity(&policy, &number.to_string(), "ann"), Some(number as u64 + 1));
    }
}
