//! Scrapes and probes delay no decision, and send nothing to the store.

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spillgate_testkit::RedisServer;

use crate::client::Client;
use crate::clock::monotonic_us;
use crate::server::{Server, TempFile, spillgate};

/// Enough that a rendering takes far longer than a check. Each rule is compared with all others at the start, which
/// takes an unoptimised server 20 seconds for 2,000.
const RULES: usize = 300;
/// More than a fleet has, each of which asks without a pause.
const SCRAPERS: usize = 32;
const CALLERS: usize = 2;

/// The latencies of checks, in microseconds and sorted, and the time of the whole run.
struct Checks {
    latencies_us: Vec<u64>,
    took_us: u64,
}

impl Checks {
    /// Makes checks from two callers, each one after the other, for a while.
    fn run(port: u16, lasting: Duration) -> Checks {
        let began_us = monotonic_us();
        let until_us = began_us + lasting.as_micros() as u64;
        let ask = |caller: usize| {
            let mut client = Client::connect(port).unwrap();
            let mut latencies_us = Vec::new();
            let mut rule = caller;
            while monotonic_us() < until_us {
                rule = (rule + 7) % RULES;
                let sent_us = monotonic_us();
                assert_eq!(
                    client.post("/v1/check", check_body(rule).as_bytes()).unwrap().status,
                    200
                );
                latencies_us.push(monotonic_us() - sent_us);
            }
            latencies_us
        };
        let mut latencies_us: Vec<u64> = std::thread::scope(|scope| {
            let callers: Vec<_> =
                (0..CALLERS).map(|caller| scope.spawn(move || ask(caller))).collect();
            callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
        });
        latencies_us.sort_unstable();
        Checks { latencies_us, took_us: monotonic_us() - began_us }
    }

    fn p50_us(&self) -> u64 {
        self.latencies_us[self.latencies_us.len() / 2]
    }

    fn per_second(&self) -> u64 {
        self.latencies_us.len() as u64 * 1_000_000 / self.took_us
    }
}

fn check_body(rule: usize) -> String {
    format!(r#"{{"attributes":{{"route":"r{rule}","user":"u"}}}}"#)
}

#[test]
fn scrapes_share_a_rendering_a_second_and_do_not_slow_decisions() {
    let rules = (0..RULES).fold(String::new(), |mut rules, rule| {
        write!(
            rules,
            "[[rule]]\nname = \"rule-{rule}\"\nmatch = {{ route = \"r{rule}\" }}\nkey = [\"user\"]\n\
             limits = [\"1000000/second\"]\n"
        )
        .unwrap();
        rules
    });
    let file = TempFile::new("limits.toml", &rules);
    let server = Server::start(&["--config", file.path()]);
    // Every rule must have counts to show.
    for first in [0, RULES / 2] {
        let bodies_of_checks: Vec<String> = (first..first + RULES / 2).map(check_body).collect();
        let batch = format!("[{}]", bodies_of_checks.join(","));
        assert_eq!(server.post("/v1/check/batch", batch.as_bytes()).status, 200);
    }
    let alone = Checks::run(server.port, Duration::from_millis(1_500));
    let (stop, admin_port) = (AtomicBool::new(false), server.admin_port.unwrap());
    let scrape = || {
        let mut client = Client::connect(admin_port).unwrap();
        let (mut scrapes, mut bodies) = (0, HashSet::new());
        while !stop.load(Ordering::Relaxed) {
            let reply = client.send("GET", "/metrics", b"").unwrap();
            assert_eq!(reply.status, 200);
            scrapes += 1;
            bodies.insert(reply.body);
        }
        (scrapes, bodies)
    };
    let began_us = monotonic_us();
    let (beside, scrapes, bodies) = std::thread::scope(|scope| {
        let scrapers: Vec<_> = (0..SCRAPERS).map(|_| scope.spawn(scrape)).collect();
        let beside = Checks::run(server.port, Duration::from_secs(3));
        stop.store(true, Ordering::Relaxed);
        let scraped = scrapers.into_iter().map(|scraper| scraper.join().unwrap());
        let (mut scrapes, mut bodies) = (0, HashSet::new());
        for (count, texts) in scraped {
            scrapes += count;
            bodies.extend(texts);
        }
        (beside, scrapes, bodies)
    });
    let seconds = (monotonic_us() - began_us).div_ceil(1_000_000);
    println!(
        "alone: p50 {} us, {} a second; beside {SCRAPERS} scrapers: p50 {} us, {} a second; \
         {scrapes} scrapes of {} renderings in {seconds} s, {} bytes each",
        alone.p50_us(),
        alone.per_second(),
        beside.p50_us(),
        beside.per_second(),
        bodies.len(),
        bodies.iter().map(String::len).max().unwrap_or(0),
    );
    // Counts grow all the time, so each rendering has its own text.
    assert!(bodies.len() as u64 <= seconds + 1, "{} renderings in {seconds} s", bodies.len());
    assert!(scrapes >= SCRAPERS, "{scrapes} scrapes");
    assert!(3 * beside.per_second() >= alone.per_second(), "decisions wait for scrapers");
}

#[test]
fn a_crowd_of_scrapers_is_refused_and_keeps_out_no_probe() {
    let server = Server::start(&[]);
    let mut scrapers: Vec<Client> = (0..100).map(|_| server.operator()).collect();
    for scraper in &mut scrapers {
        scraper.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    }
    assert_eq!(server.operator().send("GET", "/livez", b"").unwrap().status, 200);
    let (mut served, mut refused) = (0, 0);
    for scraper in &mut scrapers {
        let reply = scraper.read().unwrap();
        match reply.status {
            200 => served += 1,
            503 => {
                assert_eq!(reply.header("retry-after"), Some("1"));
                assert!(reply.body.contains("scrape again later"), "{}", reply.body);
                refused += 1;
            }
            other => panic!("{other}: {}", reply.body),
        }
    }
    // They are answered 20 ms apart, so some of those that come late find a free place in the queue.
    assert!(served >= SCRAPERS && refused > 0, "{served} served, {refused} refused");
}

#[test]
fn a_verbose_probe_sends_no_command_to_the_store() {
    let redis = RedisServer::start();
    let server = Server::start_on(&redis, &[]);
    let commands = || -> u64 {
        let stats = redis.command(&["INFO", "stats"]);
        let count =
            |line: &str| line.strip_prefix("total_commands_processed:")?.trim().parse().ok();
        stats.text().lines().find_map(count).unwrap()
    };
    let before = commands();
    let mut probe = server.operator();
    for _ in 0..PROBES {
        assert_eq!(probe.send("GET", "/readyz?verbose", b"").unwrap().status, 200);
    }
    let sent = commands() - before;
    println!("{sent} commands during {PROBES} probes: upkeep");
    assert!(sent < PROBES, "{sent} commands during {PROBES} probes");
}

/// Upkeep sends some six commands a second, so these probes may take half a minute on a slow machine.
const PROBES: u64 = 200;

#[test]
fn a_verbose_probe_shows_store_addresses_only_to_operators() {
    let redis = RedisServer::start();
    let token = TempFile::new("token", "ann:viewer:0123456789abcdef0123456789abcdef");
    let mut command = spillgate(&["serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.args(["--redis", &redis.url()]);
    command.env("SPILLGATE_SERVER__ADMIN_TOKEN_FILE", token.path());
    let server = Server::start_command(command.env("SPILLGATE_STORE__TIMEOUT", "10s"));
    let probe = |headers: &[(&str, &str)]| {
        let reply = server.operator().send_with("GET", "/readyz?verbose", headers, b"").unwrap();
        assert_eq!(reply.status, 200);
        reply.body
    };
    let expected = "ok\npolicy: 0 rules\nstore: answers\nshard 1: answers\n\
        status: no rules\nwarning: no-rules\n";
    assert_eq!(probe(&[("Host", "localhost")]), expected);
    let bearer = "Bearer 0123456789abcdef0123456789abcdef";
    let shown = probe(&[("Host", "localhost"), ("Authorization", bearer)]);
    assert!(
        shown.contains(&format!("shard redis://127.0.0.1:{}: no trouble\n", redis.port())),
        "{shown}"
    );
}
