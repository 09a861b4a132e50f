//! `--subjects`: the estimated bytes are near the real ones in Redis.

use serde_json::{Value, json};
use spillgate_testkit::RedisServer;

use crate::server::{Server, TempFile, run};

/// The limits of a rule, and the calls of each subject. No state expires before it is measured.
const RULES: &[(&str, u64)] = &[
    (r#""100/day""#, 1),
    (r#""100/day", "3000/day", "9000/day""#, 1),
    (r#"{ quota = "100/day", algorithm = "fixed-window" }"#, 1),
    (r#"{ quota = "100/day", algorithm = "sliding-window" }"#, 1),
    (r#"{ quota = "200/hour", algorithm = "sliding-log" }"#, 200),
    (r#"{ quota = "20", algorithm = "concurrency", max_hold = "1h" }"#, 20),
];

#[test]
fn the_estimate_is_near_the_bytes_in_redis() {
    let measured: Vec<(&str, u64, u64)> =
        RULES.iter().map(|(limits, calls)| measured(limits, *calls)).collect();
    for (limits, takes, estimated) in &measured {
        println!("{limits}: {takes} bytes a subject, {estimated} estimated");
    }
    for (limits, takes, estimated) in measured {
        assert!(
            estimated * 3 > takes * 2 && estimated * 2 < takes * 3,
            "{limits}: {takes}, {estimated} estimated"
        );
    }
}

/// Returns the real and the estimated bytes of a subject.
fn measured(limits: &'static str, calls: u64) -> (&'static str, u64, u64) {
    // Many subjects if one call is enough, so that growing tables do not decide.
    let batches = if calls == 1 { 10 } else { 1 };
    let subjects = batches * BATCH;
    let policy = format!("[[rule]]\nname = \"r\"\nkey = [\"user\"]\nlimits = [{limits}]\n");
    let file = TempFile::new("limits.toml", &policy);
    let output = run(&["validate", "--json", "--subjects", &subjects.to_string(), file.path()]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let estimated = report["bytes"][0]["in_redis"].as_u64().unwrap();

    let redis = RedisServer::start();
    let server = Server::start_on(&redis, &["--config", file.path()]);
    let ask = |kind: &str| {
        let user = |user| json!({"attributes": {"user": format!("{kind}-{user}")}});
        let checks: Vec<Value> = (0..BATCH).map(user).collect();
        let reply = server.post("/v1/check/batch", Value::from(checks).to_string().as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.body);
    };
    // The script, the connections and their buffers belong to no subject.
    ask("other");
    let before = used(&redis);
    for batch in 0..batches {
        (0..calls).for_each(|_| ask(&format!("user-{batch}")));
    }
    let takes = used(&redis) - before;
    (limits, takes / subjects, estimated / subjects)
}

fn used(redis: &RedisServer) -> u64 {
    redis.info("memory", "used_memory").parse().unwrap()
}

/// As many as one batch has.
const BATCH: u64 = 500;
