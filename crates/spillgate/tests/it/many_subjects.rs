//! Memory stays bounded for any number of subjects, in memory and on a store.
//!
//! A process of its own is measured, because the other tests take memory as well.

use std::process::Command;
use std::time::Duration;

use spillgate::{Limiter, Policy, Request};
use spillgate_testkit::RedisServer;

use crate::failure::evidence;

#[test]
fn a_million_subjects_in_memory_leave_memory_and_series_flat() {
    stays_flat("memory", if evidence() { 10_000_000 } else { 200_000 });
}

#[test]
fn a_million_subjects_on_a_store_leave_memory_and_series_flat() {
    let redis = RedisServer::start();
    stays_flat(&redis.url(), if evidence() { 10_000_000 } else { 40_000 });
}

#[track_caller]
fn stays_flat(store: &str, subjects: u32) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "many_subjects::a_process_with_many_subjects", "--nocapture"]);
    let output = command.env(STORE, store).env(SUBJECTS, subjects.to_string()).output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output_text}{}", String::from_utf8_lossy(&output.stderr));
    let marks: Vec<Vec<u64>> =
        output_text.lines().filter_map(|line| line.strip_prefix(MARK)).map(numbers).collect();
    let [early, late] = &marks[..] else { panic!("{output_text}") };
    let ([early_kib, early_lines], [late_kib, late_lines]) = (&early[..], &late[..]) else {
        panic!("{output_text}")
    };
    println!(
        "{subjects} subjects: {early_kib} KiB and {early_lines} lines of metrics after a fifth, {late_kib} KiB and {late_lines} at the end"
    );
    // Some series come and go with the state of the store; none belongs to a subject.
    assert!(early_lines.max(late_lines) < &200, "{output_text}");
    // Memory that the allocator keeps, not that of a subject.
    assert!(*late_kib <= early_kib + early_kib / 10 + 2_048, "{output_text}");
}

fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// Run as a process by the tests above; otherwise it does nothing.
#[test]
fn a_process_with_many_subjects() {
    let (Ok(store), Ok(subjects)) = (std::env::var(STORE), std::env::var(SUBJECTS)) else { return };
    let subjects: u32 = subjects.parse().unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let policy = Policy::from_toml(RULES).unwrap();
        let builder = Limiter::builder().policy(policy).max_keys(20_000);
        // A long timeout, because this test is not about state kept during outages.
        let patience = Duration::from_secs(5);
        let builder =
            if store == "memory" { builder } else { builder.redis(&store).timeout(patience) };
        let limiter = builder.build().await.unwrap();
        for first in (0..subjects).step_by(AT_ONCE as usize) {
            if first == subjects / 5 {
                mark(&limiter);
            }
            let half = AT_ONCE / 2;
            tokio::join!(check(&limiter, first, half), check(&limiter, first + half, half));
        }
        mark(&limiter);
    });
}

/// Checks `subjects` subjects from the first one on, in one batch.
async fn check(limiter: &Limiter, first: u32, subjects: u32) {
    let names: Vec<String> =
        (first..first + subjects).map(|subject| format!("u{subject}")).collect();
    let request = |name| Request::new().with("user", name);
    let requests: Vec<Request<'_>> = names.iter().map(request).collect();
    assert_eq!(limiter.check_batch(&requests).await.len(), names.len());
}

fn mark(limiter: &Limiter) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib = resident.trim().trim_end_matches(" kB");
    println!("{MARK}{kib} {}", limiter.metrics_text().lines().count());
}

const STORE: &str = "SPILLGATE_TEST_MANY_STORE";
const SUBJECTS: &str = "SPILLGATE_TEST_MANY_SUBJECTS";
const MARK: &str = "mark: ";
const AT_ONCE: u32 = 400;
/// One rule whose state expires at once, and one whose denials are remembered.
const RULES: &str = r#"
    [[rule]]
    name = "all"
    key = ["user"]
    limits = ["1000/second"]

    [[rule]]
    name = "watched"
    key = ["user"]
    mode = "shadow"
    limits = ["1/second"]
"#;
