//! `spillgate bench`: each target and each scenario once, short, for real; an outage; a stall; what is wrong.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use spillgate_testkit::{Process, RedisServer, eventually, free_port};

use crate::server::{Server, TempFile, run, spillgate};

/// Two hundred calls within 400 ms, answered in however long a busy machine takes.
const SHORT: [&str; 6] = ["--rate", "500", "--duration", "400ms", "--timeout", "30s"];
const RULES: &str =
    "[[rule]]\nname = \"all\"\nkey = [\"user\"]\nmatch = { path = \"/a\" }\nlimits = [\"1/day\"]\n";

#[track_caller]
fn bench(flags: &[&str]) -> Value {
    let output = run(&[&["bench", "--json"], flags].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{flags:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Of two hundred calls each that was sent got a decision; where the machine stood still, a few were not.
#[track_caller]
fn all_are_decided(report: &Value) -> &Value {
    let ours = &report["contenders"][0];
    assert_eq!((&report["loop"], made(ours)), (&"open".into(), 200));
    assert!(ours["latency"]["p50_ns"].as_u64().unwrap() > 0, "{ours}");
    ours
}

/// How many calls there were, all that were sent decided.
#[track_caller]
fn made(contender: &Value) -> u64 {
    let count = |name: &str| contender[name].as_u64().unwrap();
    assert_eq!(count("errors"), 0, "{contender}");
    assert_eq!(count("sent"), count("allowed") + count("denied"), "{contender}");
    count("sent") + count("unsent")
}

#[test]
fn every_scenario_but_failover_asks_the_library_in_memory() {
    for scenario in ["steady", "burst", "hot-key", "zipf", "many-tenants"] {
        let report = bench(&[&[scenario], &SHORT[..]].concat());
        let ours = all_are_decided(&report);
        assert_eq!((&report["scenario"], &ours["name"]), (&scenario.into(), &"library".into()));
        let refused = ours["denied"].as_u64().unwrap();
        assert_eq!(refused > 0, scenario == "hot-key", "{scenario}: {ours}");
    }
}

#[test]
fn the_library_is_asked_over_a_redis_and_over_a_ring() {
    let nodes = [RedisServer::start(), RedisServer::start()];
    // A machine busy with something else is not an outage.
    let patient = "timeout = \"10s\"\n";
    let one = format!("[store]\nurl = {:?}\n{patient}", nodes[0].url());
    let ring = format!(
        "[store]\n{patient}ring = {{ number = 1, nodes = [\"a={}\", \"b={}\"] }}\n",
        nodes[0].url(),
        nodes[1].url()
    );
    for store in [one, ring] {
        let file = TempFile::new("store.toml", &store);
        // What the servers hold is looked at afterwards.
        let lasting = ["zipf", "--quota", "100/day", "--config", file.path()];
        let report = bench(&[&lasting[..], &SHORT[..]].concat());
        let ours = all_are_decided(&report);
        assert!(ours["by_source"]["store"].as_u64().unwrap() > 0, "{ours}");
    }
    let keys: Vec<i64> = nodes.iter().map(|it| it.command(&["DBSIZE"]).integer()).collect();
    assert!(keys.iter().all(|keys| *keys > 10), "both nodes hold subjects: {keys:?}");
}

#[test]
fn every_door_is_asked_by_rules_and_by_limits_that_come_along() {
    let rules = TempFile::new("limits.toml", RULES);
    let server = Server::start(&["--config", rules.path()]);
    let (grpc, resp) = (server.grpc_port.unwrap(), server.resp_port.unwrap());
    let doors =
        [server.url(), format!("grpc://127.0.0.1:{grpc}"), format!("resp://127.0.0.1:{resp}")];
    for door in &doors {
        let by_rules =
            ["steady", "--url", door, "--by", "user", "--with", "path=/a", "--subjects", "50"];
        let report = bench(&[&by_rules[..], &SHORT[..]].concat());
        all_are_decided(&report);
    }
    // Each door has met the same subjects: 50 of 600 calls, and the three that each began with, are allowed.
    let metrics = server.operator().send("GET", "/metrics", b"").unwrap().body;
    let allowed = metrics
        .lines()
        .filter(|line| line.starts_with("spillgate_decisions_total{") && line.contains("allowed"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    assert_eq!(allowed.sum::<u64>(), 50, "{metrics}");
    for door in [&doors[0], &doors[2]] {
        let report =
            bench(&[&["steady", "--url", door, "--quota", "3/minute"], &SHORT[..]].concat());
        all_are_decided(&report);
    }
}

#[test]
fn a_door_that_asks_for_a_token_is_shown_it() {
    let token = TempFile::new("token", "0123456789abcdef0123456789abcdef\n");
    let settings = format!("[server]\ndata_token_file = {:?}\n{RULES}", token.path());
    let settings = TempFile::new("limits.toml", &settings);
    let server = Server::start(&["--config", settings.path()]);
    let grpc = format!("grpc://127.0.0.1:{}", server.grpc_port.unwrap());
    for url in [&server.url(), &grpc] {
        let flags = ["--url", url, "--by", "user", "--token-file", token.path()];
        all_are_decided(&bench(&[&flags[..], &SHORT[..]].concat()));
        let refused = run(&["bench", "--url", url, "--by", "user"]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
}

#[test]
fn yardsticks_take_turns_with_ours_and_leave_nothing_behind() {
    let server = RedisServer::start();
    let report = bench(&[
        "--redis",
        &server.url(),
        "--against",
        "evalsha,redis,governor",
        "--rate",
        "400",
        "--duration",
        "1s",
        "--timeout",
        "30s",
    ]);
    let names: Vec<&str> = report["contenders"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["library", "evalsha", "redis", "governor"]);
    for (contender, ratio) in [(1, "evalsha"), (2, "redis"), (3, "governor")] {
        let contender = &report["contenders"][contender];
        assert_eq!(made(contender), 400, "{contender}");
        let told =
            report["ratios"].as_array().unwrap().iter().find(|it| it["to"] == ratio).unwrap();
        assert_eq!(told["rounds"], 5);
        assert!(told["p50"]["min"].as_f64().unwrap() <= told["p50"]["max"].as_f64().unwrap());
    }
    let counts = server.command(&["KEYS", "spillgate-bench:count:*"]);
    assert_eq!(format!("{counts:?}"), "Array([])", "INCR's counts would never end");
}

#[test]
fn callers_of_a_closed_loop_are_told_as_such() {
    let report = bench(&["--rate", "max", "--callers", "4", "--duration", "200ms"]);
    let ours = &report["contenders"][0];
    assert_eq!(report["loop"], "closed");
    assert!(ours["sent"].as_u64().unwrap() > 1_000, "{ours}");
    let people = run(&["bench", "--rate", "max", "--duration", "100ms"]);
    let said = String::from_utf8(people.stdout).unwrap();
    assert!(said.contains("closed loop: ") && said.contains("as fast as answers come"), "{said}");
}

/// Were times counted from when calls were sent, of one caller's calls only the one that met the stall would
/// be slow.
#[test]
fn a_server_that_stands_still_is_seen_in_the_times_of_all_that_were_due_meanwhile() {
    let server = Server::start(&[]);
    let url = server.url();
    let flags =
        ["--url", &url, "--rate", "500", "--duration", "2s", "--callers", "1", "--timeout", "10s"];
    let asked = spillgate(&[&["bench", "--json"], &flags[..]].concat())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let sent = || {
        let metrics = server.operator().send("GET", "/metrics", b"").unwrap().body;
        let lines = metrics.lines().filter(|line| line.starts_with("spillgate_decisions_total{"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
    };
    eventually(|| sent() > 100);
    server.pause();
    let paused = std::time::Duration::from_millis(400);
    std::thread::sleep(paused);
    server.resume();
    let output = asked.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ours = &report["contenders"][0];
    let p90 = ours["latency"]["p90_ns"].as_u64().unwrap();
    // 400 ms of 2 s: a fifth of the calls were due meanwhile, half of those waited 200 ms or more.
    assert!(p90 > 100_000_000, "{ours}");
    assert_eq!(ours["errors"], 0, "{ours}");
}

#[test]
fn a_store_that_is_killed_and_comes_back_is_seen_by_source() {
    let report = bench(&["failover", "--rate", "500", "--duration", "3s", "--callers", "256"]);
    let ours = &report["contenders"][0];
    assert_eq!(report["events"].as_array().unwrap().len(), 2);
    assert_eq!(made(ours), 1_500, "{ours}");
    for source in ["store", "fallback"] {
        assert!(ours["by_source"][source].as_u64().unwrap_or(0) > 100, "{source}: {ours}");
    }
}

#[test]
fn whoever_stops_it_is_told_what_was_answered_so_far() {
    let server = RedisServer::start();
    let url = server.url();
    let flags =
        ["bench", "--redis", &url, "--rate", "200", "--duration", "1h", "--quota", "100/day"];
    let mut asked = Process::start(spillgate(&flags).stdout(Stdio::piped()));
    eventually(|| server.command(&["DBSIZE"]).integer() > 50);
    let told = Command::new("kill").args(["-INT", &asked.pid().to_string()]).status().unwrap();
    assert!(told.success());
    let ended = asked.wait(Duration::from_secs(20)).expect("Ctrl-C ends it");
    assert!(ended.success(), "{ended}");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut asked.stdout().unwrap(), &mut said).unwrap();
    assert!(said.contains("stopped before its end") && said.contains("200/s"), "{said}");
}

#[test]
fn people_read_a_table_and_see_a_figure() {
    let drawn = TempFile::new("drawn.svg", "");
    let output = run(&[&["bench", "hot-key", "--svg", drawn.path()], &SHORT[..]].concat());
    let said = String::from_utf8(output.stdout).unwrap();
    for part in [
        "hot-key: 1,000 subjects, 100/1s each (token-bucket), 500/second for 400 ms, 64 callers at most",
        "open loop: ",
        "p99.9",
        "library: the library in this process, state in memory",
        "decided by: store ",
    ] {
        assert!(said.contains(part), "{part:?} is not in:\n{said}");
    }
    // Nobody watches, so no bar moves.
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let drawn = fs::read_to_string(drawn.path()).unwrap();
    for part in ["spillgate bench hot-key", "answers a second", "99 % answered", "denied"] {
        assert!(drawn.contains(part), "{part:?} is not in:\n{drawn}");
    }
    assert!(drawn.ends_with("</svg>\n"));
}

#[test]
fn whatever_is_wrong_is_told_with_a_remedy() {
    let nobody = free_port();
    let (redis, http) =
        (format!("redis://127.0.0.1:{nobody}"), format!("http://127.0.0.1:{nobody}"));
    let (grpc, resp) =
        (format!("grpc://127.0.0.1:{nobody}"), format!("resp://:hush@127.0.0.1:{nobody}"));
    let server = RedisServer::start();
    let url = server.url();
    let cases: &[(&[&str], &[&str])] = &[
        (&["flood"], &["steady, burst, hot-key, zipf, many-tenants, failover"]),
        (&["--rate", "fast"], &["20000", "max"]),
        (&["--rate", "0"], &["20000", "max"]),
        (&["--rate", "2000000"], &["--rate max"]),
        (&["--rate", "1/hour"], &["no call within 10 s", "--duration"]),
        (&["--duration", "0s"], &["some time"]),
        (&["--duration", "3d"], &["24h"]),
        (&["--callers", "0"], &["1..=10000"]),
        (&["--subjects", "0"], &["1..=10000000"]),
        (&["--quota", "5/fortnight"], &["--quota"]),
        (&["--redis", &redis], &[&redis, "--redis", "memory"]),
        (&["--redis", "http://a"], &["redis://"]),
        (&["--redis", &url, "--url", "http://a:1"], &["cannot be used with"]),
        (&["--redis", &url, "--connections", "99"], &["must be at most 16"]),
        (&["--connections", "2"], &["state is in memory", "--url"]),
        (&["--url", &http], &[&http, "spillgate serve"]),
        (&["--url", &grpc, "--by", "ip"], &[&grpc, "spillgate serve"]),
        (&["--url", &grpc], &["--by ip"]),
        (&["--url", &resp], &["spillgate serve"]),
        (&["--url", &redis], &["is a store", "--redis"]),
        (&["--url", "https://a:1"], &["without TLS"]),
        (&["--url", "http://a"], &["no host and port"]),
        (&["--url", &http, "--against", "evalsha"], &["spillgate serve"]),
        (&["--against", "evalsha"], &["--redis URL"]),
        (&["--against", "redis"], &["--redis URL"]),
        (&["--against", "nginx"], &["evalsha, redis, governor"]),
        (
            &["--against", "governor", "--algorithm", "sliding-log"],
            &["token bucket", "--algorithm"],
        ),
        (&["--against", "governor", "--by", "ip"], &["cannot be used with"]),
        (&["failover", "--redis", &url], &["of its own"]),
        (&["--svg", "/nowhere/a.svg", "--duration", "100ms"], &["cannot write /nowhere/a.svg"]),
    ];
    for (flags, parts) in cases {
        let output = run(&[&["bench"], *flags].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        for part in *parts {
            assert!(said.contains(part), "{flags:?}: {part:?} is not in: {said}");
        }
        assert!(!said.contains("hush"), "{said}");
    }
}
