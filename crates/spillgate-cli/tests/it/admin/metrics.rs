//! The metrics, and that Prometheus can read them.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::json;
use spillgate_testkit::RedisServer;

use super::{api_rule, decision, expect_ok, refused};
use crate::envoy::client::{Caller, descriptor};
use crate::server::{Server, TempFile, on_both_engines};

fn metrics(server: &Server) -> String {
    let reply = server.operator().send("GET", "/metrics", b"").unwrap();
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    reply.body
}

#[track_caller]
fn expect(metrics: &str, line: &str) {
    assert!(metrics.lines().any(|known| known == line), "no {line:?} in:\n{metrics}");
}

#[test]
fn decisions_are_counted_by_rule_and_name_no_subject() {
    let file = TempFile::new(
        "limits.toml",
        "[[rule]]\nname = \"api\"\nkey = [\"tenant\", \"user\"]\n\
         limits = [{ name = \"burst\", quota = \"2/hour\" }, \"9/day\"]\n\
         [[rule]]\nname = \"watched\"\nkey = [\"user\"]\nmode = \"shadow\"\nlimits = [\"1/hour\"]\n",
    );
    on_both_engines(&["--config", file.path()], |server| {
        for _ in 0..3 {
            decision(server);
        }
        server.check("{}");
        server
            .check(r#"{"domain":"canary-domain","key":"canary-key","limit":{"quota":"5/minute"}}"#);
        let metrics = metrics(server);
        let decisions = "spillgate_decisions_total{domain=\"default\",rule=";
        for (rule, mode, decision, reason, limit, count) in [
            ("api", "enforce", "allowed", "", "", 2),
            ("api", "enforce", "denied", "limit-exceeded", "burst", 1),
            ("watched", "shadow", "allowed", "", "", 1),
            ("watched", "shadow", "denied", "limit-exceeded", "0", 1),
        ] {
            let result = format!("decision=\"{decision}\",reason=\"{reason}\",limit=\"{limit}\"");
            let labels = format!("mode=\"{mode}\",{result},source=\"store\"");
            expect(&metrics, &format!("{decisions}\"{rule}\",{labels}}} {count}"));
        }
        assert!(!metrics.contains("rule=\"watched\",mode=\"enforce\""), "{metrics}");
        expect(&metrics, "spillgate_near_limit_total{domain=\"default\",rule=\"api\"} 1");
        expect(&metrics, "spillgate_unmatched_total 1");
        expect(
            &metrics,
            "spillgate_decisions_total{domain=\"other\",rule=\"\",mode=\"enforce\",decision=\"allowed\",reason=\"\",limit=\"\",source=\"store\"} 1",
        );
        for subject in ["canary", "acme", "ann"] {
            assert!(!metrics.contains(subject), "{subject} in {metrics}");
        }
    });
}

#[test]
fn counts_continue_through_a_reload_and_a_mode_change() {
    let file = api_rule();
    let server = Server::start(&["--config", file.path()]);
    decision(&server);
    let rules = std::fs::read_to_string(file.path()).unwrap();
    let more = format!("[[rule]]\nname = \"first\"\nkey = [\"x\"]\nlimits = [\"1/s\"]\n{rules}");
    std::fs::write(file.path(), more).unwrap();
    spillgate_testkit::eventually(|| {
        metrics(&server).contains("spillgate_reloads_total{result=\"applied\"} 1\n")
    });
    std::fs::write(file.path(), "[[rule]\n").unwrap();
    spillgate_testkit::eventually(|| {
        metrics(&server).contains("spillgate_reloads_total{result=\"refused\"} 1\n")
    });
    expect_ok(&server, "PUT", "/admin/v1/rules/api/mode", &json!({"mode": "enforce"}));
    decision(&server);
    expect_ok(&server, "PUT", "/admin/v1/rules/api/mode", &json!({"mode": "shadow"}));
    assert_eq!(decision(&server), "allowed");
    let of_api = "spillgate_decisions_total{domain=\"default\",rule=\"api\",mode=";
    let lines = [
        "\"enforce\",decision=\"allowed\",reason=\"\",limit=\"\",source=\"store\"} 2\n",
        "\"shadow\",decision=\"denied\",reason=\"limit-exceeded\",limit=\"0\",source=\"store\"} 1\n",
    ];
    // Scrapes within a second share a rendering.
    let of_api = || {
        let metrics = metrics(&server);
        metrics
            .lines()
            .filter_map(|line| Some(line.strip_prefix(of_api)?.to_owned() + "\n"))
            .collect::<Vec<_>>()
    };
    spillgate_testkit::eventually(|| of_api() == lines);
    let rate = "spillgate_decision_rate{domain=\"default\",rule=\"api\",mode=\"shadow\",decision=\"denied\"} ";
    assert!(metrics(&server).contains(rate));
}

#[test]
fn decisions_without_the_store_and_store_errors_are_counted() {
    let file = api_rule();
    let mut redis = RedisServer::start();
    let server = Server::start(&["--config", file.path(), "--redis", &redis.url()]);
    decision(&server);
    redis.kill();
    decision(&server);
    let metrics = metrics(&server);
    expect(&metrics, "spillgate_fallback_decisions_total{domain=\"default\",rule=\"api\"} 1");
    let errors: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("spillgate_store_errors_total{")).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].ends_with("} 1"), "{errors:?}");
    assert!(metrics.contains("spillgate_store_seconds_count{shard="), "{metrics}");
}

/// Once, blocked requests and calls that were not sent counted as the store's.
#[test]
fn with_the_breaker_open_nothing_counts_as_answered_by_the_store() {
    let file = TempFile::new(
        "limits.toml",
        "[[rule]]\nname = \"api\"\nkey = [\"tenant\", \"user\"]\nlimits = [\"2/hour\"]\n\
         [[rule]]\nname = \"banned\"\nmatch = { user = \"mallory\" }\nkey = []\nlimits = [\"block\"]\n",
    );
    let mut redis = RedisServer::start();
    let server = Server::start(&["--config", file.path(), "--redis", &redis.url()]);
    redis.kill();
    spillgate_testkit::eventually(|| {
        decision(&server);
        let metrics = metrics(&server);
        metrics
            .lines()
            .any(|line| line.starts_with("spillgate_breaker_open{") && line.ends_with(" 1"))
    });
    let sent = |metrics: &str| {
        let of = |line: &&str| line.starts_with("spillgate_store_seconds_count{");
        metrics.lines().find(of).unwrap().to_owned()
    };
    let before = metrics(&server);
    for _ in 0..20 {
        server.check(r#"{"attributes":{"tenant":"acme","user":"mallory"}}"#);
    }
    let blocked = "spillgate_decisions_total{domain=\"default\",rule=\"banned\",mode=\"enforce\",\
                   decision=\"denied\",reason=\"blocked\",limit=\"0\",source=\"none\"} 20";
    // Scrapes within a second share a rendering.
    spillgate_testkit::eventually(|| metrics(&server).contains(blocked));
    let after = metrics(&server);
    assert_eq!(sent(&after), sent(&before));
    let banned =
        after.lines().filter(|line| line.contains("rule=\"banned\",mode=\"enforce\",decision="));
    assert!(banned.clone().all(|line| !line.contains("source=\"store\"")));
    assert_eq!(banned.count(), 2, "a total and a rate");
}

/// Once, gRPC calls and waiting checks were missing in `decision_seconds`.
#[test]
fn every_api_counts_its_decisions_in_decision_seconds() {
    let file = TempFile::new(
        "limits.toml",
        "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"1000/day\"]\n",
    );
    let redis = RedisServer::start();
    let server = Server::start_on(&redis, &["--config", file.path()]);
    let envoy = Caller::of(&server);
    for _ in 0..10 {
        envoy.ask(&[descriptor(&[("user", "ann")]), descriptor(&[("user", "bob")])]);
        server.check(r#"{"attributes":{"user":"ann"}}"#);
        server.check(r#"{"attributes":{"user":"ann"},"wait_ms":1000}"#);
    }
    spillgate_testkit::eventually(|| {
        metrics(&server).contains("spillgate_decision_seconds_count 30\n")
    });
}

#[test]
#[ignore = "needs promtool"]
fn promtool_accepts_the_metrics() {
    let file = api_rule();
    on_both_engines(&["--config", file.path()], |server| {
        while decision(server) == "allowed" {}
        refused(server, "GET", "/nothing", "");
        let mut promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        promtool.stdin.take().unwrap().write_all(metrics(server).as_bytes()).unwrap();
        let output = promtool.wait_with_output().unwrap();
        let output_text =
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && output_text.is_empty(), "{output_text}");
    });
}
