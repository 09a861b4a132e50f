//! Deterministic simulation of a fleet, its network and its servers: one seed replays all of it, time
//! included. The servers run our real Lua (`lua.rs`), and `equivalence.rs` compares them with a real server.
//!
//! A binary of its own beside `tests/it`, because it needs the feature `simulation`, which no product has.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::float_arithmetic,
    unreachable_pub,
    reason = "tests fail by panicking, print their tables, and are no interface"
)]

mod equivalence;
mod keyspace;
mod lua;
mod program;
mod server;
mod support;

mod leases;
mod ledger;
mod nemesis;
mod network;
mod play;
mod rules;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use play::{Outcome, play};

#[test]
fn random_faults_never_exceed_the_overshoot_bound() {
    let seeds = seeds();
    let outcomes = play_all(&seeds, play);
    let mut reached: BTreeMap<&str, u64> = BTreeMap::new();
    for outcome in &outcomes {
        outcome
            .reached
            .iter()
            .for_each(|(event, times)| *reached.entry(event).or_default() += times);
    }
    println!("{:<28} {:>9}", "reached", "times");
    reached.iter().for_each(|(event, times)| println!("{event:<28} {times:>9}"));
    let broken: Vec<&Outcome> =
        outcomes.iter().filter(|outcome| outcome.broken.is_some()).collect();
    println!("{} seeds, {} broken", outcomes.len(), broken.len());
    for outcome in &broken {
        println!(
            "seed {} ({:?}): {}",
            outcome.seed,
            outcome.shape,
            outcome.broken.as_deref().unwrap_or_default()
        );
    }
    for outcome in broken.iter().take(BROKEN_SHOWN) {
        let shown = number("SPILLGATE_SIM_LINES").unwrap_or(LINES_SHOWN);
        let tail = outcome.lines.len().saturating_sub(shown as usize);
        println!(
            "\nSEED={} ({:?}), to replay: ./evidence sim --seed {}",
            outcome.seed, outcome.shape, outcome.seed
        );
        outcome.lines[tail..].iter().for_each(|line| println!("{line}"));
    }
    assert!(
        broken.is_empty(),
        "SEED={}: {}",
        broken[0].seed,
        broken[0].broken.as_deref().unwrap_or_default()
    );
    // Fewer seeds may miss some events.
    if seeds.len() as u64 >= SEEDS {
        let missed: Vec<_> =
            SOMETIMES.iter().filter(|event| !reached.contains_key(*event)).collect();
        assert!(missed.is_empty(), "never reached, so untested: {missed:?}");
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 1..=2 {
        let (once, again) = (play(seed).lines, play(seed).lines);
        let differs = once.iter().zip(&again).position(|(one, other)| one != other);
        if let Some(line) = differs {
            panic!("seed {seed}, line {line}:\n{}\n{}", once[line], again[line]);
        }
        assert_eq!(once.len(), again.len(), "seed {seed}");
    }
}

#[test]
fn random_faults_with_leases_never_exceed_bound_and_share() {
    let seeds = seeds_or(LEASE_SEEDS);
    let outcomes = play_all(&seeds, leases::play);
    let mut reached: BTreeMap<&str, u64> = BTreeMap::new();
    for outcome in &outcomes {
        outcome
            .reached
            .iter()
            .for_each(|(event, times)| *reached.entry(event).or_default() += times);
    }
    println!("{:<45} {:>9}", "reached with leases", "times");
    reached.iter().for_each(|(event, times)| println!("{event:<45} {times:>9}"));
    let mut broken = outcomes.iter().filter(|outcome| outcome.broken.is_some());
    println!("{} seeds, {} broken", outcomes.len(), broken.clone().count());
    if let Some(outcome) = broken.next() {
        let tail = outcome.lines.len().saturating_sub(LINES_SHOWN as usize);
        outcome.lines[tail..].iter().for_each(|line| println!("{line}"));
        panic!("SEED={}: {}", outcome.seed, outcome.broken.as_deref().unwrap_or_default());
    }
    if let [only] = &outcomes[..] {
        only.lines.iter().for_each(|line| println!("{line}"));
        return;
    }
    let missed: Vec<_> = LEASES_MET.iter().filter(|event| !reached.contains_key(*event)).collect();
    assert!(missed.is_empty(), "never reached, so untested: {missed:?}");
}

/// One seed, a range of seeds, or as many as the gate has time for.
fn seeds() -> Vec<u64> {
    seeds_or(SEEDS)
}

fn seeds_or(most: u64) -> Vec<u64> {
    match number("SPILLGATE_SIM_SEED") {
        Some(seed) => vec![seed],
        None => {
            let first = number("SPILLGATE_SIM_FIRST").unwrap_or(1);
            (first..first + number("SPILLGATE_SIM_SEEDS").unwrap_or(most)).collect()
        }
    }
}

fn number(name: &str) -> Option<u64> {
    Some(std::env::var(name).ok()?.parse().expect("a whole number"))
}

/// Uses as many threads as there are cores, each seed in a world of its own.
fn play_all<T: Send>(seeds: &[u64], play: fn(u64) -> T) -> Vec<T> {
    let (next, outcomes) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let outcome = play(*seed);
                    outcomes.lock().unwrap().push((*seed, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap();
    outcomes.sort_unstable_by_key(|(seed, _)| *seed);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

const SEEDS: u64 = 24;
const LEASE_SEEDS: u64 = 10;
const BROKEN_SHOWN: usize = 1;
const LINES_SHOWN: u64 = 60;
const LEASES_MET: [&str; 5] = [
    "a lease decided",
    "a process paused for longer than a lease",
    "a process was killed",
    "a store restarted",
    "state loss",
];
/// Events that a run of many seeds must reach. Otherwise it proves less than it claims.
const SOMETIMES: [&str; 30] = [
    "the store decided",
    "the local share decided",
    "the rule's on_outage decided",
    "a remembered denial",
    "an open circuit breaker",
    "a silent server timed out",
    "a deferred charge sent",
    "a refund",
    "two shards in order",
    "two shards in parallel",
    "a cancelled caller",
    "decisions sharing a call",
    "a call cut off before it ran",
    "a reply lost after execution",
    "a reply cut in two",
    "state loss was noticed",
    "a clock step was noticed",
    "a process restarted",
    "a process on the new ring",
    "a process under the new secret",
    "a change by an operator",
    "a failover",
    "slots moved",
    "NOSCRIPT",
    "READONLY",
    "OOM",
    "LOADING",
    "MISCONF",
    "MOVED",
    "ASK",
];
