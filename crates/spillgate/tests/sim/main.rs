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

use play::{Outcome, play, run};

#[test]
fn random_faults_never_exceed_the_overshoot_bound() {
    let outcomes = play_all(&seeds(SEEDS), run);
    let reached = reached(&outcomes);
    assert_none_is_broken(&outcomes);
    // Fewer seeds may miss some events.
    if outcomes.len() as u64 >= SEEDS {
        assert_reached(&SOMETIMES, &reached);
    }
}

#[test]
fn a_seed_replays_exactly() {
    let (once, again) = (play(1, run).lines, play(1, run).lines);
    let differs = once.iter().zip(&again).position(|(one, other)| one != other);
    if let Some(line) = differs {
        panic!("line {line}:\n{}\n{}", once[line], again[line]);
    }
    assert_eq!(once.len(), again.len());
}

#[test]
fn random_faults_with_leases_never_exceed_bound_and_share() {
    let outcomes = play_all(&seeds(LEASE_SEEDS), leases::run);
    let reached = reached(&outcomes);
    assert_none_is_broken(&outcomes);
    if let [only] = &outcomes[..] {
        only.lines.iter().for_each(|line| println!("{line}"));
        return;
    }
    assert_reached(&LEASES_MET, &reached);
}

/// Adds up how often the runs reached each event, and prints the sums.
fn reached(outcomes: &[Outcome]) -> BTreeMap<&'static str, u64> {
    let mut reached: BTreeMap<&'static str, u64> = BTreeMap::new();
    for (event, times) in outcomes.iter().flat_map(|outcome| &outcome.reached) {
        *reached.entry(*event).or_default() += times;
    }
    println!("{:<45} {:>9}", "reached", "times");
    reached.iter().for_each(|(event, times)| println!("{event:<45} {times:>9}"));
    reached
}

#[track_caller]
fn assert_reached(events: &[&'static str], reached: &BTreeMap<&'static str, u64>) {
    let missed: Vec<_> = events.iter().filter(|event| !reached.contains_key(*event)).collect();
    assert!(missed.is_empty(), "never reached, so untested: {missed:?}");
}

/// Prints the broken seeds and the end of the first one's history, and fails if there is one.
#[track_caller]
fn assert_none_is_broken(outcomes: &[Outcome]) {
    let broken: Vec<(&Outcome, &str)> =
        outcomes.iter().filter_map(|outcome| Some((outcome, outcome.broken.as_deref()?))).collect();
    println!("{} seeds, {} broken", outcomes.len(), broken.len());
    for (Outcome { seed, about, .. }, why) in &broken {
        println!("seed {seed} ({about}): {why}");
    }
    if let Some((Outcome { seed, about, lines, .. }, why)) = broken.first() {
        let shown = number("SPILLGATE_SIM_LINES").unwrap_or(LINES_SHOWN);
        println!("\nSEED={seed} ({about}), to replay: ./evidence sim --seed {seed}");
        let tail = lines.len().saturating_sub(shown as usize);
        lines[tail..].iter().for_each(|line| println!("{line}"));
        panic!("SEED={seed}: {why}");
    }
}

/// One seed, a range of seeds, or as many as the gate has time for.
fn seeds(most: u64) -> Vec<u64> {
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
fn play_all<F: Future<Output = Outcome>>(
    seeds: &[u64],
    run: impl Fn(u64) -> F + Sync,
) -> Vec<Outcome> {
    let (next, outcomes) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let outcome = play(*seed, &run);
                    outcomes.lock().unwrap().push((*seed, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap();
    outcomes.sort_unstable_by_key(|(seed, _)| *seed);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

const SEEDS: u64 = 12;
const LEASE_SEEDS: u64 = 5;
const LINES_SHOWN: u64 = 60;
const LEASES_MET: [&str; 5] = [
    "a lease decided",
    "a process paused for longer than a lease",
    "a process was killed",
    "a store restarted",
    "state loss",
];
/// Events that a run of many seeds must reach. Otherwise it proves less than it claims.
const SOMETIMES: [&str; 27] = [
    "the store decided",
    "the local share decided",
    "the rule's on_outage decided",
    "a remembered denial",
    "an open circuit breaker",
    "a silent server timed out",
    "a deferred charge sent",
    "a refund",
    "two shards in order",
    "a cancelled caller",
    "decisions sharing a call",
    "a call cut off before it ran",
    "a reply lost after execution",
    "a reply cut in two",
    "state loss was noticed",
    "a clock step was noticed",
    "a process restarted",
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
