//! `spillgate bench`: each target and each scenario once, short, for real; a stall; errors.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use spillgate_testkit::{Process, RedisServer, eventually, free_port};

use crate::server::{Server, TempFile, run, spillgate};

/// Two hundred calls within 400 ms; on a busy machine the answers may take longer.
const SHORT: [&str; 6] = ["--rate", "500", "--duration", "400ms", "--timeout", "30s"];
const RULES: &str =
    "[[rule]]\nname = \"all\"\nkey = [\"user\"]\nmatch = { path = \"/a\" }\nlimits = [\"1/day\"]\n";

#[track_caller]
fn bench(flags: &[&str]) -> Value {
    let output = run(&[&["bench", "--json"], flags].concat());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.is_empty(), "{flags:?}: {text}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Each call of two hundred that was sent got a decision. On a machine that stalled, a few were not sent.
#[track_caller]
fn all_are_decided(report: &Value) -> &Value {
    let ours = &report["contenders"][0];
    assert_eq!((&report["rate"], made(ours)), (&500.into(), 200));
    assert!(ours["latency"]["p50_ns"].as_u64().unwrap() > 0, "{ours}");
    ours
}

/// Returns the number of calls, of which all that were sent got a decision.
#[track_caller]
fn made(contender: &Value) -> u64 {
    let count = |name: &str| contender[name].as_u64().unwrap();
    assert_eq!(count("errors"), 0, "{contender}");
    assert_eq!(count("sent"), count("allowed") + count("denied"), "{contender}");
    count("sent") + count("unsent")
}

#[test]
fn every_scenario_runs_on_the_library_in_memory() {
    for scenario in ["steady", "hot-key", "zipf"] {
        let report = bench(&[&[scenario], &SHORT[..]].concat());
        let ours = all_are_decided(&report);
        assert_eq!((&report["scenario"], &ours["name"]), (&scenario.into(), &"library".into()));
        let refused = ours["denied"].as_u64().unwrap();
        assert_eq!(refused > 0, scenario == "hot-key", "{scenario}: {ours}");
    }
}

#[test]
fn the_library_runs_over_a_redis_and_over_a_ring() {
    let nodes = [RedisServer::start(), RedisServer::start()];
    // A machine busy with something else is no outage.
    let patient = "timeout = \"10s\"\n";
    let one = format!("[store]\nurl = {:?}\n{patient}", nodes[0].url());
    let ring = format!(
        "[store]\n{patient}ring = {{ nodes = [\"a={}\", \"b={}\"] }}\n",
        nodes[0].url(),
        nodes[1].url()
    );
    for store in [one, ring] {
        let file = TempFile::new("store.toml", &store);
        // The number of keys on the servers is checked afterwards.
        let lasting = ["zipf", "--quota", "100/day", "--config", file.path()];
        let report = bench(&[&lasting[..], &SHORT[..]].concat());
        let ours = all_are_decided(&report);
        assert!(ours["by_source"]["store"].as_u64().unwrap() > 0, "{ours}");
    }
    let keys: Vec<i64> = nodes.iter().map(|it| it.command(&["DBSIZE"]).integer()).collect();
    assert!(keys.iter().all(|keys| *keys > 10), "both nodes hold subjects: {keys:?}");
}

#[test]
fn a_server_is_checked_by_rules_and_by_inline_limits() {
    let rules = TempFile::new("limits.toml", RULES);
    let server = Server::start(&["--config", rules.path()]);
    let url = server.url();
    let by_rules =
        ["steady", "--url", &url, "--by", "user", "--with", "path=/a", "--subjects", "50"];
    let report = bench(&[&by_rules[..], &SHORT[..]].concat());
    // Of 200 calls, and the one that it began with, the first of each subject is allowed, and one was that first call.
    let allowed = all_are_decided(&report)["allowed"].as_u64().unwrap();
    assert_eq!(allowed, 49, "{report}");
    all_are_decided(&bench(&[&["--url", &url, "--quota", "3/minute"], &SHORT[..]].concat()));
}

#[test]
fn subjects_by_ip_are_addresses_of_their_own() {
    let rules = "[[rule]]\nname = \"all\"\nkey = [\"ip\"]\nlimits = [\"1/day\"]\n";
    let rules = TempFile::new("limits.toml", rules);
    let server = Server::start(&["--config", rules.path()]);
    for target in [["--url", &server.url()], ["--config", rules.path()]] {
        let by_ip = ["--by", "ip", "--subjects", "100"];
        let report = bench(&[&target[..], &by_ip[..], &SHORT[..]].concat());
        // Values that are not addresses would all be one subject.
        assert_eq!(all_are_decided(&report)["allowed"], 99, "{report}");
    }
}

#[test]
fn a_server_that_requires_a_token_gets_it() {
    let token = TempFile::new("token", "0123456789abcdef0123456789abcdef\n");
    let settings = format!("[server]\ndata_token_file = {:?}\n{RULES}", token.path());
    let settings = TempFile::new("limits.toml", &settings);
    let server = Server::start(&["--config", settings.path()]);
    let url = server.url();
    let flags = ["--url", &url, "--by", "user", "--token-file", token.path()];
    all_are_decided(&bench(&[&flags[..], &SHORT[..]].concat()));
    let refused = run(&["bench", "--url", &url, "--by", "user"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("no token or a wrong one; name its file with --token-file"), "{text}");
}

#[test]
fn the_baseline_takes_turns_with_the_limiter() {
    let server = RedisServer::start();
    let report = bench(&[
        "--redis",
        &server.url(),
        "--against",
        "evalsha",
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
    assert_eq!(names, ["library", "evalsha"]);
    assert_eq!(made(&report["contenders"][1]), 400, "{report}");
    let ratio = &report["ratio"];
    assert_eq!(ratio["rounds"], 5);
    assert!(ratio["p50"]["min"].as_f64().unwrap() <= ratio["p50"]["max"].as_f64().unwrap());
}

#[test]
fn a_closed_loop_is_reported_as_such() {
    let report = bench(&["--rate", "max", "--callers", "4", "--duration", "200ms"]);
    let ours = &report["contenders"][0];
    assert_eq!(report["rate"], Value::Null);
    assert!(ours["sent"].as_u64().unwrap() > 1_000, "{ours}");
    let people = run(&["bench", "--rate", "max", "--duration", "100ms"]);
    let text = String::from_utf8(people.stdout).unwrap();
    assert!(text.contains("closed loop: ") && text.contains("as fast as answers come"), "{text}");
}

/// If times counted from when calls were sent, only the one call that met the stall would be slow.
#[test]
fn a_stalled_server_makes_all_calls_due_meanwhile_late() {
    let server = Server::start(&[]);
    let url = server.url();
    let flags =
        ["--url", &url, "--rate", "500", "--duration", "2s", "--callers", "1", "--timeout", "10s"];
    let bench_process = spillgate(&[&["bench", "--json"], &flags[..]].concat())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let sent = || {
        let metrics = server.metrics();
        let lines = metrics.lines().filter(|line| line.starts_with("spillgate_decisions_total{"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
    };
    eventually(|| sent() > 100);
    server.pause();
    let paused = std::time::Duration::from_millis(400);
    std::thread::sleep(paused);
    server.resume();
    let output = bench_process.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ours = &report["contenders"][0];
    let p90 = ours["latency"]["p90_ns"].as_u64().unwrap();
    // The stall is 400 ms of 2 s: a fifth of the calls were due meanwhile, and half of those waited 200 ms or more.
    assert!(p90 > 100_000_000, "{ours}");
    assert_eq!(ours["errors"], 0, "{ours}");
}

#[test]
fn ctrl_c_reports_the_answers_so_far() {
    let server = RedisServer::start();
    let url = server.url();
    let flags =
        ["bench", "--redis", &url, "--rate", "200", "--duration", "1h", "--quota", "100/day"];
    let mut bench_process = Process::start(spillgate(&flags).stdout(Stdio::piped()));
    eventually(|| server.command(&["DBSIZE"]).integer() > 50);
    bench_process.signal("INT");
    let ended = bench_process.wait(Duration::from_secs(20)).expect("Ctrl-C ends it");
    assert!(ended.success(), "{ended}");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut bench_process.stdout().unwrap(), &mut text).unwrap();
    assert!(text.contains("stopped before its end") && text.contains("200/s"), "{text}");
}

#[test]
fn the_report_is_a_table() {
    let output = run(&[&["bench", "hot-key"], &SHORT[..]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "hot-key: 1,000 subjects, 100/second per subject (token-bucket), 500/second for 400ms, 64 callers at most",
        "open loop: ",
        "p99.9",
        "library: the library in this process, state in memory",
        "decided by: store ",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    // The error output is no terminal, so there is no progress.
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_error_has_a_remedy() {
    let unused = free_port();
    let (redis, http) =
        (format!("redis://127.0.0.1:{unused}"), format!("http://127.0.0.1:{unused}"));
    let server = RedisServer::start();
    let url = server.url();
    let cases: &[(&[&str], &[&str])] = &[
        (&["flood"], &["steady, hot-key or zipf"]),
        (&["burst"], &["examples/load/run", "burst.js"]),
        (&["many-tenants"], &["steady --subjects 1000000"]),
        (&["--rate", "fast"], &["20000", "max"]),
        (&["--rate", "0"], &["20000", "max"]),
        (&["--rate", "2000000"], &["at most 1000000"]),
        (&["--duration", "0s"], &["100ms"]),
        (&["--duration", "3d"], &["24h"]),
        (&["--timeout", "5"], &["1ms to 60s"]),
        (&["--callers", "0"], &["1..=10000"]),
        (&["--subjects", "0"], &["1..=10000000"]),
        (&["--quota", "5/fortnight"], &["--quota"]),
        (&["--redis", &redis], &[&redis, "--redis", "memory"]),
        (&["--redis", "http://a"], &["redis://"]),
        (&["--redis", &url, "--url", "http://a:1"], &["cannot be used with"]),
        (&["--url", &http], &[&http, "spillgate serve"]),
        (&["--url", &redis], &["--redis", "http://"]),
        (&["--url", "grpc://a:1"], &["k6", "http://"]),
        (&["--url", "http://u:hush@a:1"], &["without TLS or a password"]),
        (&["--url", &http, "--against", "evalsha"], &["cannot be used with"]),
        (&["--against", "evalsha"], &["--redis URL"]),
        (&["--against", "nginx"], &["possible values: evalsha"]),
        (&["--against", "evalsha", "--algorithm", "sliding-log"], &["token bucket", "--algorithm"]),
        (&["--against", "evalsha", "--by", "ip"], &["cannot be used with"]),
        (&["--by", "ip"], &["no rules to check by", "--config", "--url"]),
        (&["--by", "ip", "--quota", "5/minute"], &["cannot be used with"]),
        (&["--burst", "x"], &["write a whole number such as 20"]),
        (&["--connections", "2"], &["--connections is gone", "store.connections"]),
        (&["--svg", "a.svg"], &["--svg is gone", "--json"]),
    ];
    for (flags, parts) in cases {
        let output = run(&[&["bench"], *flags].concat());
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {text}");
        for part in *parts {
            assert!(text.contains(part), "{flags:?}: {part:?} is not in: {text}");
        }
        assert!(!text.contains("hush"), "{text}");
    }
}
