//! `spillgate doctor`: every problem of a store, made for real.

use serde_json::Value;
use spillgate_testkit::{
    Cluster, Fault, FaultProxy, Node, RedisServer, Reply, SteppedServer, eventually, free_port,
    poll,
};
use std::time::Duration;

use crate::server::{Server, TempFile, run, spillgate};

#[test]
fn a_server_as_installed_is_described_with_its_risks() {
    let redis = RedisServer::start();
    let (code, text) = doctor(&redis.url(), &[]);
    assert_eq!(code, Some(0), "{text}");
    let version = redis.info("server", "redis_version");
    let expected = format!(
        "redis://127.0.0.1:PORT: Redis {version}, standalone, replicas: 0
  script  p50 N ms, p99 N ms, p99.9 N ms
  clock   N ms WAY this machine's

warning memory-bound, redis://127.0.0.1:PORT: maxmemory is not set
  why: out of memory it is killed, and every limit starts full again; with a bound it refuses writes, and the instances decide by their local shares
  fix: redis-cli -u redis://127.0.0.1:PORT CONFIG SET maxmemory 1gb

note key-secret: no key_secret_file is set, so subjects are hashed under the default secret, which is public
  why: a client can aim its requests at one shard, and a reader of the store can guess its subjects
  fix: openssl rand -hex 16 > FILE, the same for all instances, and name FILE as key_secret_file under [store]

note local-share: expected_instances is not set, so without the store each instance enforces 1/16 of a limit
  why: more instances admit more than the limit together, fewer admit less
  fix: write expected_instances under [store], or on_outage = \"deny\" or \"allow\" in the rule

0 unsafe, 1 warning, 2 notes; 14 checks on each of 1 server
"
    );
    assert_eq!(without_numbers(&text, redis.port()), expected);
    // Its charges are gone; that an instance was there is known for a moment.
    let Reply::Array(left) = redis.command(&["KEYS", "*"]) else { panic!("no list of keys") };
    assert!(left.iter().all(|key| key.text().starts_with("sg1:{")), "{left:?}");
}

/// Replaces times and the port by letters. The clocks of one machine may differ in either direction.
fn without_numbers(text: &str, port: u16) -> String {
    let text = text.replace(&format!(":{port}"), ":PORT");
    let text = text
        .replace("ms ahead of this machine's", "ms WAY this machine's")
        .replace("ms behind this machine's", "ms WAY this machine's");
    let is_time = |words: &[&str]| words[1].starts_with("ms") && words[0].contains('.');
    let words: Vec<&str> = text.split(' ').collect();
    let mut shown: Vec<&str> = words.clone();
    for place in 0..words.len().saturating_sub(1) {
        if is_time(&words[place..place + 2]) {
            shown[place] = "N";
        }
    }
    shown.join(" ")
}

#[test]
fn a_well_configured_server_has_no_findings() {
    let redis = RedisServer::start();
    redis.set("maxmemory", "1gb");
    let secret = TempFile::new("secret", "000102030405060708090a0b0c0d0e0f");
    let config = TempFile::new(
        "doctor.toml",
        &format!("[store]\nurl = \"{}\"\nkey_secret_file = \"{}\"\n", redis.url(), secret.path()),
    );
    let output = run(&["doctor", "--json", "--config", config.path()]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(report["safe"], true);
    assert_eq!(checks(&report, "unsafe"), [""; 0]);
    assert_eq!(checks(&report, "warning"), [""; 0]);
    assert!(report["servers"][0]["script"]["p999_us"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["timeout_us"], 25_000);
}

#[test]
fn eviction_is_unsafe_and_evicted_keys_are_counted() {
    let redis = RedisServer::start();
    redis.set("maxmemory", "3mb");
    redis.set("maxmemory-policy", "allkeys-lru");
    let value = "x".repeat(10_000);
    for key in 0..1_000 {
        redis.command(&["SET", &format!("churn:{key}"), &value]);
    }
    let report = finds(&redis.url(), "eviction", "unsafe");
    assert!(checks(&report, "warning").contains(&"evicted"), "{report}");
    redis.command(&["FLUSHALL"]);
    redis.set("maxmemory-policy", "noeviction");
    assert!(!checks(&diagnosis(&redis.url()), "unsafe").contains(&"eviction"));
}

#[test]
fn unbounded_and_exhausted_memory_are_found() {
    let redis = RedisServer::start();
    finds(&redis.url(), "memory-bound", "warning");
    redis.command(&["SET", "ballast", &"x".repeat(30_000_000)]);
    let used: u64 = redis.info("memory", "used_memory").parse().unwrap();
    redis.set("maxmemory", &(used * 10 / 9).to_string());
    finds(&redis.url(), "memory-used", "warning");
    redis.run_out_of_memory();
    let report = finds(&redis.url(), "memory-used", "unsafe");
    assert!(checks(&report, "unsafe").contains(&"script"), "{report}");
}

#[test]
fn replicas_of_a_primary_that_saves_nothing_are_unsafe() {
    let primary = RedisServer::start();
    let port = primary.port().to_string();
    let replica = RedisServer::start_with(
        &RedisServer::versions()[0].path,
        &["--replicaof", "127.0.0.1", &port],
    );
    poll(Duration::from_secs(20), || {
        (replica.info("replication", "master_link_status") == "up").then_some(())
    });
    let report = finds(&primary.url(), "nothing-saved", "unsafe");
    assert!(checks(&report, "note").contains(&"replicas-not-demanded"), "{report}");
    primary.set("appendonly", "yes");
    primary.set("min-replicas-to-write", "1");
    let report = diagnosis(&primary.url());
    assert!(!checks(&report, "unsafe").contains(&"nothing-saved"), "{report}");
    assert!(!checks(&report, "note").contains(&"replicas-not-demanded"), "{report}");

    let report = finds(&replica.url(), "role", "unsafe");
    assert!(checks(&report, "unsafe").contains(&"script"), "{report}");
}

#[test]
fn snapshots_that_fail_or_may_stop_all_writes_are_found() {
    let redis = RedisServer::start();
    redis.set("save", "3600 1");
    finds(&redis.url(), "snapshot-stops-writes", "warning");
    redis.fail_to_save();
    let report = finds(&redis.url(), "snapshot-failed", "unsafe");
    assert!(checks(&report, "unsafe").contains(&"script"), "{report}");
}

#[test]
fn missing_replicas_that_are_required_are_unsafe() {
    let redis = RedisServer::start();
    redis.demand_replicas(1);
    let report = finds(&redis.url(), "replicas-missing", "unsafe");
    assert!(checks(&report, "unsafe").contains(&"script"), "{report}");
}

#[test]
fn a_cluster_that_requires_full_coverage_has_a_warning() {
    let cluster = Cluster::start(1, 0);
    let node = cluster.node(Node(0));
    finds(&node.url(), "full-coverage", "warning");
    node.set("cluster-require-full-coverage", "no");
    assert!(!checks(&diagnosis(&node.url()), "warning").contains(&"full-coverage"));
}

#[test]
fn a_store_slower_than_the_deadline_is_unsafe() {
    let redis = RedisServer::start();
    let proxy = FaultProxy::before(redis.port());
    proxy.set(Fault::Delay(Duration::from_millis(20)));
    finds(&proxy.url(), "latency", "unsafe");
}

#[test]
#[ignore = "needs faketime"]
fn a_clock_far_off_has_a_warning() {
    let redis = SteppedServer::start(&[]).unwrap();
    let url = redis.server.url();
    assert!(!checks(&diagnosis(&url), "warning").contains(&"clocks"));
    redis.set_ahead_by_ms(3_600_000);
    finds(&url, "clocks", "warning");
}

#[test]
fn a_public_secret_is_unsafe_at_a_public_listener() {
    let redis = RedisServer::start();
    for server in ["http = \"0.0.0.0:8080\"", "http = \"off\"\nresp.address = \"0.0.0.0:6380\""] {
        let config = TempFile::new(
            "doctor.toml",
            &format!("[server]\n{server}\ninsecure = true\n[store]\nurl = \"{}\"\n", redis.url()),
        );
        let mut doctor = spillgate(&["doctor", "--json", "--config", config.path()]);
        let output = doctor.env_remove("SPILLGATE_SERVER__RESP__ADDRESS").output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{server}");
        assert_eq!(checks(&report, "unsafe"), ["key-secret"], "{server}");
    }
}

/// Accidents 26 and 41: operators saw no warning before the outage, and a badly configured store kept the service
/// from starting.
#[test]
fn serve_warns_once_of_an_unsafe_store_and_starts() {
    let redis = RedisServer::start();
    redis.set("maxmemory-policy", "allkeys-lru");
    let mut server = Server::start(&["--redis", &redis.url()]);
    assert_eq!(server.check(r#"{"key": "u1", "limit": {"quota": "5/minute"}}"#)["allowed"], true);
    let text = server.log_until("unsafe");
    assert!(text.contains("the store is unsafe (eviction of redis://127.0.0.1:"), "{text}");
    assert!(text.contains("CONFIG SET maxmemory-policy noeviction"), "{text}");
    let rest = server.rest_of_log();
    assert!(!rest.contains("unsafe"), "{rest}");
}

/// Once, the findings of such a start stayed, and the settings of the store were never looked at.
#[test]
fn a_store_that_starts_later_is_looked_at_then() {
    let version = RedisServer::versions().remove(0);
    let mut redis = RedisServer::start_with(&version.path, &["--maxmemory-policy", "allkeys-lru"]);
    redis.kill();
    let server = Server::start(&["--redis", &redis.url()]);
    let has = |reason: &str| {
        let line = format!("spillgate_store_unsafe{{reason={reason:?}}} 1");
        server.metrics().contains(&line)
    };
    eventually(|| has("reach"));
    redis.restart();
    eventually(|| has("eviction") && !has("reach"));
}

#[test]
fn the_printed_user_can_run_the_script_and_nothing_else() {
    let output = run(&["doctor", "--acl"]);
    assert_eq!(output.status.code(), Some(0));
    let command = String::from_utf8(output.stdout).unwrap();
    for version in RedisServer::versions() {
        println!("{}", version.name);
        let redis = RedisServer::start_with(&version.path, &[]);
        let words: Vec<&str> = command.split_whitespace().collect();
        assert_eq!(redis.command(&words).text(), "OK", "{command}");
        let url = format!("redis://spillgate:PASSWORD@127.0.0.1:{}", redis.port());
        let report = diagnosis(&url);
        assert_eq!(checks(&report, "unsafe"), [""; 0], "{report}");
        // The user only lacks the right to read the settings.
        assert!(checks(&report, "note").contains(&"settings-hidden"), "{report}");
        let mut connection = redis.connect();
        connection.command(&["AUTH", "spillgate", "PASSWORD"]).unwrap();
        for refused in [["SET", "other", "1"].as_slice(), &["FLUSHALL"], &["KEYS", "*"]] {
            let reply = format!("{:?}", connection.command(refused).unwrap());
            assert!(reply.contains("NOPERM"), "{refused:?}: {reply}");
        }
        assert!(!report.to_string().contains("PASSWORD"), "{report}");
    }
}

#[test]
fn a_user_with_too_few_rights_is_unsafe() {
    let redis = RedisServer::start();
    let url =
        redis.url_of_user("clerk", "secret", &["~sg1:*", "~sg3:*", "+ping", "+info", "+time"]);
    let report = finds(&url, "script", "unsafe");
    assert!(report.to_string().contains("no permissions to run the 'eval"), "{report}");
}

#[test]
fn a_store_that_nothing_names_or_a_file_that_is_absent_is_an_error() {
    for arguments in [&["doctor"][..], &["doctor", "--config", "/no/such/file"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn a_server_that_is_down_hangs_or_refuses_the_password_is_out_of_reach() {
    let mut redis = RedisServer::start();
    let user = redis.url_of_user("clerk", "secret", &["~*", "+@all"]);
    let report = finds(&user.replace("secret", "guess"), "reach", "unsafe");
    assert!(report.to_string().contains("WRONGPASS"), "{report}");
    redis.pause();
    finds(&redis.url(), "reach", "unsafe");
    redis.resume();
    redis.kill();
    finds(&redis.url(), "reach", "unsafe");
    let (code, text) = doctor(&redis.url(), &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.starts_with(&format!("UNSAFE reach, {}: no answer: ", redis.url())), "{text}");
    let end = "\n\n1 unsafe, 0 warnings, 2 notes; 14 checks on each of 0 servers\n";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn sentinels_and_nodes_of_a_cluster_that_do_not_answer_are_out_of_reach() {
    let urls = [0, 1].map(|_| format!("redis://127.0.0.1:{}", free_port()));
    let report = finds_in(&format!("cluster = {urls:?}"), "reach");
    for (finding, url) in report["findings"].as_array().unwrap().iter().zip(&urls) {
        assert_eq!(finding["server"], *url, "{report}");
    }
    let report = finds_in(&format!("sentinel = {{ master = \"main\", urls = {urls:?} }}"), "reach");
    let sentinels = format!("main by sentinels {} {}", urls[0], urls[1]);
    assert_eq!(report["findings"][0]["server"], sentinels, "{report}");
}

/// "no server answers", although it did.
#[test]
fn a_server_that_is_no_node_of_a_cluster_is_out_of_reach_with_its_reply() {
    let redis = RedisServer::start();
    // With the default, a busy machine has only a time-out to report.
    let settings = format!("cluster = [\"{}\"]\ntimeout = \"10s\"", redis.url());
    let report = finds_in(&settings, "reach");
    let problem = report["findings"][0]["problem"].as_str().unwrap();
    for part in ["CLUSTER SLOTS", "cluster support disabled"] {
        assert!(problem.contains(part), "{part}: {problem}");
    }
}

/// Runs it on the store of these settings, and expects this unsafe finding.
#[track_caller]
fn finds_in(settings: &str, check: &str) -> Value {
    let file = TempFile::new("limits.toml", &format!("[store]\n{settings}\n"));
    let output = run(&["doctor", "--json", "--config", file.path()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(checks(&report, "unsafe").contains(&check), "{check}: {report}");
    report
}

/// Runs it on a store, and expects this finding and its exit code.
#[track_caller]
fn finds(url: &str, check: &str, level: &str) -> Value {
    let report = diagnosis(url);
    assert!(checks(&report, level).contains(&check), "{check}, {level}: {report}");
    for finding in report["findings"].as_array().unwrap() {
        for field in ["problem", "why", "fix"] {
            assert!(!finding[field].as_str().unwrap().is_empty(), "{finding}");
        }
    }
    report
}

#[track_caller]
fn diagnosis(url: &str) -> Value {
    let (code, text) = doctor(url, &["--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    let safe = checks(&report, "unsafe").is_empty();
    assert_eq!((report["safe"].as_bool(), code), (Some(safe), Some(i32::from(!safe))), "{text}");
    report
}

fn checks<'a>(report: &'a Value, level: &str) -> Vec<&'a str> {
    let findings = report["findings"].as_array().unwrap().iter();
    let of_level = findings.filter(|finding| finding["level"] == level);
    of_level.map(|finding| finding["check"].as_str().unwrap()).collect()
}

#[track_caller]
fn doctor(url: &str, flags: &[&str]) -> (Option<i32>, String) {
    let output = run(&[&["doctor", "--redis", url], flags].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.is_empty(), "{errors}");
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}
