//! The rights that Spillgate needs on a server.

/// Returns the rights that a fleet's user needs on a server, in the form of `ACL SETUSER`. They
/// cover only the commands that Spillgate uses, on its own keys.
///
/// ```
/// let rules = spillgate::store::acl_rules();
/// println!("ACL SETUSER spillgate on >PASSWORD {rules}");
/// ```
///
/// Servers that have MSETEX, which are Redis from 8.4 and Valkey from 9.1 on, decide large batches with less work if the
/// user has `+msetex` too. Others refuse the name, so it is not among them.
pub fn acl_rules() -> String {
    let commands = COMMANDS.iter().chain(&SCRIPT_COMMANDS).map(|command| format!(" +{command}"));
    format!("resetkeys ~sg1:* ~sg3:* resetchannels -@all{}", commands.collect::<String>())
}

/// The commands that the connection sends.
const COMMANDS: [&str; 13] = [
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
    "xadd",
    "xrevrange",
];

/// The commands that the scripts call. The server checks the user's rights there too.
const SCRIPT_COMMANDS: [&str; 25] = [
    "get",
    "getrange",
    "mget",
    "set",
    "setrange",
    "strlen",
    "del",
    "exists",
    "pexpire",
    "hget",
    "hmget",
    "hset",
    "hdel",
    "hkeys",
    "hlen",
    "hscan",
    "zadd",
    "zcard",
    "zcount",
    "zrange",
    "zrangebyscore",
    "zrem",
    "zremrangebyscore",
    "zrevrange",
    "zscore",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_acl_has_every_command_of_the_scripts_and_no_other() {
        let mut called = BTreeSet::new();
        collect(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut called);
        // The scripts call MSETEX only if the server has it and the user may.
        let named: BTreeSet<String> = COMMANDS
            .iter()
            .chain(&SCRIPT_COMMANDS)
            .chain(&["msetex"])
            .map(|&command| command.to_owned())
            .collect();
        let missing: Vec<&String> = called.difference(&named).collect();
        assert!(missing.is_empty(), "name these among the commands: {missing:?}");
        let of_scripts = SCRIPT_COMMANDS.iter().chain(&["msetex"]);
        let idle = of_scripts.filter(|command| !called.contains(**command));
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
                let options = ["COUNT", "KEEPTTL", "LIMIT", "WITHSCORES"];
                let commands = quoted.filter(is_word).filter(|word| !options.contains(word));
                words.extend(commands.map(str::to_lowercase));
            }
        }
    }
}
