//! Instances on one store that differ in key secret or ring: each one finds out, logs it, and reports agreement once
//! they agree.

use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};
use spillgate_testkit::{RedisServer, eventually, poll};

use crate::server::{Server, TempFile, run, serve};

/// Once, three secrets on one Redis admitted three times the limit without a line in a log.
#[test]
fn three_instances_with_three_secrets_warn_of_each_other_until_one_is_left() {
    let redis = RedisServer::start();
    let secrets: Vec<TempFile> = (1..=3).map(secret).collect();
    let files: Vec<TempFile> = secrets
        .iter()
        .map(|secret| store(&redis, &format!("key_secret_file = {:?}\n", secret.path())))
        .collect();
    let mut fleet: Vec<Server> = files.iter().map(serve).collect();
    let admitted: usize = fleet.iter().map(admitted).sum();
    println!("three secrets admitted {admitted} of {LIMIT}");
    for server in &mut fleet {
        eventually(|| mismatch(server, "secret") == "2");
        eventually(|| {
            server.metrics().contains("spillgate_store_unsafe{reason=\"secret-mismatch\"} 1\n")
        });
        assert_eq!(
            (mismatch(server, "ring"), mismatch(server, "schema")),
            ("0".into(), "0".into())
        );
        let health = health(server);
        assert!(
            health.contains("critical: live instances with another key secret: 2 of 3;"),
            "{health}"
        );
        // The third may have found the others before it was ready.
        if !server.before_ready.contains(WARNING) {
            server.log_until(WARNING);
        }
    }
    let doctor = run(&["doctor", "--json", "--config", files[0].path()]);
    assert_eq!(doctor.status.code(), Some(1));
    let found = finding(&doctor, "secret-mismatch").unwrap();
    assert_eq!(found["level"], "unsafe");
    assert_eq!(found["problem"], "live instances with another key secret: 2 of 3");

    let mut last = fleet.remove(0);
    fleet.into_iter().for_each(Server::kill);
    let agree = poll(PATIENCE, || (mismatch(&last, "secret") == "0").then_some(()));
    assert!(agree.is_some(), "{}", last.metrics());
    eventually(|| !last.metrics().contains("reason=\"secret-mismatch\""));
    assert!(!health(&last).contains("unsafe"));
    last.log_until("all live instances agree again");
    let doctor = run(&["doctor", "--json", "--config", files[0].path()]);
    assert_eq!(doctor.status.code(), Some(0));
}

/// Each kind counts both kinds, and says what a subject can get meanwhile.
#[test]
fn instances_on_two_rings_are_a_condition_until_one_kind_is_left() {
    let (a, b) = (RedisServer::start(), RedisServer::start());
    let node = |name: &str, redis: &RedisServer| format!("\"{name}={}\"", redis.url());
    let (a, b) = (node("a", &a), node("b", &b));
    let ring = |nodes: &str| {
        TempFile::new("ring.toml", &format!("{STORE}ring = {{ nodes = [{nodes}] }}\n{RULE}"))
    };
    let (one, two) = (ring(&a), ring(&format!("{a}, {b}")));
    let (old, new) = (serve(&one), [serve(&two), serve(&two)]);
    eventually(|| mismatch(&old, "ring") == "2");
    new.iter().for_each(|server| eventually(|| mismatch(server, "ring") == "1"));
    eventually(|| old.metrics().contains("spillgate_store_unsafe{reason=\"ring-mismatch\"} 1\n"));
    let health = health(&old);
    assert!(health.contains("critical: live instances with another ring: 2 of 3;"), "{health}");
    let doctor = run(&["doctor", "--json", "--config", one.path()]);
    assert_eq!(doctor.status.code(), Some(1));
    let found = finding(&doctor, "ring-mismatch").unwrap();
    assert_eq!(found["problem"], "live instances with another ring: 2 of 3");
    assert!(found["why"].as_str().unwrap().contains("up to twice its limit"), "{found}");

    old.kill();
    for server in &new {
        let agree = poll(PATIENCE, || (mismatch(server, "ring") == "0").then_some(()));
        assert!(agree.is_some(), "{}", server.metrics());
    }
}

#[test]
fn instances_with_two_policies_are_counted_and_listed_until_they_have_the_same() {
    let redis = RedisServer::start();
    let with = |limit: &str| {
        let rule = RULE.replace("10/day", limit);
        TempFile::new("store.toml", &format!("{STORE}url = \"{}\"\n{rule}", redis.url()))
    };
    let (one, two) = (with("10/day"), with("11/day"));
    let (old, new, again) = (serve(&one), serve(&two), serve(&one));
    eventually(|| mismatch(&old, "policy") == "1" && mismatch(&new, "policy") == "2");
    assert_eq!(mismatch(&old, "secret"), "0");
    let fleet = || {
        let fleet = old.operator().send("GET", "/admin/v1/fleet", b"").unwrap().json();
        let instances = fleet["instances"].as_array().unwrap().clone();
        assert!(instances.iter().all(|it| it["started_ms"].as_u64() > Some(0)), "{fleet}");
        instances.iter().filter(|it| it["differs_in"] == json!(["policy"])).count()
    };
    eventually(|| fleet() == 1);
    std::fs::write(two.path(), std::fs::read(one.path()).unwrap()).unwrap();
    eventually(|| mismatch(&old, "policy") == "0" && mismatch(&new, "policy") == "0");
    eventually(|| fleet() == 0);
    drop(again);
}

/// The doctor has another secret than the fleet unless it gets the fleet's configuration.
#[test]
fn the_doctor_finds_other_secrets_and_is_not_counted_itself() {
    let redis = RedisServer::start();
    let secret = secret(1);
    let file = store(&redis, &format!("key_secret_file = {:?}\n", secret.path()));
    let server = serve(&file);
    eventually(|| live(&redis) == 1);
    let doctor = run(&["doctor", "--json", "--redis", &redis.url()]);
    assert_eq!(doctor.status.code(), Some(1));
    let found = finding(&doctor, "secret-mismatch").unwrap();
    assert_eq!(found["problem"], "live instances with another key secret: 1 of 1");
    assert_eq!(live(&redis), 1);
    let log = server.rest_of_log();
    assert!(!log.contains("differ"), "{log}");
}

/// Returns how many instances the store knows to be alive.
fn live(redis: &RedisServer) -> i64 {
    redis.command(&["ZCARD", "sg1:{fleet:default}:i"]).integer()
}

fn secret(number: u8) -> TempFile {
    TempFile::new("secret", &format!("{number:032x}"))
}

fn store(redis: &RedisServer, settings: &str) -> TempFile {
    TempFile::new("store.toml", &format!("{STORE}url = \"{}\"\n{settings}{RULE}", redis.url()))
}

/// Returns how many of twice the limit one instance admits.
fn admitted(server: &Server) -> usize {
    let body = r#"{"attributes": {"user": "ann"}}"#;
    (0..2 * LIMIT).filter(|_| server.check(body)["allowed"] == true).count()
}

fn mismatch(server: &Server, part: &str) -> String {
    let name = format!("spillgate_instance_mismatch{{part=\"{part}\"}} ");
    let metrics = server.metrics();
    let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
    value.unwrap_or_else(|| panic!("no {name:?} in: {metrics}")).to_owned()
}

fn health(server: &Server) -> String {
    server.operator().send("GET", "/readyz?verbose", b"").unwrap().body
}

fn finding(doctor: &Output, check: &str) -> Option<Value> {
    let report: Value = serde_json::from_slice(&doctor.stdout)
        .unwrap_or_else(|error| panic!("{error}: {doctor:?}"));
    let findings = report["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["check"] == check).cloned()
}

const WARNING: &str = "live instances on this store differ from this one";
/// An instance counts as gone 5 seconds after its last heartbeat.
const PATIENCE: Duration = Duration::from_secs(30);
const LIMIT: usize = 10;
const STORE: &str = "[store]\ntimeout = \"10s\"\n";
const RULE: &str = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"10/day\"]\n";
