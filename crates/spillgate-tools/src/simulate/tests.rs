//! Compares the replay of a log with checks of the memory engine one by one.

use std::io::Write;
use std::time::Duration;

use clap::Parser;
use spillgate::testing::ManualClock;
use spillgate::{Cost, Decision, Limiter, Policy, Reason, Request, Rule};

use super::replay::PolicyReplay;
use super::{SimulateArgs, replay_logs};
use crate::random::Random;

/// The instant, reason, rule of the deciding limit, remaining quota and wait of a decision.
pub(crate) type Answer = (u64, Option<Reason>, Option<usize>, Option<u64>, Option<u64>);

pub(crate) fn answer(at_us: u64, decision: &Decision) -> Answer {
    let top = decision.top();
    let retry_us = decision.retry_after().map(|wait| wait.as_micros() as u64);
    (
        at_us,
        decision.reason(),
        top.map(|counter| counter.rule_index()),
        decision.remaining(),
        retry_us,
    )
}

/// One made-up request.
struct MadeUp {
    at_us: u64,
    ip: u64,
    user: Option<u64>,
    path: &'static str,
    tokens: u64,
}

/// Paths as a log writes them, and normalised.
const PATHS: [(&str, &str); 4] = [
    ("/login", "/login"),
    ("//login?next=/", "/login"),
    ("/a/../api/x", "/api/x"),
    ("/%61pi/y", "/api/y"),
];

const POLICIES: [&str; 3] = [
    r#"
    [[rule]]
    name = "login"
    match = { path = "/login" }
    key = ["ip"]
    limits = ["3/2s", { quota = "9/7s", algorithm = "fixed-window" }]
    [[rule]]
    name = "api"
    match = { path = "/api/*" }
    key = ["user", "ip"]
    limits = [{ quota = "5/3s", algorithm = "sliding-log" }, { quota = "900/5s", algorithm = "sliding-window", unit = "tokens" }]
    [[rule]]
    name = "watched"
    key = ["user"]
    mode = "shadow"
    limits = ["2/4s"]
    [[override]]
    rule = "login"
    subject = { ip = "10.0.0.1" }
    limits = ["30/2s", "block"]
    "#,
    r#"
    [[rule]]
    name = "all"
    key = []
    limits = [{ quota = "40/minute", burst = 7 }]
    "#,
    r#"
    [[rule]]
    name = "slots"
    key = ["ip"]
    limits = [{ quota = "2", algorithm = "concurrency", max_hold = "1500ms" }]
    [[rule]]
    name = "spent"
    key = ["user"]
    postpaid = true
    limits = [{ quota = "500/10s", unit = "tokens" }]
    "#,
];

#[test]
fn a_replayed_log_gets_the_decisions_of_the_engine() {
    let denied: usize = std::thread::scope(|scope| {
        let threads = POLICIES.map(|policy| scope.spawn(move || denied_by(policy)));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(denied > 10_000, "only {denied} denials: too few for a test");
}

#[test]
fn addresses_of_one_ipv6_network_are_one_denied_subject() {
    let policy = "[[rule]]\nname = \"a\"\nkey = [\"ip\"]\nlimits = [\"2/hour\"]\n";
    let line = |host: u32| format!(r#"{{"at":1,"client":{{"addr":"2001:db8:0:1::{host}"}}}}"#);
    let text: Vec<String> = (1..=5).map(line).collect();
    let replayed = replayed(policy, &text.join("\n"), 0);
    let denied = replayed.tally.subjects.most(9);
    let named: Vec<_> = denied.iter().map(|(_, one)| (&*one.name, one.count)).collect();
    assert_eq!(named, [("ip=2001:db8:0:1::/64", 3)]);
}

/// Compares all decisions of a policy on 60 logs, and returns how many requests it denied.
fn denied_by(policy: &str) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut denied = 0;
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let delay_us = [0, 2_000_000, 20_000_000][random.below(3) as usize];
        let (text, requests) = log_in_some_order(&mut random, delay_us);
        let expected = runtime.block_on(one_by_one(policy, &requests));
        let replayed = replayed(policy, &text, delay_us);
        assert_eq!(replayed.tally.answers, expected, "seed {seed}: {policy}");
        denied += expected.iter().filter(|answer| answer.1.is_some()).count();
        assert_eq!(replayed.tally.requests, requests.len() as u64);
        assert_eq!(replayed.evicted(), 0);
    }
    denied
}

/// Returns JSON lines, none later than the delay allows, and the requests in the order of their instants.
fn log_in_some_order(random: &mut Random, delay_us: u64) -> (String, Vec<MadeUp>) {
    let mut at_us = 1_700_000_000_000_000 + random.below(1 << 40);
    let mut lines = Vec::new();
    for _ in 0..400 {
        at_us += [0, random.below(1_000), random.below(400_000)][random.below(3) as usize];
        let (written, path) = PATHS[random.below(4) as usize];
        let user = Some(random.below(3)).filter(|_| random.below(5) > 0);
        let request = MadeUp { at_us, ip: random.below(4), user, path, tokens: random.below(400) };
        let user = user.map_or("-".to_owned(), |user| format!("u{user}"));
        let line = format!(
            r#"{{"at":{at_us},"client":{{"addr":"::ffff:10.0.0.{}","name":"{user}"}},"uri":"{written}","used":{}}}"#,
            request.ip, request.tokens
        );
        lines.push((at_us + random.below(delay_us.max(1)), line, request));
    }
    lines.sort_by_key(|(written_us, _, _)| *written_us);
    let text = lines.iter().map(|(_, line, _)| format!("{line}\n")).collect();
    let mut requests: Vec<MadeUp> = lines.into_iter().map(|(_, _, request)| request).collect();
    requests.sort_by_key(|request| request.at_us);
    (text, requests)
}

async fn one_by_one(policy: &str, requests: &[MadeUp]) -> Vec<Answer> {
    let clock = ManualClock::new();
    let policy = Policy::from_toml(policy).unwrap();
    let limiter = Limiter::builder().policy(policy).manual_clock(&clock).build().await.unwrap();
    let mut all = Vec::new();
    for one in requests {
        clock.set(Duration::from_micros(one.at_us));
        let mut request = Request::new()
            .with("ip", format!("10.0.0.{}", one.ip))
            .with("path", one.path)
            .costing(Cost::requests(1).and("tokens", one.tokens));
        if let Some(user) = one.user {
            request = request.with("user", format!("u{user}"));
        }
        all.push(answer(one.at_us, &limiter.check(&request).await));
    }
    all
}

/// The flags of a replay.
#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    args: SimulateArgs,
}

fn replayed(policy: &str, text: &str, delay_us: u64) -> PolicyReplay {
    let mut file = tempfile(text);
    let policy = Policy::from_toml(policy).unwrap();
    let needs = |name| policy.rules().flat_map(Rule::needs).any(|needed| needed == name);
    let (name, delay) = (file.name(), format!("{delay_us}us"));
    let mut flags = vec!["simulate", "--config", "unused", "--map", "time=at", "--delay", &delay];
    for (attribute, map) in [("ip", "ip=client.addr"), ("user", "user=client.name")] {
        if needs(attribute) {
            flags.extend(["--map", map]);
        }
    }
    flags.extend(["--cost-from", "tokens=used", &name]);
    let flags = Flags::parse_from(flags);
    let (input, mut replay) = replay_logs(&flags.args, &[policy]).unwrap();
    assert_eq!((input.malformed, input.late), (0, 0));
    file.remove();
    replay.policies.remove(0)
}

/// A temporary file, which `remove` deletes.
struct Temporary(std::path::PathBuf);

fn tempfile(text: &str) -> Temporary {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("spillgate-simulate-{}-{number}.log", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
    Temporary(path)
}

impl Temporary {
    fn name(&self) -> String {
        self.0.display().to_string()
    }

    fn remove(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}
