//! A fleet: a thousand callers in four processes over one Redis are admitted exactly up to the limit.
//!
//! The processes are this test binary again, made workers by the environment. The store's own clock decides,
//! so the limits are such that nothing refills and no window ends meanwhile. The oracle then admits exactly
//! the capacity.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use spillgate::Algorithm;
use spillgate_core::algorithm::Intent;
use spillgate_core::limit::NamedLimit;
use spillgate_testkit::{Connection, Process, RedisServer};
use tokio::runtime::Runtime;

use crate::support::storm;
use crate::support::world::{AGES, PATIENCE, limit, transaction};

#[test]
fn a_thousand_callers_in_four_processes_are_admitted_exactly_to_the_limit() {
    let server = RedisServer::start();
    let mut workers: Vec<Process> = (0..PROCESSES).map(|_| start_worker(server.port())).collect();
    let mut reports = Vec::new();
    for worker in &mut workers {
        let mut report = String::new();
        worker.stdout().unwrap().read_to_string(&mut report).unwrap();
        assert!(worker.wait(PATIENCE).unwrap().success(), "a worker failed:\n{report}");
        reports.push(report);
    }
    let threads = storm::threads();
    for scene in scenes() {
        let admitted: Vec<u64> = reports.iter().map(|report| scene.admitted_by(report)).collect();
        println!("{}: {admitted:?}", scene.name);
        assert_eq!(admitted.iter().sum::<u64>(), CAPACITY, "{}: {admitted:?}", scene.name);
        let used: Vec<u64> = scene.used(&threads, &server.url());
        assert!(
            used.iter().all(|used| *used == CAPACITY),
            "{}: counters charged {used:?}",
            scene.name
        );
    }
}

/// Returns at once unless the environment makes this process a worker.
#[test]
fn a_worker_of_the_fleet() {
    let Ok(port) = std::env::var(WORKER_ON_PORT) else { return };
    let port = port.parse().unwrap();
    let threads = storm::threads();
    let engine = storm::engine(&threads, Some(&format!("redis://127.0.0.1:{port}")));
    for scene in scenes() {
        meet_all_workers(port, &scene.name);
        let rounds = (0..ROUNDS)
            .map(|_| storm::admitted(&threads, &engine, &scene.limits(), [1; CALLERS / PROCESSES]));
        println!("\n{}: {}", scene.name, rounds.sum::<usize>());
    }
}

/// The counters that all callers check.
struct Scene {
    name: String,
    counters: Vec<(u128, NamedLimit)>,
}

fn scenes() -> Vec<Scene> {
    let mut scenes = Vec::new();
    for algorithm in Algorithm::ALL {
        // The narrowest is in the middle, and it alone denies.
        let limits: Vec<NamedLimit> = [CAPACITY + 100, CAPACITY, CAPACITY + 300]
            .into_iter()
            .enumerate()
            .map(|(place, count)| {
                NamedLimit::new(limit(algorithm, count, AGES).limit().clone(), place)
            })
            .collect();
        let mut scene = |what: &str, counters| {
            scenes.push(Scene { name: format!("{algorithm} {what}"), counters });
        };
        let first = 10 * algorithm as u128;
        scene("one key", vec![(first, limits[1].clone())]);
        scene(
            "three counters of one rule",
            limits.iter().map(|limit| (first + 1, limit.clone())).collect(),
        );
        scene("three rules and subjects", (first + 2..).zip(limits).collect());
    }
    scenes
}

impl Scene {
    fn limits(&self) -> Vec<(u128, &NamedLimit)> {
        self.counters.iter().map(|(subject, limit)| (*subject, limit)).collect()
    }

    fn admitted_by(&self, report: &str) -> u64 {
        let line = report.lines().find_map(|line| line.strip_prefix(&format!("{}: ", self.name)));
        line.unwrap_or_else(|| panic!("no {} in:\n{report}", self.name)).parse().unwrap()
    }

    fn used(&self, threads: &Runtime, url: &str) -> Vec<u64> {
        let engine = storm::engine(threads, Some(url));
        let costs: Vec<_> =
            self.counters.iter().map(|(subject, limit)| (*subject, limit, 1)).collect();
        let reply =
            threads.block_on(engine.decide_one(&transaction(Intent::Peek, &costs))).unwrap();
        let capacities = self.counters.iter().map(|(_, limit)| limit.limit().capacity().unwrap());
        capacities
            .zip(&reply.replies)
            .map(|(capacity, counter)| capacity - counter.reading.remaining)
            .collect()
    }
}

fn start_worker(port: u16) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "fleet::a_worker_of_the_fleet", "--nocapture"]);
    Process::start(command.env(WORKER_ON_PORT, port.to_string()).stdout(Stdio::piped()))
}

/// Waits until all processes have reached this scene.
fn meet_all_workers(port: u16, scene: &str) {
    let mut connection = Connection::open(port).unwrap();
    let key = format!("workers at {scene}");
    connection.command(&["INCR", &key]).unwrap();
    while connection.command(&["GET", &key]).unwrap().integer() < PROCESSES as i64 {
        thread::sleep(Duration::from_millis(1));
    }
}

const WORKER_ON_PORT: &str = "SPILLGATE_FLEET_WORKER_ON_PORT";
const PROCESSES: usize = 4;
const CALLERS: usize = 1_000;
/// How often each caller calls.
const ROUNDS: usize = 2;
/// Less than the number of calls, and more than one round of them.
const CAPACITY: u64 = 1_200;
