//! Three processes that check every limit all the time and report their admissions. They are this test binary
//! again, made workers by the environment, and run until they are killed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use spillgate::store::Ring;
use spillgate::{Limiter, Request};
use spillgate_core::time::{Clock, boottime_us};
use spillgate_testkit::{Process, Sentinels, poll};

use super::bounds::{Admission, History, Limits};
use crate::support::storm;

pub(super) struct Fleet {
    workers: Vec<Worker>,
    timeout: Duration,
    admissions: Vec<Admission>,
    checking_from_us: u64,
}

struct Worker {
    process: Process,
    lines: Arc<Mutex<Vec<String>>>,
    reader: JoinHandle<()>,
}

/// Returns how far the wall clock is ahead of [`boottime_us`], a clock that all processes on this machine
/// share.
pub(super) fn wall_ahead_us() -> u64 {
    Clock::System.now_us() - boottime_us()
}

impl Fleet {
    /// Starts the processes and waits until they are connected and checking.
    #[track_caller]
    pub(super) fn start(store: &str, timeout: Duration) -> Fleet {
        let mut workers: Vec<Worker> =
            (0..PROCESSES).map(|_| Worker::start(store, timeout)).collect();
        workers.iter_mut().for_each(Worker::wait_until_ready);
        Fleet { workers, timeout, admissions: Vec::new(), checking_from_us: boottime_us() }
    }

    pub(super) fn processes(&self) -> usize {
        self.workers.len()
    }

    /// Kills a process and starts another in its place, on this store.
    #[track_caller]
    pub(super) fn replace(&mut self, number: usize, store: &str) {
        let mut new = Worker::start(store, self.timeout);
        new.wait_until_ready();
        let old = std::mem::replace(&mut self.workers[number], new);
        self.admissions.extend(old.end());
    }

    pub(super) fn end(mut self) -> History {
        let until_us = boottime_us();
        for worker in self.workers {
            self.admissions.extend(worker.end());
        }
        History::new(self.admissions, (self.checking_from_us, until_us))
    }
}

impl Worker {
    #[track_caller]
    fn start(store: &str, timeout: Duration) -> Worker {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "campaign::fleet::a_worker_of_the_campaign", "--nocapture"]);
        command.env(STORE, store).env(TIMEOUT_MS, timeout.as_millis().to_string());
        let mut process = Process::start(command.stdout(Stdio::piped()).stderr(Stdio::inherit()));
        let stdout = BufReader::new(process.stdout().unwrap()).lines();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let printed = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            stdout.map_while(Result::ok).for_each(|line| printed.lock().unwrap().push(line));
        });
        Worker { process, lines, reader }
    }

    #[track_caller]
    fn wait_until_ready(&mut self) {
        let is_ready = || self.lines.lock().unwrap().iter().any(|line| line.ends_with(READY));
        let ready = poll(STARTED_WITHIN, || is_ready().then_some(()));
        assert!(ready.is_some(), "a worker did not start: {:?}", self.lines.lock().unwrap());
    }

    /// Kills the worker and returns the admissions that it printed.
    fn end(mut self) -> Vec<Admission> {
        self.process.kill();
        self.reader.join().expect("the reader does not panic");
        let lines = self.lines.lock().unwrap();
        // The last line may have been cut.
        lines.iter().filter_map(|line| admission(line)).collect()
    }
}

/// `+ limit began ended locally .`
fn admission(line: &str) -> Option<Admission> {
    let mut words = line.strip_prefix("+ ")?.strip_suffix(" .")?.split(' ');
    let limit = words.next()?.parse().ok()?;
    let (began_us, ended_us) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let local = words.next()? == "locally";
    Some(Admission { limit, began_us, ended_us, local })
}

/// Returns at once unless the environment makes this process a worker.
#[test]
fn a_worker_of_the_campaign() {
    let Ok(store) = std::env::var(STORE) else { return };
    let timeout_ms: u64 = std::env::var(TIMEOUT_MS).unwrap().parse().unwrap();
    let threads = storm::threads();
    threads.block_on(async {
        let builder = Limiter::builder().timeout(Duration::from_millis(timeout_ms));
        let mut parts = store.split(' ');
        let kind = parts.next().unwrap_or_default();
        let urls: Vec<&str> = parts.collect();
        let builder = match kind {
            "url" => builder.redis(urls[0]),
            "sentinels" => builder.sentinel(Sentinels::NAME, urls),
            "cluster" => builder.cluster(urls),
            "ring" => builder.ring(ring(&urls)),
            other => panic!("{other} is not a kind of store"),
        };
        let limiter = builder.expected_instances(PROCESSES as u32).build().await.unwrap();
        println!("\n{READY}");
        let mut callers = tokio::task::JoinSet::new();
        for (number, limits) in Limits::all().into_iter().enumerate() {
            callers.spawn(call(limiter.clone(), number, limits));
        }
        let ended = tokio::time::timeout(LONGEST, callers.join_next()).await;
        assert!(ended.is_err(), "a caller ended: {ended:?}");
    });
}

fn ring(urls: &[&str]) -> Ring {
    let named = urls.iter().zip('a'..);
    named.fold(Ring::new(), |ring, (url, name)| ring.node(name, *url))
}

async fn call(limiter: Limiter, number: usize, limits: Limits) {
    let (key, limit) = (format!("subject {number}"), limits.limit());
    loop {
        let began_us = boottime_us();
        let decision = limiter.check(&Request::keyed(&key, &limit)).await;
        if decision.allowed() {
            let by = if decision.degraded() { "locally" } else { "store" };
            println!("+ {number} {began_us} {} {by} .", boottime_us());
        }
        tokio::time::sleep(PACE).await;
    }
}

const PROCESSES: usize = 3;
const STORE: &str = "SPILLGATE_CAMPAIGN_STORE";
const TIMEOUT_MS: &str = "SPILLGATE_CAMPAIGN_TIMEOUT_MS";
const READY: &str = "ready";
const STARTED_WITHIN: Duration = Duration::from_secs(30);
/// Between two checks of one caller.
const PACE: Duration = Duration::from_millis(10);
/// Longer than any worker runs.
const LONGEST: Duration = Duration::from_secs(300);
