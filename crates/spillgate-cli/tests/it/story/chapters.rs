//! The chapters of the story. Each has rules of its own, found by the path.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};
use spillgate_testkit::eventually;

use super::{Check, Scene};

pub(crate) const RULES: &str = r#"
[server]
trusted_proxies = ["127.0.0.1"]

[[rule]]
name = "exhaust"
match = { path = "/exhaust" }
key = ["ip"]
limits = ["2/4s"]

[[rule]]
name = "counters"
match = { path = "/counters" }
key = ["ip"]
limits = ["2/hour", { name = "daily", quota = "100/day" }]

[[rule]]
name = "units"
match = { path = "/units" }
key = ["ip"]
limits = ["10/hour", { quota = "100/hour", unit = "tokens" }]

[[rule]]
name = "peek"
match = { path = "/peek" }
key = ["ip"]
limits = ["2/hour"]

[[rule]]
name = "operated"
match = { path = "/operated" }
key = ["ip"]
limits = ["2/hour"]

[[rule]]
name = "blocks"
match = { path = "/blocks" }
key = ["ip"]
limits = ["1000000/hour"]

[[rule]]
name = "reload"
match = { path = "/reload" }
key = ["ip"]
limits = ["2/hour"]

[[rule]]
name = "shadow"
match = { path = "/shadow" }
key = ["ip"]
mode = "shadow"
limits = ["1/hour"]
"#;

type Chapter = fn(&Scene<'_>);

pub(crate) const CHAPTERS: &[(&str, Chapter)] = &[
    ("exhaust, deny, wait, allow", exhaust),
    ("two counters, one exhausted", two_counters),
    ("costs in two units", two_units),
    ("peek", peek),
    ("reset", reset),
    ("reload", reload),
    ("override with expiry", override_with_expiry),
    ("shadow", shadow),
    ("kill switch", kill_switch),
    ("blocks of addresses and networks", blocks),
];

fn exhaust(scene: &Scene<'_>) {
    let mut admitted = 0;
    let denied = loop {
        let answer = scene.ask("/exhaust");
        if answer.decision == "denied" {
            break answer;
        }
        admitted += 1;
        assert!(admitted < 100, "never denied");
    };
    assert!(admitted >= 2, "denied after {admitted}");
    let wait_ms = denied.retry_after_ms.unwrap();
    assert!((1..=2_000).contains(&wait_ms), "{denied:?}");
    // The claim is that this wait is enough.
    sleep(Duration::from_millis(wait_ms));
    assert_eq!(scene.decision("/exhaust"), "allowed");
}

fn two_counters(scene: &Scene<'_>) {
    let decisions: Vec<&str> = (0..4).map(|_| scene.decision("/counters")).collect();
    assert_eq!(decisions, ["allowed", "allowed", "denied", "denied"]);
    let state = operate(scene, "GET", &of_client(scene, "counters"), &Value::Null);
    let remaining: Vec<&Value> =
        state["limits"].as_array().unwrap().iter().map(|limit| &limit["remaining"]).collect();
    // The denials charged neither counter.
    assert_eq!(remaining, [0, 98]);
}

fn two_units(scene: &Scene<'_>) {
    let cost = [("requests", 1), ("tokens", 60)];
    assert_eq!(scene.ask_at("/units", &cost).decision, "allowed");
    assert_eq!(scene.ask_at("/units", &cost).decision, "denied");
    assert_eq!(scene.ask_at("/units", &[("requests", 1), ("tokens", 40)]).decision, "allowed");
    assert_eq!(
        scene.ask_at("/units", &[("requests", 1), ("tokens", 101)]).decision,
        "denied for good"
    );
    let state = operate(scene, "GET", &of_client(scene, "units"), &Value::Null);
    assert_eq!(
        (&state["limits"][0]["remaining"], &state["limits"][1]["remaining"]),
        (&json!(8), &json!(0))
    );
}

fn peek(scene: &Scene<'_>) {
    let look = || scene.ask_at("/peek", &[("requests", 0)]);
    for _ in 0..3 {
        assert_eq!((look().decision, look().remaining), ("allowed", Some(2)));
    }
    scene.ask("/peek");
    assert_eq!((look().decision, look().remaining), ("allowed", Some(1)));
    scene.ask("/peek");
    assert_eq!((look().decision, look().remaining), ("denied", Some(0)));
}

fn reset(scene: &Scene<'_>) {
    exhausted(scene, "/operated");
    operate(scene, "DELETE", &of_client(scene, "operated"), &Value::Null);
    assert_eq!(scene.decision("/operated"), "allowed");
}

fn reload(scene: &Scene<'_>) {
    exhausted(scene, "/reload");
    let text = std::fs::read_to_string(scene.rules.path()).unwrap();
    let (before, rule) = text.split_once("name = \"reload\"").unwrap();
    let raised = rule.replacen("2/hour", "5/hour", 1);
    std::fs::write(scene.rules.path(), format!("{before}name = \"reload\"{raised}")).unwrap();
    eventually(|| scene.decision("/reload") == "allowed");
    // Two of five were used, and one just now.
    let decisions: Vec<&str> = (0..3).map(|_| scene.decision("/reload")).collect();
    assert_eq!(decisions, ["allowed", "allowed", "denied"]);
}

fn override_with_expiry(scene: &Scene<'_>) {
    operate(scene, "DELETE", &of_client(scene, "operated"), &Value::Null);
    let end = jiff::Timestamp::now() + Duration::from_secs(2);
    let block = json!({"rule": "operated", "subject": {"ip": scene.ip}, "limits": ["block"], "expires_at": end.to_string()});
    operate(scene, "PUT", "/admin/v1/overrides", &block);
    let decision = scene.decision("/operated");
    // A machine that stalled for as long has seen its end.
    assert!(decision == "denied for good" || jiff::Timestamp::now() >= end, "{decision}");
    eventually(|| scene.decision("/operated") == "allowed");
}

fn shadow(scene: &Scene<'_>) {
    for _ in 0..4 {
        assert_eq!(scene.decision("/shadow"), "allowed");
    }
}

fn kill_switch(scene: &Scene<'_>) {
    exhausted(scene, "/operated");
    let mode = "/admin/v1/rules/operated/mode";
    operate(scene, "PUT", mode, &json!({"mode": "off"}));
    assert_eq!(scene.decision("/operated"), "allowed");
    operate(scene, "DELETE", mode, &Value::Null);
    assert_eq!(scene.decision("/operated"), "denied");
}

/// An operator blocks what an access log shows, in the spelling of the log, and every API denies it.
#[expect(clippy::print_stdout, reason = "the seed of a failure")]
fn blocks(scene: &Scene<'_>) {
    let seed = Random::seed();
    println!("seed {seed}");
    let mut random = Random(seed);
    for _ in 0..4 {
        let (v4, v6) = (random.v4(), random.v6());
        let mapped = v4.to_ipv6_mapped();
        let [a, b, c, _] = v4.octets();
        let [one, two, three, four, ..] = v6.segments();
        let (in_24, in_64) =
            (Ipv4Addr::new(a, b, c, random.next() as u8), v6.to_bits() ^ u128::from(random.next()));
        let in_48 = Ipv6Addr::new(one, two, three, !four, 1, 2, 3, 4);
        let outside_48 = Ipv6Addr::new(one, two, !three, four, 1, 2, 3, 4);
        let outside_24 = Ipv4Addr::new(a, b, !c, 1);
        let in_64 = Ipv6Addr::from_bits(in_64);
        // What is blocked, what it is called in the answer, an address inside, and one outside.
        let of_24 = (format!("{v4}/24"), format!("{a}.{b}.{c}.0/24"));
        let net_48 = format!("{}/48", Ipv6Addr::new(one, two, three, 0, 0, 0, 0, 0));
        let net_64 = format!("{}/64", Ipv6Addr::new(one, two, three, four, 0, 0, 0, 0));
        for ((blocked, named), inside, outside) in [
            (of_24, in_24.to_string(), outside_24.to_string()),
            ((v6.to_string(), net_64), in_64.to_string(), in_48.to_string()),
            ((mapped.to_string(), v4.to_string()), v4.to_string(), outside_24.to_string()),
            ((format!("{v6}/48"), net_48), in_48.to_string(), outside_48.to_string()),
        ] {
            let body = |address: &str| json!({"rule": "blocks", "subject": {"ip": address}, "limits": ["block"]});
            let answer = operate(scene, "PUT", OVERRIDES, &body(&blocked));
            assert_eq!(answer["subject"], json!({"ip": named}), "{blocked}");
            for (address, decision, reason) in
                [(&inside, "denied for good", json!("blocked")), (&outside, "allowed", Value::Null)]
            {
                assert_eq!(decision_of(scene, address), decision, "{address} under {blocked}");
                let path = format!("/admin/v1/explain?attr.path=/blocks&attr.ip={address}");
                let explained = operate(scene, "GET", &path, &Value::Null);
                assert_eq!(explained["reason"], reason, "explain of {address} under {blocked}");
            }
            // The list shows it under the name of the answer, and that name takes it back.
            let listed = operate(scene, "GET", OVERRIDES, &Value::Null);
            assert_eq!(listed["overrides"][0]["subject"], json!({"ip": named}));
            let name = if random.next().is_multiple_of(2) { &named } else { &blocked };
            let path = format!("{OVERRIDES}?rule=blocks&attr.ip={name}");
            operate(scene, "DELETE", &path, &Value::Null);
            assert_eq!(decision_of(scene, &inside), "allowed", "{inside} after {blocked}");
        }
    }
    let narrow =
        json!({"rule": "blocks", "subject": {"ip": "2001:db8::7/96"}, "limits": ["block"]});
    let mut operator = scene.server.operator();
    let reply = operator.send("PUT", OVERRIDES, narrow.to_string().as_bytes()).unwrap();
    assert_eq!(reply.status, 400, "{reply:?}");
    assert!(reply.body.contains("2001:db8::/64"), "it names the subject: {}", reply.body);
}

#[track_caller]
fn decision_of(scene: &Scene<'_>, ip: &str) -> &'static str {
    let check = Check { ip, path: "/blocks", cost: &[("requests", 1)] };
    (scene.api.ask)(scene.server, &check).decision
}

/// Numbers from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn seed() -> u64 {
        RandomState::new().hash_one(0)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns an address that no network of a proxy has.
    fn v4(&mut self) -> Ipv4Addr {
        let [a, b, c, d, ..] = self.next().to_le_bytes();
        Ipv4Addr::new(200 + a % 20, b, c, d)
    }

    fn v6(&mut self) -> Ipv6Addr {
        let bits = u128::from(self.next()) << 64 | u128::from(self.next());
        Ipv6Addr::from_bits(0x2001 << 112 | bits >> 16)
    }
}

const OVERRIDES: &str = "/admin/v1/overrides";

#[track_caller]
fn exhausted(scene: &Scene<'_>, path: &str) {
    let calls = (1..=10).find(|_| scene.decision(path) == "denied");
    assert!(calls.is_some(), "{path} is never denied");
}

fn of_client(scene: &Scene<'_>, rule: &str) -> String {
    format!("/admin/v1/state?rule={rule}&attr.ip={}", scene.ip)
}

#[track_caller]
fn operate(scene: &Scene<'_>, method: &str, path: &str, body: &Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let reply = scene.server.operator().send(method, path, body.as_bytes()).unwrap();
    assert_eq!(reply.status, 200, "{method} {path} {body}: {}", reply.body);
    reply.json()
}
