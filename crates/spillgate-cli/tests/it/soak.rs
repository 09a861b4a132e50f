//! A server at half of its peak load: its memory, descriptors, keys and response times must not grow. `./evidence
//! soak` runs it for an hour, the gate for a moment.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use spillgate_testkit::{Connection, RedisServer};

use crate::client::Client;
use crate::clock::monotonic_us;
use crate::server::{Server, TempFile, resident_kib};

mod drift;

use drift::{Sample, drift};

#[test]
fn a_server_at_half_load_does_not_grow() {
    let minutes: Option<u64> = std::env::var(MINUTES).ok().map(|text| text.parse().unwrap());
    let store = RedisServer::start();
    let policy = TempFile::new("soak.toml", POLICY);
    let server = Server::start_on(&store, &["--config", policy.path()]);
    let peak = peak(&server, if minutes.is_some() { 5 } else { 1 });
    let load = Load::begin(&server, peak / 2);
    // Fill all buffers first: wait for the limits' windows, and for the state that they leave behind.
    sleep(if minutes.is_some() { Duration::from_secs(30) } else { Duration::from_millis(500) });
    load.take();

    let every = minutes.map_or(Duration::from_millis(100), Duration::from_secs);
    println!("peak {peak} a second; {} a second from here on", peak / 2);
    println!("{}", Sample::HEAD);
    let samples: Vec<Sample> = (1..=if minutes.is_some() { SAMPLES } else { 10 })
        .map(|number| {
            sleep(every);
            let sample = look(&server, &store, &load, number * every.as_secs());
            println!("{sample}");
            sample
        })
        .collect();
    load.end();
    let grown = drift(&samples);
    // A moment is too short for a statement about growth.
    assert!(minutes.is_none() || grown.is_empty(), "{}", grown.join("\n"));
    assert!(samples.iter().all(|sample| sample.answers > 0), "{samples:?}");
    assert!(server.stop().success());
}

fn look(server: &Server, store: &RedisServer, load: &Load, at_s: u64) -> Sample {
    let mut taken_us = load.take();
    taken_us.sort_unstable();
    let at =
        |hundredths: usize| taken_us.get(taken_us.len() * hundredths / 100).copied().unwrap_or(0);
    let pid = server.pid();
    Sample {
        at_s,
        answers: taken_us.len() as u64,
        p50_us: at(50),
        p99_us: at(99),
        resident_kib: resident_kib(pid),
        descriptors: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64,
        keys: store.command(&["DBSIZE"]).integer() as u64,
        store_kib: store.info("memory", "used_memory").parse::<u64>().unwrap() / 1_024,
    }
}

/// Returns the answers in a second if every caller asks again as soon as it is answered.
fn peak(server: &Server, seconds: u64) -> u64 {
    let load = Load::begin(server, u64::MAX);
    sleep(Duration::from_secs(seconds));
    let answers = load.take().len() as u64;
    load.end();
    answers / seconds
}

/// Callers, half of them over HTTP and half over RESP.
struct Load {
    stop: Arc<AtomicBool>,
    /// The time that each answer took since the last call of `take`.
    taken_us: Arc<Mutex<Vec<u64>>>,
    callers: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts callers that make `a_second` calls a second, or as many as are answered.
    fn begin(server: &Server, a_second: u64) -> Load {
        let (stop, taken_us) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<u64>>>::default());
        let next = Arc::new(AtomicU64::new(0));
        let pause_us = (CALLERS * 1_000_000).checked_div(a_second).unwrap_or(0);
        let callers = (0..CALLERS).map(|number| {
            let (http, resp) = (server.client(), server.resp());
            let (stop, taken_us, next) =
                (Arc::clone(&stop), Arc::clone(&taken_us), Arc::clone(&next));
            std::thread::spawn(move || match number % 2 {
                0 => by_http(http, pause_us, &stop, &taken_us, &next),
                _ => by_resp(resp, pause_us, &stop, &taken_us, &next),
            })
        });
        let callers = callers.collect();
        Load { stop, callers, taken_us }
    }

    /// Returns the times of all answers since the last call.
    fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *self.taken_us.lock().unwrap())
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.callers.into_iter().for_each(|caller| caller.join().unwrap());
    }
}

fn by_http(
    mut client: Client,
    pause_us: u64,
    stop: &AtomicBool,
    times: &Mutex<Vec<u64>>,
    next: &AtomicU64,
) {
    paced(pause_us, stop, times, || {
        let body = format!(r#"{{"attributes":{{"user":"{}"}}}}"#, user(next));
        let reply = client.post("/v1/check", body.as_bytes()).unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
    });
}

fn by_resp(
    mut resp: Connection,
    pause_us: u64,
    stop: &AtomicBool,
    times: &Mutex<Vec<u64>>,
    next: &AtomicU64,
) {
    paced(pause_us, stop, times, || {
        let user = user(next);
        let reply = resp.command(&["SG.CHECK", "default", "1", "user", &user]).unwrap();
        assert!(matches!(reply, spillgate_testkit::Reply::Array(_)), "{reply:?}");
    });
}

/// Follows a timetable, so that a slow answer delays those behind it, and their wait counts.
fn paced(pause_us: u64, stop: &AtomicBool, times: &Mutex<Vec<u64>>, mut ask: impl FnMut()) {
    let mut due_us = monotonic_us();
    while !stop.load(Ordering::Relaxed) {
        let now_us = monotonic_us();
        if due_us > now_us {
            sleep(Duration::from_micros(due_us - now_us));
        }
        let began_us = if pause_us > 0 { due_us } else { now_us };
        ask();
        let ended_us = monotonic_us();
        times.lock().unwrap().push(ended_us.saturating_sub(began_us));
        due_us = (due_us + pause_us).max(ended_us.saturating_sub(BEHIND_MOST_US));
    }
}

/// Returns one of a thousand users that come again, or one that never does.
fn user(next: &AtomicU64) -> String {
    let number = next.fetch_add(1, Ordering::Relaxed);
    if number.is_multiple_of(4) {
        format!("once {number}")
    } else {
        format!("again {}", number % 1_000)
    }
}

const MINUTES: &str = "SPILLGATE_SOAK_MINUTES";
/// Samples at equal distances: an hour has one for each minute.
const SAMPLES: u64 = 60;
const CALLERS: u64 = 8;
/// The most of a stall that is caught up.
const BEHIND_MOST_US: u64 = 100_000;
/// One rule for each algorithm, over a few seconds: a user that comes once is soon forgotten.
const POLICY: &str = r#"
    [[rule]]
    name = "user"
    key = ["user"]
    limits = [
        "50/second",
        { quota = "100/5s", algorithm = "fixed-window" },
        { quota = "100/5s", algorithm = "sliding-log" },
        { quota = "100/5s", algorithm = "sliding-window" },
    ]
"#;
