//! The cost of a sliding log: bytes for each call in Redis, and the server's time beside a bucket's.

use std::collections::BTreeMap;

use spillgate::LimitSpec;
use spillgate_core::limit::NamedLimit;
use spillgate_redis::script_text;
use spillgate_testkit::{Connection, RedisServer, Reply};

use crate::support::script::packed;
use crate::support::target::params;

/// One subject's counter, checked by pipelined calls of the script at chosen instants.
struct Counter {
    connection: Connection,
    script: String,
    limit: NamedLimit,
    name: String,
    calls: u64,
}

impl Counter {
    fn new(server: &RedisServer, algorithm: &str, quota: &str) -> Counter {
        let mut connection = server.connect();
        let script = match connection.command(&["SCRIPT", "LOAD", &script_text()]).unwrap() {
            Reply::Bulk(sha) => String::from_utf8(sha).unwrap(),
            other => panic!("the script does not load: {other:?}"),
        };
        let spec = LimitSpec::new(quota).algorithm(algorithm);
        let limit = NamedLimit::new(spec.build().unwrap(), 0);
        let name = format!("budget:{{{algorithm} {quota}}}");
        Counter { connection, script, limit, name, calls: 0 }
    }

    /// Makes one call of cost 1 at each instant. Returns how many were admitted.
    fn call_at(&mut self, instants: impl Iterator<Item = u64>) -> u64 {
        let commands: Vec<Vec<Vec<u8>>> = instants.map(|at| self.command(at)).collect();
        let mut admitted = 0;
        for commands in commands.chunks(AT_ONCE) {
            for reply in self.connection.pipeline(commands).unwrap() {
                match reply {
                    Reply::Array(integers) => admitted += u64::from(integers[1].integer() == 1),
                    other => panic!("the script returned {other:?}"),
                }
            }
        }
        admitted
    }

    fn command(&mut self, now_us: u64) -> Vec<Vec<u8>> {
        self.calls += 1;
        let algorithm = 1 + self.limit.algorithm() as u64;
        let own = u64::from(algorithm == LOG);
        // The second key is an own key, so the script reads one.
        let mut program = vec![now_us, self.calls, 0, 1, algorithm, 0, 0];
        params(&self.limit).counting().words(&mut program, now_us);
        // Counted from 1: where the decisions begin.
        program[2] = program.len() as u64 + 1;
        program.extend([0, 1, 1, own, 5, 1, 0]);
        let words: [&[u8]; 6] = [
            b"EVALSHA",
            self.script.as_bytes(),
            b"2",
            self.name.as_bytes(),
            &self.own_key(),
            &packed(&program),
        ];
        words.map(<[u8]>::to_vec).into()
    }

    fn own_key(&self) -> Vec<u8> {
        format!("{}:own", self.name).into_bytes()
    }

    /// Returns the log's bytes per call when it is full.
    fn bytes_each(&mut self, count: u64) -> f64 {
        let own = self.own_key();
        let command = [&b"MEMORY"[..], b"USAGE", &own, b"SAMPLES", b"0"];
        self.connection.command(&command).unwrap().integer() as f64 / count as f64
    }

    /// Returns the server's own time per call, in µs.
    fn time_each(&mut self, instants: impl Iterator<Item = u64>) -> f64 {
        self.connection.command(&["CONFIG", "RESETSTAT"]).unwrap();
        self.call_at(instants);
        let reply = self.connection.command(&["INFO", "commandstats"]).unwrap();
        let line = reply.text().lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
        let fields: BTreeMap<&str, &str> =
            line.unwrap().split(',').filter_map(|field| field.split_once('=')).collect();
        fields["usec_per_call"].parse().unwrap()
    }
}

/// A log of `count` calls per hour, filled at the rate at which it stays full.
fn fill(server: &RedisServer, count: u64) -> (Counter, u64) {
    let mut log = Counter::new(server, "sliding-log", &format!("{count}/hour"));
    let step_us = HOUR_US / count;
    let admitted = log.call_at((0..count).map(|call| NOON_US + call * step_us));
    assert_eq!(admitted, count);
    (log, step_us)
}

#[test]
fn a_full_log_takes_at_most_eight_bytes_per_call() {
    let server = RedisServer::start();
    for count in [1_000, 10_000] {
        let (mut log, step_us) = fill(&server, count);
        let first = log.bytes_each(count);
        // Another half of a period: as many entries expire as are admitted.
        let again = (count..count * 3 / 2).map(|call| NOON_US + call * step_us);
        assert_eq!(log.call_at(again), count / 2);
        let steady = log.bytes_each(count);
        println!(
            "| {count:>9} calls | {first:.2} bytes each when filled | {steady:.2} in steady state |"
        );
        assert!(first <= 8.0 && steady <= 8.0, "{count}: {first} and {steady} bytes");
    }
}

#[test]
#[ignore = "needs evidence"]
fn a_log_of_any_size_costs_the_store_at_most_three_times_a_bucket() {
    let server = RedisServer::start();
    let calls = 20_000;
    for count in [10, 1_000, 10_000] {
        let (mut log, step_us) = fill(&server, count);
        let mut bucket = Counter::new(&server, "token-bucket", &format!("{count}/hour"));
        bucket.call_at((0..count.min(1_000)).map(|call| NOON_US + call * step_us));
        let mut ratios: Vec<f64> = (0..5)
            .map(|round| {
                let from = count + round * calls;
                let instants = || (from..from + calls).map(|call| NOON_US + call * step_us);
                log.time_each(instants()) / bucket.time_each(instants())
            })
            .collect();
        let ratio = median(&mut ratios);
        println!("| {count:>9} per hour | {ratio:.2} × a token-bucket call |");
        assert!(ratio <= 3.0, "{count}: {ratio} times a bucket's time");
    }
}

#[test]
#[ignore = "needs evidence"]
fn the_first_call_after_half_the_log_expired_scans_nothing() {
    let server = RedisServer::start();
    let count = 10_000;
    let (mut log, step_us) = fill(&server, count);
    let mut now_us = NOON_US + (count - 1) * step_us;
    // A delayed server takes longer once; a scan would take longer each time.
    let ratio = (0..3).map(|_| {
        let mut single = |after_us| {
            now_us += after_us;
            log.time_each(std::iter::once(now_us))
        };
        let mut steady: Vec<f64> = (0..101).map(|_| single(step_us)).collect();
        // Half a period later half of the log has expired, without a call in between.
        let first = single(HOUR_US / 2);
        log.call_at((1..=count).map(|call| now_us + call * step_us));
        now_us += count * step_us;
        first / median(&mut steady)
    });
    let ratio = ratio.fold(f64::INFINITY, f64::min);
    println!("| {count:>9} per hour, half expired | {ratio:.1} × a steady call |");
    assert!(ratio <= 10.0, "{ratio} times a steady call's time");
}

fn median(ratios: &mut [f64]) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

const NOON_US: u64 = 1_795_176_000_000_000;
const HOUR_US: u64 = 3_600_000_000;
/// Commands in one write: some ten kilobytes.
const AT_ONCE: usize = 64;
const LOG: u64 = 3;
