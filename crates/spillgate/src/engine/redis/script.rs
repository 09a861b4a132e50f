//! The one script: the driver with the pure algorithm files joined to it.

use std::sync::LazyLock;

use super::program::{Call, Header};
use crate::algorithm::Intent;
use crate::engine::{Ask, AskTier, AtRecord};
use crate::limit::{Algorithm, Limit, NamedLimit};
use crate::subject::SubjectKey;

/// A script and its SHA1, as EVALSHA wants it.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    pub(super) sha: String,
}

/// With `#!lua`: a server that knows it refuses undeclared keys, and refuses on a replica at once.
pub(super) static MARKED: LazyLock<Script> =
    LazyLock::new(|| Script::new(format!("#!lua\n{}", text())));
/// For servers before 7.0, where `#` is a syntax error.
pub(super) static PLAIN: LazyLock<Script> = LazyLock::new(|| Script::new(text()));

/// The same for leases, whose ledger takes the place of the records: a script of its own, so that the one that
/// decides is not longer for it.
static MARKED_OF_LEASES: LazyLock<Script> =
    LazyLock::new(|| Script::new(format!("#!lua\n{}", text_with(LEDGER))));
static PLAIN_OF_LEASES: LazyLock<Script> = LazyLock::new(|| Script::new(text_with(LEDGER)));

/// The script of leases, for a server that takes this one.
pub(super) fn of_leases(script: &'static Script) -> &'static Script {
    if std::ptr::eq(script, &*PLAIN) { &PLAIN_OF_LEASES } else { &MARKED_OF_LEASES }
}

impl Script {
    fn new(text: String) -> Script {
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Script { text, sha }
    }
}

/// The command that makes a server know a script.
pub(super) fn load(script: &Script) -> ::redis::Cmd {
    let mut command = ::redis::cmd("SCRIPT");
    command.arg("LOAD").arg(&script.text);
    command
}

/// A call that shows whether a server decides, and changes nothing: it looks at a tier of nobody's.
pub(super) fn probe() -> Call<'static> {
    static LIMIT: LazyLock<NamedLimit> = LazyLock::new(|| NamedLimit::new(Limit::per_second(1), 0));
    let mut call = Call::new(Header { given_us: 0, estimate_us: 0, nonce: 1 });
    if let Some(numbers) = LIMIT.numbers() {
        let key = SubjectKey { tag: 0, id: 0, rule: 0 };
        let tier = AskTier::of(key, &LIMIT, numbers);
        call.decision(&Ask {
            intent: Intent::Peek,
            record: AtRecord::None,
            tiers: [tier].into_iter().collect(),
        });
    }
    call
}

/// The scripts as a server is given them, and the SHA1 of each: the one that decides, and the one of leases;
/// with a mark that servers since 7.0 know, or plain.
pub fn of_server(marked: bool) -> [(&'static str, &'static str); 2] {
    let decides = if marked { &*MARKED } else { &*PLAIN };
    [decides, of_leases(decides)].map(|script| (&script.text[..], &script.sha[..]))
}

/// The script's text, without its comments: after a flush it travels with every call under way.
pub fn text() -> String {
    text_with(RECORDS)
}

fn text_with(records: &str) -> String {
    joined(records)
        .split_inclusive('\n')
        .filter(|line| !line.trim_start().starts_with("--"))
        .collect()
}

fn joined(records: &str) -> String {
    let reserved = if records == LEDGER { NOTHING_RESERVED } else { RESERVED };
    let functions: String = ALGORITHMS.map(|(_, lua)| format!("function()\n{lua}end,\n")).concat();
    DRIVER
        .replace("-- @sole@", SOLE)
        .replace("-- @lone_buckets@", LONE_BUCKETS)
        .replace("-- @reserved@", reserved)
        .replace("-- @steady@", STEADY)
        .replace("-- @lone@", LONE)
        .replace("-- @records@", records)
        .replace("-- @crowd@", CROWD)
        .replace("-- @algorithms@", &format!("local algorithms = {{\n{functions}}}"))
        .replace("@sizes@", &escaped(KINDS.map(|(size, _)| size)))
        .replace("@owners@", &escaped(KINDS.map(|(_, owner)| number(owner))))
}

/// An algorithm's number in programs.
pub(super) fn number(algorithm: Algorithm) -> u8 {
    let place = ALGORITHMS.iter().position(|(known, _)| *known == algorithm);
    1 + place.expect("every algorithm has a Lua file") as u8
}

fn escaped(bytes: [u8; KINDS.len()]) -> String {
    bytes.map(|byte| format!("\\{byte:03}")).concat()
}

const LONE: &str = include_str!("../../algorithm/sliding_log/lone.lua");
const SOLE: &str = include_str!("sole.lua");
const LONE_BUCKETS: &str = include_str!("../../algorithm/token_bucket/lone.lua");
const RESERVED: &str = include_str!("reserved.lua");
/// Leases have another operation under the number of reservations.
const NOTHING_RESERVED: &str = "return function() end\n";
const STEADY: &str = include_str!("../../algorithm/token_bucket/steady.lua");
const RECORDS: &str = include_str!("records.lua");
const CROWD: &str = include_str!("crowd.lua");
const LEDGER: &str = include_str!("lease.lua");
const DRIVER: &str = include_str!("check.lua");
const ALGORITHMS: [(Algorithm, &str); 5] = [
    (Algorithm::TokenBucket, include_str!("../../algorithm/token_bucket.lua")),
    (Algorithm::FixedWindow, include_str!("../../algorithm/fixed_window.lua")),
    (Algorithm::SlidingLog, include_str!("../../algorithm/sliding_log.lua")),
    (Algorithm::SlidingWindow, include_str!("../../algorithm/sliding_window.lua")),
    (Algorithm::Concurrency, include_str!("../../algorithm/concurrency.lua")),
];
/// The record bodies by kind: their size, and whose they are. Sizes never change; a new body is a
/// new kind.
const KINDS: [(u8, Algorithm); 10] = [
    (11, Algorithm::TokenBucket),
    (25, Algorithm::TokenBucket),
    (62, Algorithm::TokenBucket),
    (23, Algorithm::FixedWindow),
    (27, Algorithm::SlidingWindow),
    (49, Algorithm::SlidingLog),
    (29, Algorithm::Concurrency),
    (11, Algorithm::TokenBucket),
    (88, Algorithm::TokenBucket),
    (62, Algorithm::TokenBucket),
];
