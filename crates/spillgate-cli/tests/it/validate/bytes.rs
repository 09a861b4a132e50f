//! `--subjects`: what is said that the state takes is about what it takes in a real Redis.

use serde_json::{Value, json};
use spillgate_testkit::RedisServer;

use crate::server::{Server, TempFile, run};

/// Limits of one rule, and how often each subject asks. Nothing expires before it is weighed.
const RULES: &[(&str, u64)] = &[
    (r#""100/day""#, 1),
    (r#""100/day", "3000/day", "9000/day""#, 1),
    (r#"{ quota = "100/day", algorithm = "fixed-window" }"#, 1),
    (r#"{ quota = "100/day", algorithm = "sliding-window" }"#, 1),
    (r#"{ quota = "200/hour", algorithm = "sliding-log" }"#, 200),
    (r#"{ quota = "20", algorithm = "concurrency", max_hold = "1h" }"#, 20),
];

#[test]
fn what_subjects_take_in_redis_is_near_what_is_said() {
    let told: Vec<(&str, u64, u64)> =
        RULES.iter().map(|(limits, calls)| told(limits, *calls)).collect();
    for (limits, takes, said) in &told {
        println!("{limits}: {takes} bytes a subject, {said} said");
    }
    for (limits, takes, said) in told {
        assert!(said * 3 > takes * 2 && said * 2 < takes * 3, "{limits}: {takes}, {said} said");
    }
}

/// What a subject takes, and what it is said to take.
fn told(limits: &'static str, calls: u64) -> (&'static str, u64, u64) {
    // Many where one call is enough, so that tables that grow do not decide.
    let batches = if calls == 1 { 10 } else { 1 };
    let subjects = batches * BATCH;
    let policy = format!("[[rule]]\nname = \"r\"\nkey = [\"user\"]\nlimits = [{limits}]\n");
    let file = TempFile::new("limits.toml", &policy);
    let output = run(&["validate", "--json", "--subjects", &subjects.to_string(), file.path()]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let said = report["bytes"][0]["in_redis"].as_u64().unwrap();

    let redis = RedisServer::start();
    let server = Server::start_on(&redis, &["--config", file.path()]);
    let ask = |kind: &str| {
        let user = |user| json!({"attributes": {"user": format!("{kind}-{user}")}});
        let asked: Vec<Value> = (0..BATCH).map(user).collect();
        let reply = server.post("/v1/check/batch", Value::from(asked).to_string().as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.body);
    };
    // The script, the connections and their buffers are nobody's.
    ask("other");
    let before = used(&redis);
    for batch in 0..batches {
        (0..calls).for_each(|_| ask(&format!("user-{batch}")));
    }
    let takes = used(&redis) - before;
    (limits, takes / subjects, said / subjects)
}

fn used(redis: &RedisServer) -> u64 {
    redis.info("memory", "used_memory").parse().unwrap()
}

/// As many as are asked at once.
const BATCH: u64 = 500;
