//! Real processes over one Redis whose demand exceeds the limit. In any interval they admit together at most
//! the bound plus the leased share, and hardly less than the limit.
//!
//! The processes are this test binary again, made workers by the environment. They share the machine's
//! monotonic clock and report how much they admitted in each millisecond.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use spillgate::{Limiter, Policy, Reason, Request, Source};
use spillgate_core::time::boottime_us;
use spillgate_testkit::{Process, RedisServer};
use tokio::time::sleep;

use crate::failure::evidence;
use crate::support::storm;

#[test]
fn processes_with_leases_stay_within_the_bound_and_use_the_limit() {
    let lasting = if evidence() { Duration::from_secs(600) } else { Duration::from_secs(6) };
    let server = RedisServer::start();
    let start = |_| start_worker(server.port(), lasting);
    let mut workers: Vec<Process> = (0..PROCESSES).map(start).collect();
    let mut admitted = SUBJECTS.map(|_| BTreeMap::<u64, u64>::new());
    let (mut checks, mut by_lease, mut overloaded, mut latest_ms) = (0, 0, 0, 0);
    for worker in &mut workers {
        let mut report = String::new();
        worker.stdout().unwrap().read_to_string(&mut report).unwrap();
        let ended = worker.wait(lasting + Duration::from_secs(30)).unwrap();
        assert!(ended.success(), "a worker failed:\n{report}");
        for (subject, admitted) in SUBJECTS.iter().zip(&mut admitted) {
            let lines = report.lines().filter_map(|line| line.strip_prefix(subject));
            for (ms, count) in lines.filter_map(|line| line.trim().split_once(' ')) {
                *admitted.entry(ms.parse().unwrap()).or_default() += count.parse::<u64>().unwrap();
            }
        }
        let of = |name: &str| -> u64 {
            let line = report.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("no {name} in:\n{report}")).trim().parse().unwrap()
        };
        checks += of("checks ");
        by_lease += of("by lease ");
        overloaded += of("overloaded ");
        latest_ms = latest_ms.max(of("longest "));
    }
    // A worker reports an admission up to `latest_ms` later than it was charged, while earlier ones may be on time.
    let late = RATE * (latest_ms + 1) / 1_000;
    for (subject, admitted) in SUBJECTS.iter().zip(&admitted) {
        let (all, over) = (admitted.values().sum::<u64>(), most_over(admitted));
        println!(
            "{subject}: {all} admitted, at most {over} over the burst, at most {late} reported late"
        );
        assert!(over <= BURST / 20 + late, "{subject}: {over}");
    }
    let steady = &admitted[0];
    let (first, last) = (*steady.keys().next().unwrap(), *steady.keys().last().unwrap());
    // The first moments use the full bucket, and connect.
    let settled: u64 = steady.range(first + SETTLED_MS..).map(|(_, count)| count).sum();
    let could = RATE * (last - first - SETTLED_MS) / 1_000;
    println!(
        "{PROCESSES} processes: {checks} checks, {by_lease} by leases, {overloaded} overloaded; \
         steady: {settled} of {could}"
    );
    // Beside other tests a process may not run for a moment, and others wait for what it has leased.
    let least = if evidence() { 99 } else { 95 };
    assert!(settled * 100 >= could * least, "{settled} of {could}: the limit is not used");
    assert!(by_lease > 0, "no lease was ever taken");
    // A machine that stops for longer than `overload_wait` has calls answered too late.
    assert!(overloaded * 1_000 <= checks, "{overloaded} of {checks} overloaded");
}

/// Returns by how much the worst interval exceeds the burst plus the drain within it.
fn most_over(admitted: &BTreeMap<u64, u64>) -> u64 {
    // In thousandths of a token, since the rate is per second.
    let (mut level, mut at, mut most) = (0_u64, 0, 0);
    for (ms, count) in admitted {
        level = level.saturating_sub(RATE * (ms - at)) + 1_000 * count;
        at = *ms;
        most = most.max(level);
    }
    most.div_ceil(1_000).saturating_sub(BURST)
}

/// Returns at once unless the environment makes this process a worker.
#[test]
fn a_worker_with_leases() {
    let Ok(port) = std::env::var(WORKER_ON_PORT) else { return };
    let lasting: u64 = std::env::var(LASTING_MS).unwrap().parse().unwrap();
    let threads = storm::threads();
    let policy = format!(
        "[[rule]]\nname = \"api\"\nkey = [\"subject\"]\n\
         limits = [{{ quota = \"{RATE}/second\", burst = {BURST} }}]\n\
         lease = {{ share = 0.05, ttl = \"1s\" }}"
    );
    threads.block_on(async {
        let limiter = Limiter::builder()
            .policy(Policy::from_toml(&policy).unwrap())
            .redis(format!("redis://127.0.0.1:{port}"))
            .timeout(Duration::from_secs(1));
        let limiter = limiter.build().await.unwrap();
        let until_us = boottime_us() + lasting * 1_000;
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..CALLERS {
            callers.spawn(call(limiter.clone(), until_us));
        }
        let mut sum = Report::default();
        while let Some(report) = callers.join_next().await {
            sum.add(report.unwrap());
        }
        limiter.close().await;
        println!();
        sum.at.iter().for_each(|((subject, ms), count)| println!("{subject} {ms} {count}"));
        let Report { checks, by_lease, overloaded, longest_us, .. } = sum;
        println!("checks {checks}\nby lease {by_lease}\noverloaded {overloaded}");
        println!("longest {}", longest_us.div_ceil(1_000));
    });
}

/// The decisions of a caller, or of all.
#[derive(Default)]
struct Report {
    /// The admissions by subject and millisecond.
    at: BTreeMap<(&'static str, u64), u64>,
    checks: u64,
    by_lease: u64,
    overloaded: u64,
    longest_us: u64,
}

impl Report {
    fn add(&mut self, other: Report) {
        other.at.into_iter().for_each(|(at, count)| *self.at.entry(at).or_default() += count);
        self.checks += other.checks;
        self.by_lease += other.by_lease;
        self.overloaded += other.overloaded;
        self.longest_us = self.longest_us.max(other.longest_us);
    }
}

/// Checks one subject all the time, and the other in storms, between which its bucket becomes full again.
async fn call(limiter: Limiter, until_us: u64) -> Report {
    let mut report = Report::default();
    loop {
        let began_us = boottime_us();
        if began_us >= until_us {
            return report;
        }
        let storms = (began_us / 1_000_000).is_multiple_of(4);
        for subject in &SUBJECTS[..=usize::from(storms)] {
            let began_us = boottime_us();
            let decision = limiter.check(&Request::new().with("subject", *subject)).await;
            let now_us = boottime_us();
            report.checks += 1;
            if decision.reason() == Some(Reason::Overloaded) {
                report.overloaded += 1;
                continue;
            }
            assert!(!decision.degraded(), "{decision:?}");
            if decision.allowed() {
                *report.at.entry((subject, now_us / 1_000)).or_default() += 1;
                report.by_lease += u64::from(decision.source() == Source::Lease);
                report.longest_us = report.longest_us.max(now_us - began_us);
            }
        }
        sleep(Duration::from_millis(1)).await;
    }
}

fn start_worker(port: u16, lasting: Duration) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "leases::processes::a_worker_with_leases", "--nocapture"]);
    command.env(WORKER_ON_PORT, port.to_string());
    command.env(LASTING_MS, lasting.as_millis().to_string());
    Process::start(command.stdout(Stdio::piped()))
}

const WORKER_ON_PORT: &str = "SPILLGATE_LEASES_WORKER_ON_PORT";
const LASTING_MS: &str = "SPILLGATE_LEASES_WORKER_LASTS_MS";
const SUBJECTS: [&str; 2] = ["steady", "storms"];
const PROCESSES: usize = 4;
/// Each makes hundreds of checks per second.
const CALLERS: usize = 4;
const RATE: u64 = 400;
const BURST: u64 = 800;
const SETTLED_MS: u64 = 2_000;
