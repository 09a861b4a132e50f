//! Flags that are gone, and what to use instead.

use clap::error::{ContextKind, ContextValue};

/// Returns what to use instead of a flag of this command, if the error is about one that is gone.
pub(crate) fn instead(command: &str, usage: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(flag)) = usage.get(ContextKind::InvalidArg) else { return None };
    let mut gone = GONE.iter().filter(|(of, name, _)| *of == command && name == flag);
    gone.next().map(|(_, _, instead)| format!("{flag} is gone: {instead}"))
}

/// Command, flag, and what to use instead.
const GONE: [(&str, &str, &str); 16] = [
    (
        "bench",
        "--connections",
        "set store.connections in the file of --config; to a server each of --callers has a connection",
    ),
    ("bench", "--seed", "leave it out; every run makes the same calls"),
    (
        "bench",
        "--svg",
        "leave it out; the report is a table, and --json has its figures for other programs",
    ),
    ("admin", "--limit", "write --quota, as for `spillgate check`"),
    ("check", "--limit", "write --quota"),
    ("simulate", "--svg", "leave it out; the report lists the times with the most denials"),
    ("simulate", "--quota", A_FILE),
    ("simulate", "--burst", A_FILE),
    ("simulate", "--algorithm", A_FILE),
    ("simulate", "--key", A_FILE),
    ("simulate", "--pattern", A_LOG),
    ("simulate", "--rate", A_LOG),
    ("simulate", "--for", A_LOG),
    ("simulate", "--subjects", A_LOG),
    ("simulate", "--follow", "leave it out; the report lists the subjects with the most denials"),
    ("simulate", "--strict", "use --fail-if 'malformed>0'"),
];

const A_FILE: &str = "write the limit as a rule in the file of --config";
const A_LOG: &str =
    "name a log, which may be a CSV file that you made; `spillgate bench` makes calls";
