//! What a policy file means: rules, keys, overrides and their networks.
//!
//! Longer than 450 lines because each rule of the file format has its claim here.

use std::collections::BTreeSet;

use super::file::TREE_MAX;
use super::problem::Problems;
use super::{PIECE_BYTES, Policy};
use crate::limit::{Algorithm, Limit};
use crate::request::Request;
use crate::subject::{SHARED_SECRET, Secret, SubjectKey};

mod denials;
mod differential;
mod refusals;

fn policy(text: &str) -> Policy {
    Policy::from_toml(text).unwrap_or_else(|error| panic!("{error}"))
}

fn names_met<'p>(policy: &'p Policy, request: &Request<'_>) -> Vec<&'p str> {
    policy.matched(request).iter().map(|matched| matched.rule.name()).collect()
}

/// Returns the limits in force for the one rule that matches the request.
fn in_force(policy: &Policy, request: &Request<'_>) -> Vec<String> {
    let matched = policy.matched(request);
    assert_eq!(matched.len(), 1);
    matched[0].limits.iter().map(|named| named.limit().to_string()).collect()
}

#[test]
fn a_request_matches_rules_in_file_order_except_those_that_are_off() {
    let policy = policy(
        r#"
        rule = [
            { name = "z", key = [], limits = ["1/second"], match = { route = "/a" } },
            { name = "off", key = [], limits = ["1/second"], mode = "off" },
            { name = "y", key = [], limits = ["1/second"], mode = "shadow" },
            { name = "x", key = [], limits = ["1/second"], match = { route = "/*" } },
        ]"#,
    );
    assert_eq!(names_met(&policy, &Request::new().with("route", "/a")), ["z", "y", "x"]);
    assert_eq!(names_met(&policy, &Request::new().with("route", "/b")), ["y", "x"]);
    assert_eq!(names_met(&policy, &Request::new()), ["y"]);
}

#[test]
fn a_rule_matches_only_in_its_domain_and_with_its_whole_key() {
    let policy = policy(
        r#"
        rule = [
            { name = "web", domain = "web", key = ["ip"], limits = ["1/second"] },
            { name = "default", key = ["tenant", "user"], limits = ["1/second"] },
        ]"#,
    );
    let request = Request::new().with("ip", "::1").with("tenant", "t");
    assert!(names_met(&policy, &request).is_empty());
    assert_eq!(names_met(&policy, &request.clone().in_domain("web")), ["web"]);
    assert!(names_met(&policy, &request.clone().in_domain("other")).is_empty());
    assert_eq!(names_met(&policy, &request.clone().with("user", "")), ["default"]);
    assert_eq!(policy.rule("default").unwrap().missing_from(&request), Some("user"));
}

#[test]
fn only_a_star_at_the_end_is_special_unless_the_value_is_literal() {
    let rule = |pattern| {
        format!(
            "[[rule]]\nname = 'a'\nkey = []\nlimits = ['1/second']\nmatch = {{ a = {pattern} }}"
        )
    };
    for (pattern, holds, fails) in [
        ("'/a'", &["/a"][..], &["/", "/a/", "/A", ""][..]),
        ("'/a*'", &["/a", "/a*", "/a/b"], &["/", "b/a"]),
        ("'*'", &["", "*", "x"], &[]),
        ("''", &[""], &["x"]),
        ("['x', 'y*']", &["x", "y", "yx"], &["xy", "z"]),
        ("{ exact = 'x*' }", &["x*"], &["x", "xx"]),
        ("{ prefix = 'x*' }", &["x*", "x*y"], &["x", "xx"]),
        ("['z', { exact = '*' }]", &["z", "*"], &["", "x"]),
    ] {
        let policy = policy(&rule(pattern));
        let holds_for =
            |value: &&&str| !policy.matched(&Request::new().with("a", **value)).is_empty();
        assert_eq!(holds.iter().filter(holds_for).count(), holds.len(), "{pattern}");
        assert_eq!(fails.iter().filter(holds_for).count(), 0, "{pattern}");
        assert!(policy.matched(&Request::new().with("b", "x")).is_empty(), "{pattern}");
    }
}

#[test]
fn values_are_any_bytes() {
    let policy = policy("[[rule]]\nname = 'a'\nkey = ['a']\nlimits = ['1/second']\nmatch.a = 'ÿ*'");
    assert!(policy.matched(&Request::new().with("a", &b"\xff\xfe"[..])).is_empty());
    assert_eq!(policy.matched(&Request::new().with("a", &b"\xc3\xbf\xff"[..])).len(), 1);
}

#[test]
fn names_are_compared_in_every_byte() {
    for length in 1..=12 {
        let name = "a".repeat(length);
        let request = Request::new().with(name.as_str(), "x");
        assert!(request.attribute(&name).is_some());
        for at in 0..length {
            let other = format!("{}b{}", &name[..at], &name[at + 1..]);
            assert_eq!(request.attribute(&other), None, "{other}");
        }
    }
}

#[test]
fn ten_thousand_rules_give_as_few_candidates_as_one() {
    let rule = |i: u32| {
        let route = if i.is_multiple_of(2) { format!("/{i}") } else { format!("/{i}/*") };
        format!(
            "[[rule]]\nname = 'r{i}'\nkey = []\nlimits = ['1/second']\nmatch = {{ method = 'POST', route = '{route}' }}\n"
        )
    };
    let policy = policy(&(0..10_000).map(rule).collect::<String>());
    assert_eq!(policy.rules().len(), 10_000);
    for (route, matched) in [("/1234", &["r1234"][..]), ("/4321/x", &["r4321"]), ("/nowhere", &[])]
    {
        let request = Request::new().with("method", "POST").with("route", route);
        assert_eq!(policy.index.candidates(&request).len(), matched.len());
        assert_eq!(names_met(&policy, &request), matched);
    }
}

fn key_of(rule: &str, request: &Request<'_>) -> SubjectKey {
    let policy = policy(&format!("[[rule]]\nlimits = ['1/second']\n{rule}"));
    policy.rules().next().unwrap().subject_key(request, &Secret::new(&SHARED_SECRET))
}

#[test]
fn the_order_of_key_and_anchor_does_not_change_the_state() {
    let request = Request::new().with("a", "1").with("b", "2").with("c", "3");
    assert_eq!(
        key_of("name = 'r'\nkey = ['a', 'b', 'c']\nanchor = ['a', 'b']", &request),
        key_of("name = 'r'\nkey = ['c', 'a', 'b']\nanchor = ['b', 'a']", &request),
    );
}

#[test]
fn everything_that_identifies_a_subject_changes_its_key() {
    let request = Request::new().with("a", "1").with("b", "1");
    let ids: BTreeSet<u128> = [
        key_of("name = 'r'\nkey = ['a']", &request),
        key_of("name = 'q'\nkey = ['a']", &request),
        key_of("name = 'r'\nkey = ['a']\ndomain = 'web'", &request),
        key_of("name = 'r'\nkey = ['b']", &request),
        key_of("name = 'r'\nkey = ['a', 'b']", &request),
        key_of("name = 'r'\nkey = []", &request),
        key_of("name = 'r'\nkey = ['a']", &Request::new().with("a", "2")),
    ]
    .iter()
    .map(|key| key.id)
    .collect();
    assert_eq!(ids.len(), 7);
}

#[test]
fn subjects_with_one_anchor_are_on_one_shard() {
    let request = Request::new().with("tenant", "t").with("user", "u");
    let tag = |rule: &str, request: &Request<'_>| key_of(rule, request).tag;
    let by_tenant = tag("name = 'r'\nkey = ['tenant']", &request);
    let anchored = "name = 'q'\nkey = ['tenant', 'user']\nanchor = ['tenant']";
    assert_eq!(tag(anchored, &request), by_tenant);
    assert_eq!(tag(anchored, &request.clone().with("user", "v")), by_tenant);
    assert_ne!(tag(anchored, &request.clone().with("tenant", "s")), by_tenant);
    assert_ne!(tag("name = 'q'\nkey = ['tenant', 'user']", &request), by_tenant);
}

// Stores find their data by these keys.
#[test]
fn the_keys_of_subjects_never_change() {
    let request = Request::new().with("tenant", "acme").with("user", "42");
    let key = key_of("name = 'api'\nkey = ['user', 'tenant']\nanchor = ['tenant']", &request);
    let written = format!("{:032x} {:032x} {:032x}", key.tag, key.id, key.rule);
    assert_eq!(
        written,
        "01bbc132c207e6098258dede2feebfab 610f426b1e06cd26f869d4e5c0bfc31d 5f4458c76e1f6a06c2b838bc06e83b60"
    );
}

const API: &str = r#"
    [[rule]]
    name = "api"
    key = ["tenant", "user"]
    limits = [
        { quota = "100/second", burst = 200 },
        { name = "monthly", quota = "500/month", algorithm = "fixed-window", time_zone = "Europe/Berlin", unit = "tokens" },
        { name = "slots", quota = "5", algorithm = "concurrency", max_hold = "30s" },
    ]
"#;

/// Returns the rule above, with these limits for tenant `t`.
fn api_with(limits: &str) -> Policy {
    policy(&format!(
        "{API}[[override]]\nrule = 'api'\nsubject = {{ tenant = 't' }}\nlimits = {limits}"
    ))
}

fn user_of(tenant: &'static str) -> Request<'static> {
    Request::new().with("tenant", tenant).with("user", "u")
}

#[test]
fn an_override_pairs_by_name_else_by_position_and_leaves_the_rest() {
    let before = in_force(&policy(API), &user_of("t"));
    for (limits, replaced) in [
        ("['9/second']", [true, false, false]),
        ("[{ name = 'slots', quota = '9' }]", [false, false, true]),
        ("[{ name = 'slots', quota = '9' }, '9/month']", [false, true, true]),
        ("[{ name = '0', quota = '9/second' }, '9/month', '9']", [true, true, true]),
        ("['unlimited', 'block', 'block']", [true, true, true]),
    ] {
        let policy = api_with(limits);
        let after = in_force(&policy, &user_of("t"));
        assert_eq!(std::array::from_fn(|i| before[i] != after[i]), replaced, "{limits}");
        assert_eq!(in_force(&policy, &user_of("s")), before, "no other user");
    }
}

#[test]
fn unset_fields_of_an_override_are_inherited() {
    let policy = api_with("['9/second', '9/month', '9']");
    let matched = policy.matched(&user_of("t"));
    let [bucket, monthly, slots] = matched[0].limits else { panic!("three limits") };
    assert_eq!(bucket.limit(), &Limit::per_second(9).burst(18), "the burst keeps its ratio");
    assert_eq!((monthly.name(), monthly.limit().unit()), ("monthly", "tokens"));
    assert_eq!((slots.name(), slots.algorithm()), ("slots", Algorithm::Concurrency));
    for (before, after) in matched[0].rule.named_limits().iter().zip(matched[0].limits) {
        assert_eq!(
            (before.record(), before.mix()),
            (after.record(), after.mix()),
            "the state stays"
        );
    }
}

#[test]
fn a_higher_quota_of_an_override_lowers_no_capacity() {
    for (rule, overriding, limit) in [
        ("{ quota = '5/second', burst = 100 }", "'10/second'", "10/second burst 200"),
        ("{ quota = '5/second', burst = 100 }", "'600/minute'", "600/minute burst 200"),
        ("{ quota = '5/second', burst = 100 }", "'7/s'", "7/second burst 140"),
        ("{ quota = '5/second', burst = 100 }", "'1/second'", "1/second burst 20"),
        ("{ quota = '5/second', burst = 100 }", "'8/minute'", "8/minute burst 3"),
        (
            "{ quota = '5/second', burst = 100 }",
            "{ quota = '10/second', burst = 7 }",
            "10/second burst 7",
        ),
        ("{ quota = '5/second', burst = 5 }", "'300/minute'", "300/minute burst 5"),
        (
            "{ quota = '2/second', burst = 1_000_000_000 }",
            "'3/second'",
            "3/second burst 1000000000",
        ),
        ("'5/second'", "'600/minute'", "600/minute"),
        (
            "{ quota = '5/second', burst = 100 }",
            "{ quota = '9/second', algorithm = 'sliding-log' }",
            "9/second",
        ),
        ("{ quota = '5/second', burst = 100 }", "'unlimited'", "unlimited"),
    ] {
        let text = format!(
            "[[rule]]\nname = 'a'\nkey = ['t']\nlimits = [{rule}]\n\
             [[override]]\nrule = 'a'\nsubject = {{ t = 'x' }}\nlimits = [{overriding}]"
        );
        let request = Request::new().with("t", "x");
        assert_eq!(in_force(&policy(&text), &request), [limit], "{overriding} in place of {rule}");
    }
}

#[test]
fn inherited_fields_that_do_not_fit_an_override_are_dropped() {
    let policy = api_with(
        "[{ name = 'monthly', quota = '9/90s' }, { name = 'slots', quota = '9/second', algorithm = 'sliding-log' }]",
    );
    let matched = policy.matched(&user_of("t"));
    let algorithms: Vec<Algorithm> =
        matched[0].limits.iter().map(|limit| limit.algorithm()).collect();
    assert_eq!(algorithms, [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingLog]);
}

/// Returns overrides of the rule `api` for tenants `t0`, `t1`, …, with two wordings in turn.
fn overrides_of_tenants(count: u32) -> String {
    let one = |i: u32| {
        let quota = 7 + i % 2;
        format!(
            "[[override]]\nrule = 'api'\nsubject.tenant = 't{i}'\nlimits = ['{quota}/second']\n"
        )
    };
    (0..count).map(one).collect()
}

#[test]
fn overrides_written_alike_share_their_limits() {
    let policy = policy(&format!("{API}{}", overrides_of_tenants(1_000)));
    let tenants = ["t1", "t2", "t3", "t998", "t1000"];
    let places: BTreeSet<Option<u32>> =
        tenants.iter().map(|tenant| policy.matched(&user_of(tenant))[0].overridden).collect();
    assert_eq!(places, [None, Some(0), Some(1)].into());
    assert_eq!(in_force(&policy, &user_of("t998"))[0], "7/second burst 14");
    assert_eq!(in_force(&policy, &user_of("t999"))[0], "8/second burst 16");
    assert_eq!(format!("{policy:?}"), "Policy { rules: 1, overrides: 1000, .. }");
}

#[test]
fn a_file_reads_the_same_in_pieces_and_with_the_overrides_first() {
    let last = "[[rule]]\nname = 'b'\nkey = []\nlimits = ['1/day']";
    let text = format!("{}{}{last}", overrides_of_tenants(50), API.replace("    ", ""));
    for piece_bytes in [0, 1, 100, 1_000, PIECE_BYTES] {
        let mut problems = Problems::in_text(&text);
        let policy = Policy::read(&text, piece_bytes, &mut problems);
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(policy.rules().map(|rule| rule.name()).collect::<Vec<_>>(), ["api", "b"]);
        assert_eq!(policy.overrides.count(), 50);
        let matched = policy.matched(&user_of("t49"));
        assert_eq!(matched[0].limits[0].limit(), &Limit::per_second(8).burst(16));
    }
}

#[test]
fn pieces_have_the_right_lines_and_never_split_a_text() {
    let rule = "[[rule]]\r\nname = 'a'\r\nkey = []\r\nlimits = ['1/day']\r\n";
    let inside = "match.a = '''\n[[rule]]\n'''\n";
    for (text, line) in [
        (format!("{rule}{rule}"), Some(6)),
        (format!("{rule}{inside}"), None),
        (format!("{rule}{inside}{rule}"), Some(9)),
        (format!("\u{feff}{rule}\n\n[[rule]]\nname = "), Some(8)),
    ] {
        let mut problems = Problems::in_text(&text);
        Policy::read(&text, 1, &mut problems);
        let errors = problems.into_errors("policy");
        assert_eq!(errors.first().map(|error| error.line()), line, "{text}\n{errors:?}");
    }
}

#[test]
fn every_problem_is_reported_in_file_order() {
    let text = "[[rule]]\nname = 'a b'\nlimits = ['5', '1/x']\ncolour = 1\n[[rule]]\n[server]\n[[colour]]\n";
    let errors = Policy::problems_in("policy", text);
    let reply: Vec<(usize, &str)> =
        errors.iter().map(|error| (error.line(), error.field())).collect();
    assert_eq!(reply[..5], [(1, "key"), (2, "name"), (3, "limits"), (3, "limits"), (4, "colour")]);
    assert_eq!(reply[5..], [(5, "name"), (5, "key"), (5, "limits"), (7, "colour")]);
}

#[test]
fn a_file_that_cannot_be_cut_is_rejected_before_parsing() {
    let overrides = overrides_of_tenants(TREE_MAX as u32 / 70);
    let quoted = format!("{API}match.a = \"\"\"b\"\"\"\n{overrides}");
    let said = "[server]\n".to_owned() + &"....\n".repeat(TREE_MAX / 5);
    for text in [&quoted, &said] {
        let mut reply = Vec::new();
        let taken = allocation_counter::measure(|| reply = Policy::problems_in("f", text));
        assert!(taken.bytes_max < 1 << 20, "{} bytes", taken.bytes_max);
        assert_eq!(reply.len(), 1, "{reply:?}");
        assert!(reply[0].message().starts_with("no line in 4194304 bytes begins with [[rule]]"));
    }
    assert_eq!(policy(&format!("{API}{overrides}")).overrides.count(), TREE_MAX / 70);
}

#[test]
fn a_hopeless_file_is_not_read_to_its_end() {
    let reply = Policy::problems_in("policy", &"[[rule]]\n".repeat(100_000)).len();
    assert!((100..110).contains(&reply), "{reply}");
}

#[test]
fn an_empty_list_declares_that_a_file_has_no_rules() {
    let none = policy("rules = []\n[server]\nhttp = \"off\"\n");
    assert!(none.is_empty_on_purpose() && none.rules().len() == 0);
    assert!(!policy(API).is_empty_on_purpose() && !policy("").is_empty_on_purpose());
    let both = format!("rules = []\n{API}");
    let problems = Policy::problems_in("f", &both);
    assert_eq!((problems.len(), problems[0].line(), problems[0].field()), (1, 1, "rules"));
    assert!(problems[0].message().contains("on purpose, but it has 1"), "{}", problems[0]);
}

const BY_ADDRESS: &str = r#"
    [[rule]]
    name = "login"
    key = ["ip"]
    limits = ["5/minute"]
"#;

/// Returns the limit in force for an address, with overrides by their subjects and quotas.
fn limit_of(address: &str, overrides: &[(&str, &str)]) -> String {
    let entry = |(subject, quota): &(&str, &str)| {
        format!("[[override]]\nrule = 'login'\nsubject = {{ {subject} }}\nlimits = ['{quota}']\n")
    };
    let policy =
        policy(&format!("{BY_ADDRESS}{}", overrides.iter().map(entry).collect::<String>()));
    let request = Request::new().with("ip", address);
    in_force(&policy, &policy.typed(&request)).join(" ")
}

// Found by an operator: the block was accepted, and blocked no client.
#[test]
fn a_network_covers_every_subject_inside_and_the_smallest_wins() {
    let overrides = [
        ("", "1/day"),
        ("ip = '203.0.113.0/24'", "block"),
        ("ip = '203.0.113.128/25'", "2/day"),
        ("ip = '203.0.113.129'", "unlimited"),
        ("ip = '2001:db8::/32'", "3/day"),
        ("ip = '2001:db8:1:2:3:4:5:6'", "4/day"),
        ("ip = 'unknown'", "6/day"),
    ];
    for (address, expected) in [
        ("203.0.113.7", "block"),
        ("::ffff:203.0.113.7", "block"),
        ("203.0.113.200", "2/day"),
        ("203.0.113.129", "unlimited"),
        ("198.51.100.1", "1/day"),
        ("2001:db8::1", "3/day"),
        ("2001:db8:1:2::99", "4/day"),
        ("2001:db9::1", "1/day"),
        ("nonsense", "6/day"),
    ] {
        assert_eq!(limit_of(address, &overrides), expected, "{address}");
    }
}

#[test]
fn more_attributes_win_over_a_smaller_network() {
    let policy = policy(
        "[[rule]]\nname = 'r'\nkey = ['ip', 'tenant']\nlimits = ['9/day']\n\
         [[override]]\nrule = 'r'\nsubject = { tenant = 'a', ip = '10.0.0.0/8' }\nlimits = ['1/day']\n\
         [[override]]\nrule = 'r'\nsubject = { ip = '10.1.0.0/16' }\nlimits = ['2/day']\n",
    );
    for (tenant, address, expected) in
        [("a", "10.1.0.1", "1/day"), ("b", "10.1.0.1", "2/day"), ("a", "11.0.0.1", "9/day")]
    {
        let request = Request::new().with("tenant", tenant).with("ip", address);
        assert_eq!(in_force(&policy, &request), [expected], "{tenant} {address}");
    }
}

#[test]
fn a_hundred_thousand_networks_are_found_as_fast_as_one() {
    let network = |i: u32| {
        let [_, a, b, c] = i.to_be_bytes();
        format!(
            "[[override]]\nrule = 'login'\nsubject.ip = '{}.{b}.{c}.0/24'\nlimits = ['1/day']\n",
            10 + a
        )
    };
    let text: String = (0..100_000).map(network).collect();
    let policy = policy(&format!("{BY_ADDRESS}{text}"));
    assert_eq!(policy.override_count(), 100_000);
    let of = |address: &'static str| in_force(&policy, &Request::new().with("ip", address));
    assert_eq!(
        (of("11.134.159.1"), of("11.134.160.1")),
        (vec!["1/day".into()], vec!["5/minute".into()])
    );
}

#[test]
fn conditions_by_network_path_absence_and_negation() {
    let rule = |name: &str, wanted: &str| {
        format!("[[rule]]\nname = '{name}'\nkey = []\nlimits = ['1/s']\nmatch = {{ {wanted} }}\n")
    };
    let policy = policy(
        &[
            "[attribute.path]\ntype = 'path'\n".to_owned(),
            rule("inside", "ip = { cidr = ['10.0.0.0/8', '2001:db8::/32'] }"),
            rule("outside", "ip = { not = { cidr = ['10.0.0.0/8', '2001:db8::/32'] } }"),
            rule("anonymous", "user = { absent = true }"),
            rule("others", "user = { not = ['ann', 'b*'] }"),
            rule("images", "path = '*.png'"),
            rule("user", "path = '/users/{id}'"),
            rule("below", "path = '/users/{id}/*'"),
            rule("middle", "path = '/a*z'"),
        ]
        .concat(),
    );
    for (attributes, expected) in [
        (&[][..], &["outside", "anonymous", "others"][..]),
        (&[("ip", "10.1.2.3"), ("user", "ann")], &["inside"]),
        (&[("ip", "2001:db8::7"), ("user", "bob")], &["inside"]),
        (&[("ip", "nonsense"), ("user", "cid")], &["outside", "others"]),
        (&[("ip", "10.1.2.3"), ("user", "ann"), ("path", "/a/b.png")], &["inside", "images"]),
        (&[("ip", "10.1.2.3"), ("user", "ann"), ("path", "/users//7")], &["inside", "user"]),
        (&[("ip", "10.1.2.3"), ("user", "ann"), ("path", "/users/7/a/b")], &["inside", "below"]),
        (&[("ip", "10.1.2.3"), ("user", "ann"), ("path", "/axz")], &["inside", "middle"]),
        (&[("ip", "10.1.2.3"), ("user", "ann"), ("path", "/users/")], &["inside"]),
    ] {
        let request = attributes
            .iter()
            .fold(Request::new(), |request, (name, value)| request.with(*name, *value));
        assert_eq!(names_met(&policy, &policy.typed(&request)), expected, "{attributes:?}");
    }
}

#[test]
fn rules_that_no_value_finds_are_few() {
    let rule = |i: u32| {
        let wanted =
            ["user = { not = 'a' }", "user = { absent = true }", "user = '*b'"][i as usize % 3];
        format!("[[rule]]\nname = 'r{i}'\nkey = []\nlimits = ['1/s']\nmatch = {{ {wanted} }}\n")
    };
    let text: String = (0..256).map(rule).collect();
    assert_eq!(policy(&text).rules().len(), 256);
    let error = Policy::from_toml(&format!("{text}{}", rule(256))).unwrap_err().to_string();
    assert!(error.contains("rule \"r256\", field `match`: nothing here finds the rule"), "{error}");
    let found = "[[rule]]\nname = 'x'\nkey = []\nlimits = ['1/s']\nmatch = { user = { not = 'a' }, path = '/a' }\n";
    assert_eq!(policy(&format!("{text}{found}")).rules().len(), 257, "the path finds it");
}
