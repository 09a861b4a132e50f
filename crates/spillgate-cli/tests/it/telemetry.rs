//! The contents of the log, and the values that are never in log, metrics or store.

use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use spillgate_testkit::{Process, RedisServer, Reply, eventually};
use tonic::Request;

use crate::envoy::client::{Caller, descriptor, in_domain};
use crate::server::{LISTENING, Server, TempFile, spillgate};

const RULES: &str = "[[rule]]\nname = \"api\"\nkey = [\"tenant\", \"user\"]\nlimits = [\"3/hour\", { quota = \"9/day\", algorithm = \"sliding-log\" }]\n\
    [[rule]]\nname = \"slots\"\nkey = [\"user\"]\nlimits = [{ quota = \"2\", algorithm = \"concurrency\", max_hold = \"1s\" }]\n";

#[test]
fn an_outage_is_logged_once_at_its_start_and_once_at_its_end() {
    let file = TempFile::new("limits.toml", RULES);
    let mut redis = RedisServer::start();
    let mut server = Server::start(&["--config", file.path(), "--redis", &redis.url()]);
    let ask =
        |server: &Server| drop(server.check(r#"{"attributes":{"tenant":"acme","user":"ann"}}"#));
    let shows = |server: &Server, line: &str| {
        server.metrics().lines().any(|known| known.starts_with(line) && known.ends_with(" 1"))
    };
    ask(&server);
    // A machine that stalled meanwhile has logged an outage already.
    if server.before_ready.contains("degraded: ") {
        server.log_until("no longer degraded");
    }
    redis.kill();
    eventually(|| {
        ask(&server);
        shows(&server, "spillgate_breaker_open{shard=")
            && shows(&server, "spillgate_degraded{shard=")
    });
    let families = server.metrics();
    assert!(families.contains("spillgate_overshoot_bound{rule=\"api\"} "), "{families}");
    assert!(families.contains("spillgate_overshoot_observed{rule=\"api\"} "), "{families}");
    let mut log = server.log_until("each rule's on_outage decides for this shard's subjects");
    redis.restart();
    eventually(|| {
        ask(&server);
        !shows(&server, "spillgate_breaker_open{shard=")
            && !shows(&server, "spillgate_degraded{shard=")
    });
    log += &server.log_until("no longer degraded: the store decides");
    log += &server.rest_of_log();
    for once in
        ["warning: breaker opened", "breaker closed", "warning: degraded: ", "no longer degraded"]
    {
        assert_eq!(log.matches(&format!("spillgate: {once}")).count(), 1, "{once}: {log}");
    }
    assert!(log.contains("a decision was made without the store"), "{log}");
}

#[test]
fn a_state_loss_is_logged() {
    let redis = RedisServer::start();
    let mut server = Server::start_on(&redis, &[]);
    // The first heartbeat learns what there is to lose.
    eventually(|| server.metrics().contains("spillgate_live_instances 1\n"));
    redis.command(&["FLUSHALL"]);
    server.log_until("state lost: the server lost its data");
    // Scrapes within a second share a rendering.
    eventually(|| server.metrics().contains("spillgate_state_losses_total 1\n"));
}

#[test]
fn runtime_changes_are_logged_without_the_subject() {
    let file = TempFile::new("limits.toml", RULES);
    let server = Server::start(&["--config", file.path()]);
    change_as_an_operator(&server);
    let log = server.rest_of_log();
    for line in [
        "spillgate: an operator set an override rule=\"api\" of=\"tenant\" limits=\"block\" actor=\"local\" reason=\"a\\nb\"",
        "spillgate: an override was removed rule=\"api\" of=\"tenant\" actor=\"local\" reason=\"over\"",
        "spillgate: warning: an operator set the rule's mode rule=\"api\" mode=\"off\" expires_at=\"2199-01-01T00:00:00Z\" actor=\"local\"",
        "spillgate: the rule's runtime mode was removed rule=\"api\" actor=\"local\" reason=\"over\"",
        "spillgate: an operator charged a subject rule=\"api\" of=\"tenant,user\" cost=\"requests=2\" actor=\"local\"",
        "spillgate: an operator refunded a subject rule=\"api\" of=\"tenant,user\" cost=\"requests=3\" actor=\"local\"",
        "spillgate: an operator reset a subject rule=\"api\" of=\"tenant,user\" actor=\"local\"",
        "spillgate: warning: an operator reset all counters of the rule rule=\"api\" actor=\"local\"",
    ] {
        let line = format!("{line} at=\"20");
        assert_eq!(
            log.lines().filter(|found| found.starts_with(&line)).count(),
            1,
            "{line}\n{log}"
        );
    }
    assert!(!log.contains("canary"), "{log}");
}

#[test]
fn runtime_changes_are_logged_with_the_subject_if_the_settings_say_so() {
    let file = TempFile::new("limits.toml", RULES);
    let arguments = [&["serve", "--config", file.path()], &LISTENING[..]].concat();
    let mut command = spillgate(&arguments);
    command.env("SPILLGATE_TELEMETRY__LOG__FORMAT", "json");
    let server = Server::start_command(command.env("SPILLGATE_TELEMETRY__AUDIT_SUBJECTS", "true"));
    let tried = json!({"rule": "api", "subject": {"tenant": "tried"}, "limits": ["block"], "dry_run": true});
    assert_eq!(send(&server, "PUT", "/admin/v1/overrides", tried.to_string())["result"], "valid");
    change_as_an_operator(&server);
    let log = server.rest_of_log();
    assert!(!log.contains("tried"), "a dry run changes nothing: {log}");
    let events: Vec<Value> =
        log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let event = |message: &str| {
        let found = events.iter().find(|event| event["message"] == message);
        found.unwrap_or_else(|| panic!("no {message}: {log}"))
    };
    let block = event("an operator set an override");
    assert_eq!(block["subject"], "tenant=canary");
    assert_eq!((&block["actor"], &block["reason"]), (&json!("local"), &json!("a\nb")));
    assert_eq!(event("an operator reset a subject")["subject"], "tenant=canary,user=u");
}

#[test]
fn an_instance_that_starts_logs_the_times_of_changes_and_none_that_has_expired() {
    let file = TempFile::new("limits.toml", RULES);
    let redis = RedisServer::start();
    let start = || Server::start_on(&redis, &["--config", file.path()]);
    let one = start();
    let soon = jiff::Timestamp::now() + Duration::from_secs(2);
    let mode = json!({"mode": "off", "expires_at": soon.to_string()});
    send(&one, "PUT", "/admin/v1/rules/api/mode", mode.to_string());
    let raise = json!({
        "rule": "api", "subject": {"tenant": "canary"},
        "limits": [{"quota": "1000/minute", "burst": 2000}, "20/day"],
        "expires_at": "2199-01-01T00:00:00Z",
    });
    send(&one, "PUT", "/admin/v1/overrides", raise.to_string());
    let get = |server: &Server, path: &str| send(server, "GET", path, String::new());
    let last = get(&one, "/admin/v1/audit?n=1");
    let raised_at = last["changes"][0]["at"].as_str().unwrap();
    eventually(|| get(&one, "/admin/v1/rules")["rules"][0]["mode"]["runtime"].is_null());
    let late = start();
    eventually(|| get(&late, "/admin/v1/overrides")["overrides"][0].is_object());
    let log = late.before_ready.clone() + &late.rest_of_log();
    let line = format!(
        "spillgate: an operator set an override rule=\"api\" of=\"tenant\" limits=\"1000/minute burst=2000, 20/day\" \
         expires_at=\"2199-01-01T00:00:00Z\" actor=\"local\" at=\"{raised_at}\""
    );
    assert_eq!(log.lines().filter(|found| *found == line).count(), 1, "{line}\n{log}");
    assert!(!log.contains("the rule's mode"), "{log}");
    assert!(one.rest_of_log().contains("an operator set the rule's mode"));
}

/// Calls the admin API, and returns the answer.
#[track_caller]
fn send(server: &Server, method: &str, path: &str, body: String) -> Value {
    let reply = server.operator().send(method, path, body.as_bytes()).unwrap();
    assert_eq!(reply.status, 200, "{method} {path}: {reply:?}");
    reply.json()
}

/// Makes each kind of change once.
fn change_as_an_operator(server: &Server) {
    let send = |method, path, body| send(server, method, path, body);
    let block = json!({
        "rule": "api", "subject": {"tenant": "canary"}, "limits": ["block"], "reason": "a\nb"
    });
    send("PUT", "/admin/v1/overrides", block.to_string());
    let of_block = "/admin/v1/overrides?rule=api&attr.tenant=canary&reason=over";
    send("DELETE", of_block, String::new());
    let off = json!({"mode": "off", "expires_at": "2199-01-01T00:00:00Z"});
    send("PUT", "/admin/v1/rules/api/mode", off.to_string());
    send("DELETE", "/admin/v1/rules/api/mode?reason=over", String::new());
    for change in [json!({"charge": 2}), json!({"refund": {"requests": 3}})] {
        let mut body = json!({"rule": "api", "subject": {"tenant": "canary", "user": "u"}});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        send("POST", "/admin/v1/state", body.to_string());
    }
    let of_subject = "/admin/v1/state?rule=api&attr.tenant=canary&attr.user=u";
    send("DELETE", of_subject, String::new());
    send("DELETE", "/admin/v1/state?rule=api&all=true", String::new());
}

#[test]
fn the_log_is_written_as_the_settings_choose() {
    let url = format!("redis://127.0.0.1:{}", spillgate_testkit::free_port());
    let log_of = |variable: &str, value: &str| {
        let mut command = spillgate(&["serve", "--http", "127.0.0.1:0", "--redis", &url]);
        let mut server = Process::start(command.env(variable, value).stderr(Stdio::piped()));
        std::thread::sleep(Duration::from_secs(3));
        server.terminate(Duration::from_secs(15));
        let mut log = String::new();
        server.stderr().unwrap().read_to_string(&mut log).unwrap();
        log
    };
    let (json, off) = std::thread::scope(|scope| {
        let json = scope.spawn(|| log_of("SPILLGATE_TELEMETRY__LOG__FORMAT", "json"));
        let off = log_of("SPILLGATE_TELEMETRY__LOG__LEVEL", "off");
        (json.join().unwrap(), off)
    });
    let lines: Vec<Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{json}")))
        .collect();
    let ready = |line: &&Value| line["message"].as_str().unwrap().starts_with("HTTP on ");
    assert!(lines.iter().any(|line| ready(&line) && line["level"] == "INFO"), "{json}");
    assert!(
        lines.iter().any(|line| line["level"] == "WARN" && line["shard"].is_string()),
        "{json}"
    );
    assert_eq!(off.lines().count(), 1, "{off}");
}

#[test]
fn a_json_log_has_the_generated_token_at_any_level_and_each_line_as_an_object() {
    let mut command = spillgate(&["serve", "--expose", "--http", "0.0.0.0:0"]);
    command.env("SPILLGATE_TELEMETRY__LOG__FORMAT", "json");
    let server = Server::start_command(command.env("SPILLGATE_TELEMETRY__LOG__LEVEL", "off"));
    let log = format!("{}{}", server.before_ready, server.ready) + &server.rest_of_log();
    let starts = ["generated data token", "HTTP on ", "reservations are off"];
    assert_eq!(log.lines().count(), starts.len(), "{log}");
    for (line, start) in log.lines().zip(starts) {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{log}"));
        assert!(line["message"].as_str().unwrap().starts_with(start), "{start}: {log}");
    }
}

// Values of callers, planted at every API and in every way that ends in an error.
#[test]
fn no_value_of_a_caller_is_in_the_log_the_metrics_or_the_store() {
    let file = TempFile::new("limits.toml", RULES);
    let mut redis = RedisServer::start();
    let server = Server::start(&["--config", file.path(), "--redis", &redis.url()]);
    let questions = [
        r#"{"attributes":{"tenant":"canary-tenant","user":"canary-user"}}"#,
        r#"{"domain":"canary-domain","attributes":{"canary-name":"canary-value"}}"#,
        r#"{"key":"canary-key","limit":{"quota":"2/hour"}}"#,
        r#"{"key":"canary-key","limit":{"quota":"canary-quota"}}"#,
        r#"{"attributes":{"tenant":["canary"]}}"#,
    ];
    let plant = || {
        for question in questions.iter().cycle().take(3 * questions.len()) {
            server.post("/v1/check", question.as_bytes());
        }
        server.client().send("GET", "/v1/auth?canary=canary", b"").unwrap();
        let mut resp = server.resp();
        resp.command(&["CL.THROTTLE", "canary-key", "1", "1", "60"]).unwrap();
        resp.command(&["CANARY", "canary"]).unwrap();
        let caller = Caller::of(&server);
        let values = [("tenant", "canary-tenant"), ("user", "canary-user")];
        let metadata = [("x-canary", "canary"), ("traceparent", "canary")];
        caller.ask_as(&metadata, &[descriptor(&values)]).unwrap();
        // An invalid descriptor, which is an error of the operator.
        let _ = caller.ask_as(&metadata, &[descriptor(&[("", "canary")])]);
        let _ = caller.try_ask(Request::new(in_domain("canary-domain", &[descriptor(&values)])));
        let path = "/admin/v1/explain?attr.tenant=canary-tenant&attr.user=canary-user";
        server.operator().send("GET", path, b"").unwrap();
        let of =
            json!({"rule": "api", "subject": {"tenant": "canary-tenant"}, "limits": ["1/hour"]});
        server.operator().send("PUT", "/admin/v1/overrides", of.to_string().as_bytes()).unwrap();
    };
    plant();
    let held = dump(&redis);
    assert!(held.len() > 500 && held.contains("sg3:"), "{held}");
    redis.kill();
    plant();
    let (metrics, ready) = (server.metrics(), server.ready.clone());
    let log = ready + &server.rest_of_log();
    assert!(log.contains("a decision was made without the store"), "{log}");
    for (place, text) in [("the store", held), ("the metrics", metrics), ("the log", log)] {
        assert!(!text.to_lowercase().contains("canary"), "in {place}: {text}");
    }
}

/// Returns every key with its value.
fn dump(redis: &RedisServer) -> String {
    let Reply::Array(keys) = redis.command(&["KEYS", "*"]) else { panic!("KEYS answers a list") };
    let keys: Vec<String> = keys.iter().map(|key| key.text().to_owned()).collect();
    assert!(keys.len() > 3, "{keys:?}");
    let held = keys.iter().map(|key| match redis.command(&["DUMP", key]) {
        Reply::Bulk(bytes) => format!("{key} {}\n", String::from_utf8_lossy(&bytes)),
        other => panic!("DUMP {key}: {other:?}"),
    });
    held.collect()
}
