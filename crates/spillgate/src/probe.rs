//! A probe of the store's servers: their settings, correctness and speed. It shows operators
//! problems before an outage does.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::StoreError;
#[cfg(feature = "redis")]
use crate::store::InstanceMismatch;

/// The result of probing a whole store.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StoreProbe {
    /// Each server that decides; none if state is in memory.
    pub servers: Vec<ServerProbe>,
    /// The longest time that a decision waits for a silent server.
    pub timeout: Duration,
    /// The number of live instances that differ from this one.
    #[cfg(feature = "redis")]
    pub mismatch: InstanceMismatch,
    /// The number of live instances, including this one unless it only probes.
    #[cfg(feature = "redis")]
    pub live_instances: u32,
    /// The number of local shares: without the store, this instance enforces one part in `shares`
    /// of a limit.
    pub shares: u32,
    /// Whether that number is a default, because the number of instances is unknown.
    pub share_is_guessed: bool,
}

/// The result of probing one server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerProbe {
    /// The name in a ring, else the address, without credentials.
    pub name: String,
    /// The facts about the server, or the error.
    pub facts: Result<ServerFacts, StoreError>,
}

/// The facts about one server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerFacts {
    /// The fields of INFO.
    pub info: BTreeMap<String, String>,
    /// The settings that matter to Spillgate; empty if our user may not read them.
    pub settings: BTreeMap<String, String>,
    /// Whether it supports `#!lua`, and so rejects undeclared keys.
    pub knows_marked_scripts: bool,
    /// Its clock minus ours, in microseconds.
    pub ahead_us: i64,
    /// The time that each PING took, in microseconds, in the order of the calls.
    pub ping_us: Vec<u64>,
    /// The time that each script call took, in microseconds, in the order of the calls.
    pub script_us: Vec<u64>,
    /// Whether the script decided correctly on a key of its own: charged all or none, counted
    /// exactly, and let the key expire. Otherwise the error.
    pub script: Result<(), String>,
}

impl StoreProbe {
    /// Returns the servers that answered.
    pub fn reached(&self) -> impl Iterator<Item = (&str, &ServerFacts)> {
        self.servers
            .iter()
            .filter_map(|server| Some((&server.name[..], server.facts.as_ref().ok()?)))
    }

    /// Returns the servers that did not answer, with their errors.
    pub fn unreachable(&self) -> impl Iterator<Item = (&str, &StoreError)> {
        self.servers
            .iter()
            .filter_map(|server| Some((&server.name[..], server.facts.as_ref().err()?)))
    }
}

/// Returns the rights that a fleet's user needs on a server, in the form of `ACL SETUSER`. They
/// cover only the commands that Spillgate uses, on its own keys.
#[cfg(feature = "redis")]
pub fn acl_rules() -> String {
    let commands = COMMANDS.iter().chain(&SCRIPT_COMMANDS).map(|command| format!(" +{command}"));
    format!("resetkeys ~sg1:* ~sg2:* resetchannels -@all{}", commands.collect::<String>())
}

/// The commands that the connection sends.
#[cfg(feature = "redis")]
const COMMANDS: [&str; 11] = [
    "evalsha",
    "eval",
    "script|load",
    "unlink",
    "ping",
    "time",
    "info",
    "role",
    "asking",
    "cluster|slots",
    "select",
];

/// The commands that the scripts call. The server checks the user's rights there too.
#[cfg(feature = "redis")]
const SCRIPT_COMMANDS: [&str; 22] = [
    "get",
    "mget",
    "set",
    "del",
    "exists",
    "pexpire",
    "hget",
    "hset",
    "hdel",
    "hmget",
    "hkeys",
    "hlen",
    "zadd",
    "zcard",
    "zcount",
    "zrange",
    "zrangebyscore",
    "zrem",
    "zremrangebyscore",
    "zrevrange",
    "zrevrangebyscore",
    "zscore",
];

#[cfg(feature = "redis")]
#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_acl_has_every_command_of_the_scripts_and_no_other() {
        let mut called = BTreeSet::new();
        collect(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut called);
        let named: BTreeSet<String> =
            COMMANDS.iter().chain(&SCRIPT_COMMANDS).map(|&command| command.to_owned()).collect();
        let missing: Vec<&String> = called.difference(&named).collect();
        assert!(missing.is_empty(), "name these among the commands: {missing:?}");
        let idle = SCRIPT_COMMANDS.iter().filter(|command| !called.contains(**command));
        assert_eq!(idle.collect::<Vec<_>>(), [&""; 0], "no script calls these any more");
    }

    /// Collects the quoted words in capitals of every Lua file below a folder, without options.
    fn collect(folder: &Path, words: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, words);
            } else if path.extension().is_some_and(|end| end == "lua") {
                let text = std::fs::read_to_string(&path).unwrap();
                // A comment may have an apostrophe.
                let code = text.lines().filter_map(|line| line.split("--").next());
                let quoted = code.flat_map(|line| line.split('\'').skip(1).step_by(2));
                let is_word = |word: &&str| {
                    word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase())
                };
                let options = ["KEEPTTL", "LIMIT", "WITHSCORES"];
                let commands = quoted.filter(is_word).filter(|word| !options.contains(word));
                words.extend(commands.map(str::to_lowercase));
            }
        }
    }
}
