//! Changes that operators make, over one Redis: every process follows, no entry is lost, and entries that the
//! store loses are restored by the processes that know them.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use spillgate::control::ChangeNote;
use spillgate::{Limiter, LimiterBuilder, Mode, Policy, Request, Source};
use spillgate_core::time::Clock;
use spillgate_testkit::{Process, RedisServer, Reply};

use super::{API, acme, ann, capacity, until};
use crate::support::world::PATIENCE;

fn on(server: &RedisServer) -> LimiterBuilder {
    on_port(server.port())
}

fn on_port(port: u16) -> LimiterBuilder {
    Limiter::builder()
        .policy(Policy::from_toml(API).unwrap())
        .redis(format!("redis://127.0.0.1:{port}"))
        .timeout(PATIENCE)
}

async fn limiters<const N: usize>(server: &RedisServer) -> [Limiter; N] {
    let mut limiters = Vec::new();
    for _ in 0..N {
        limiters.push(on(server).build().await.unwrap());
    }
    limiters.try_into().unwrap()
}

fn run(body: impl Future<Output = ()>) {
    tokio::runtime::Runtime::new().unwrap().block_on(body);
}

async fn until_capacity(limiter: &Limiter, expected: u64) {
    let condition = format!("a capacity of {expected}");
    until(&condition, async || capacity(limiter, &ann()).await == Some(expected)).await;
}

/// Returns how many entries the record holds.
fn held(server: &RedisServer) -> i64 {
    match server.command(&["HLEN", "sg1:{fleet:default}:c"]).integer() {
        0 => 0,
        fields => fields - 1,
    }
}

#[test]
fn a_change_at_one_process_reaches_four_others_within_a_second() {
    let server = RedisServer::start();
    let mut workers: Vec<(Process, Vec<Seen>)> = Vec::new();
    let mut reports = Vec::new();
    for _ in 0..4 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "control::shared::a_process_that_follows", "--nocapture"]);
        let command = command.env(FOLLOW_ON_PORT, server.port().to_string());
        let mut process = Process::start(command.stdout(Stdio::piped()));
        let mut lines = BufReader::new(process.stdout().unwrap()).lines();
        while lines.next().unwrap().unwrap() != "ready" {}
        workers.push((process, Vec::new()));
        reports.push(lines);
    }
    let mut changes = Vec::new();
    run(async {
        let limiter = on(&server).build().await.unwrap();
        for quota in [20, 30, 40, LAST] {
            changes.push((quota, Clock::System.now_us()));
            limiter.set_override("api", &acme(), [format!("{quota}/day")], None).await.unwrap();
            assert_eq!(capacity(&limiter, &ann()).await, Some(quota), "at once in this process");
            // Not a multiple of the interval at which the others poll.
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
    });
    for ((process, seen), lines) in workers.iter_mut().zip(reports) {
        let seen_lines = lines.map_while(Result::ok).filter_map(|line| Seen::read(&line));
        seen.extend(seen_lines);
        assert!(process.wait(PATIENCE).unwrap().success());
    }
    for (quota, at_us) in changes {
        let waits: Vec<u64> = workers
            .iter()
            .filter_map(|(_, seen)| seen.iter().find(|seen| seen.capacity == quota))
            .map(|seen| seen.at_us.saturating_sub(at_us) / 1_000)
            .collect();
        println!("{quota}/day reached the others after {waits:?} ms");
        // One second is promised; the rest is for a machine with every core busy.
        assert!(quota != LAST || waits.len() == 4, "{waits:?}");
        assert!(waits.iter().all(|wait| *wait < 5_000), "{waits:?}");
    }
}

/// The time at which a worker first saw a capacity.
struct Seen {
    capacity: u64,
    at_us: u64,
}

impl Seen {
    fn read(line: &str) -> Option<Seen> {
        let (capacity, at_us) = line.strip_prefix("capacity ")?.split_once(" at ")?;
        Some(Seen { capacity: capacity.parse().ok()?, at_us: at_us.parse().ok()? })
    }
}

/// Returns at once unless the environment makes this process a worker.
#[test]
fn a_process_that_follows() {
    let Ok(port) = std::env::var(FOLLOW_ON_PORT) else { return };
    run(async {
        let limiter = on_port(port.parse().unwrap()).build().await.unwrap();
        println!("\nready");
        let mut last = 10;
        while last != LAST {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let seen = capacity(&limiter, &ann()).await.unwrap();
            if seen != last {
                println!("\ncapacity {seen} at {}", Clock::System.now_us());
                last = seen;
            }
        }
    });
}

#[test]
fn a_kill_switch_a_reset_and_an_expiry_reach_the_others() {
    let server = RedisServer::start();
    run(async {
        let [one, other] = limiters(&server).await;
        assert!(other.check(&ann().costing(10)).await.allowed());
        one.reset_rule("api").await.unwrap();
        until("a fresh state", async || other.peek(&ann()).await.remaining() == Some(10)).await;
        assert!(one.check(&ann().costing(10)).await.allowed());
        assert!(!other.check(&ann()).await.allowed(), "both have one generation");

        one.set_mode("api", Mode::Off, None).await.unwrap();
        until("the rule is off", async || other.check(&ann()).await.allowed()).await;
        other.clear_mode("api").await.unwrap();
        until("the rule is on", async || !one.check(&ann()).await.allowed()).await;

        let soon = SystemTime::UNIX_EPOCH + Duration::from_micros(Clock::System.now_us() + 900_000);
        one.set_override("api", &acme(), ["20/day"], Some(soon)).await.unwrap();
        until_capacity(&other, 20).await;
        assert_eq!(other.overrides()[0].expires_at(), Some(soon));
        until_capacity(&other, 10).await;
        until_capacity(&one, 10).await;
        assert!(one.overrides().is_empty() && other.overrides().is_empty());
    });
}

#[test]
fn changes_survive_the_restart_of_every_process() {
    let server = RedisServer::start();
    run(async {
        let [limiter] = limiters(&server).await;
        limiter.set_override("api", &acme(), ["20/day"], None).await.unwrap();
        limiter.set_mode("watched", Mode::Enforce, None).await.unwrap();
        let _ = limiter.check(&ann().costing(7)).await;
        limiter.reset_rule("api").await.unwrap();
    });
    run(async {
        let [limiter] = limiters(&server).await;
        let first = limiter.state("api", &ann()).await.unwrap();
        assert_eq!((first.capacity(), first.remaining()), (Some(20), Some(20)));
        assert_eq!(limiter.modes()[1].runtime(), Some(Mode::Enforce));
        limiter.remove_override("api", &acme()).await.unwrap();
    });
    run(async {
        let [limiter] = limiters(&server).await;
        assert_eq!(capacity(&limiter, &ann()).await, Some(10));
        assert!(limiter.overrides().is_empty());
    });
}

#[test]
fn concurrent_writers_lose_no_change() {
    let server = RedisServer::start();
    run(async {
        let limiters: [Limiter; 4] = limiters(&server).await;
        let mut writers = Vec::new();
        for (writer, limiter) in limiters.iter().cloned().enumerate() {
            writers.push(tokio::spawn(async move {
                for number in 0..25 {
                    let tenant = Request::new().with("tenant", format!("t{writer}-{number}"));
                    limiter.set_override("api", &tenant, ["5/day"], None).await.unwrap();
                }
            }));
        }
        for writer in writers {
            writer.await.unwrap();
        }
        for limiter in &limiters {
            until("all hundred are known", async || limiter.overrides().len() == 100).await;
        }
        assert_eq!(held(&server), 100);
    });
}

#[test]
fn changes_lost_by_the_store_are_restored_by_a_process_that_knows_them() {
    let mut server = RedisServer::start();
    run(async {
        let [one, other] = limiters(&server).await;
        // More than fit into one call.
        for number in 0..ENTRIES {
            let tenant = Request::new().with("tenant", format!("t{number}"));
            one.set_override("api", &tenant, ["5/day"], None).await.unwrap();
        }
        let live = ENTRIES as usize - 1;
        until("the other knows all", async || other.overrides().len() == live + 1).await;
        one.remove_override("api", &Request::new().with("tenant", "t0")).await.unwrap();
        until("the other knows", async || other.overrides().len() == live).await;
        drop(one);
        assert_eq!(server.command(&["FLUSHALL"]), Reply::Status("OK".into()));
        until("the record is whole", async || held(&server) == ENTRIES).await;

        // Only the index of changes is gone, and then a part of the entries.
        server.command(&["DEL", "sg1:{fleet:default}:r"]);
        let [third] = limiters(&server).await;
        until("the third knows", async || third.overrides().len() == live).await;
        let fields = server.command(&["HRANDFIELD", "sg1:{fleet:default}:c", "20"]);
        let Reply::Array(fields) = fields else { panic!("{fields:?}") };
        let names = fields.into_iter().map(|field| match field {
            Reply::Bulk(name) => name,
            other => panic!("{other:?}"),
        });
        let hdel = [b"HDEL".to_vec(), b"sg1:{fleet:default}:c".to_vec()];
        server.command(&hdel.into_iter().chain(names).collect::<Vec<_>>());
        other.set_mode("watched", Mode::Off, None).await.unwrap();
        until("the record is whole again", async || held(&server) == ENTRIES + 1).await;

        server.kill();
        let hurried = on(&server).timeout(Duration::from_millis(100));
        let started_alone = hurried.build().await.unwrap();
        assert_eq!(started_alone.overrides().len(), 0);
        assert_eq!(started_alone.peek(&ann()).await.source(), Source::Fallback);
        server.restart();
        until("it caught up", async || started_alone.overrides().len() == live).await;
        let off = async || started_alone.modes()[1].runtime() == Some(Mode::Off);
        until("it knows the mode", off).await;
    });
}

#[test]
fn the_store_reveals_no_subject() {
    let server = RedisServer::start();
    run(async {
        let limiter = on(&server).key_secret(*b"a secret of ours").build().await.unwrap();
        let canary = Request::new().with("tenant", "canary-tenant").with("user", "canary-user");
        let _ = limiter.check(&canary).await;
        limiter.set_override("api", &canary, ["777/day"], None).await.unwrap();
        limiter.set_mode("watched", Mode::Off, None).await.unwrap();
        let note = ChangeNote::by("canary-actor").because("canary-reason");
        let _ = limiter.with_note(note).charge("api", &canary, 1).await.unwrap();
        let stranger = on(&server).build().await.unwrap();
        assert!(stranger.overrides().is_empty(), "another secret sealed the entries");
        stranger.set_override("api", &acme(), ["5/day"], None).await.unwrap();
        assert_eq!(limiter.overrides().len(), 1);
        assert_eq!(held(&server), 3, "no process removed entries of another");
    });
    let Reply::Array(keys) = server.command(&["KEYS", "*"]) else { panic!("no keys") };
    assert!(keys.len() >= 4, "{keys:?}");
    for key in keys {
        let Reply::Bulk(key) = key else { panic!("{key:?}") };
        let kind = server.command(&[b"TYPE".to_vec(), key.clone()]);
        let words: &[&[u8]] = match kind.text() {
            "hash" => &[b"HGETALL", &key],
            "zset" => &[b"ZRANGE", &key, b"0", b"-1"],
            "stream" => &[b"XRANGE", &key, b"-", b"+"],
            _ => &[b"GET", &key],
        };
        let dumped = format!("{:?}", (readable(&key), plain(&server.command(words))));
        for canary in ["canary", "777/day", "watched", "api"] {
            assert!(!dumped.contains(canary), "{canary} in {dumped}");
        }
    }
}

fn plain(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => readable(bytes),
        Reply::Array(parts) => parts.iter().map(plain).collect(),
        other => panic!("{other:?}"),
    }
}

fn readable(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

const FOLLOW_ON_PORT: &str = "SPILLGATE_FOLLOW_ON_PORT";
/// The capacity that ends a worker.
const LAST: u64 = 50;
/// More than one call passes on.
const ENTRIES: i64 = 300;
