//! What the servers of a store say of themselves, and how fast they are: for an operator to judge
//! before an outage does.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::StoreError;
#[cfg(feature = "redis")]
use crate::store::InstanceMismatch;

/// A look at the whole store.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StoreProbe {
    /// Each server that decides; none for state in memory.
    pub servers: Vec<ServerProbe>,
    /// How long a decision may wait for the store.
    pub timeout: Duration,
    /// How many live instances differ from this one.
    #[cfg(feature = "redis")]
    pub mismatch: InstanceMismatch,
    /// How many instances live, this one among them unless it only looks.
    #[cfg(feature = "redis")]
    pub live_instances: u32,
    /// Without the store, this process enforces one part in so many of a limit.
    pub shares: u32,
    /// Nobody has said how many processes there are: that number is a guess.
    pub share_is_guessed: bool,
}

/// A look at one server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerProbe {
    /// Its name in a ring, else its address, without credentials.
    pub name: String,
    /// What it told, or why nothing.
    pub facts: Result<ServerFacts, StoreError>,
}

/// What one server told.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerFacts {
    /// The fields of INFO.
    pub info: BTreeMap<String, String>,
    /// Those of its settings that matter to us; empty where our user may not read them.
    pub settings: BTreeMap<String, String>,
    /// Whether it knows `#!lua`, and so refuses keys that were not declared.
    pub knows_marked_scripts: bool,
    /// Its clock less ours, in microseconds.
    pub ahead_us: i64,
    /// How long each PING took, in microseconds, in order.
    pub ping_us: Vec<u64>,
    /// How long each call of the script took, in microseconds, in order.
    pub script_us: Vec<u64>,
    /// Whether the script decided on a key of its own as it should: charged all or none, counted
    /// exactly, and let the key expire. Else what went wrong.
    pub script: Result<(), String>,
}

impl StoreProbe {
    /// The servers that answered.
    pub fn reached(&self) -> impl Iterator<Item = (&str, &ServerFacts)> {
        self.servers
            .iter()
            .filter_map(|server| Some((&server.name[..], server.facts.as_ref().ok()?)))
    }

    /// Those that did not, and why.
    pub fn unreachable(&self) -> impl Iterator<Item = (&str, &StoreError)> {
        self.servers
            .iter()
            .filter_map(|server| Some((&server.name[..], server.facts.as_ref().err()?)))
    }
}

/// What the user of a fleet may do on a server, as `ACL SETUSER` takes it: nothing but what
/// Spillgate uses, on no keys but its own.
#[cfg(feature = "redis")]
pub fn acl_rules() -> String {
    let commands = COMMANDS.iter().chain(&SCRIPT_COMMANDS).map(|command| format!(" +{command}"));
    format!("resetkeys ~sg1:* ~sg2:* resetchannels -@all{}", commands.collect::<String>())
}

/// What the connection asks for by itself.
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

/// What the scripts call: a server asks for the user's rights there too.
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
    fn the_rules_name_each_command_of_the_scripts_and_no_other() {
        let mut called = BTreeSet::new();
        collect(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut called);
        let named: BTreeSet<String> =
            COMMANDS.iter().chain(&SCRIPT_COMMANDS).map(|&command| command.to_owned()).collect();
        let missing: Vec<&String> = called.difference(&named).collect();
        assert!(missing.is_empty(), "name these among the commands: {missing:?}");
        let idle = SCRIPT_COMMANDS.iter().filter(|command| !called.contains(**command));
        assert_eq!(idle.collect::<Vec<_>>(), [&""; 0], "no script calls these any more");
    }

    /// The words in capitals and quotes of every Lua file below a folder, but for options.
    fn collect(folder: &Path, words: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, words);
            } else if path.extension().is_some_and(|end| end == "lua") {
                let text = std::fs::read_to_string(&path).unwrap();
                // A comment may hold an apostrophe.
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
