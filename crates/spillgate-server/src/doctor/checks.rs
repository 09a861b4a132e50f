//! The checks of one server. Each looks at the facts that the server reported, and returns a problem or nothing.

use spillgate::store::ServerFacts;

use super::finding::{Finding, Level};

/// Returns every finding on one server.
pub fn server(address: &str, facts: &ServerFacts) -> Vec<Finding> {
    let server = Server { address, facts };
    let found = CHECKS.iter().filter_map(|(check, run)| Some((*check, run(&server)?)));
    found
        .map(|(check, complaint)| Finding {
            level: complaint.level,
            check,
            server: Some(address.to_owned()),
            problem: complaint.problem,
            why: complaint.why,
            fix: complaint.fix,
        })
        .collect()
}

/// How many checks the doctor makes on each server.
pub const CHECKS_OF_SERVER: usize = CHECKS.len();

type Check = fn(&Server<'_>) -> Option<FailedCheck>;

const CHECKS: [(&str, Check); 14] = [
    ("version", version),
    ("role", role),
    ("script", script),
    ("eviction", eviction),
    ("evicted", evicted),
    ("memory-bound", memory_bound),
    ("memory-used", memory_used),
    ("nothing-saved", nothing_saved),
    ("snapshot-failed", snapshot_failed),
    ("snapshot-stops-writes", snapshot_stops_writes),
    ("replicas-missing", replicas_missing),
    ("replicas-not-demanded", replicas_not_demanded),
    ("full-coverage", full_coverage),
    ("settings-hidden", settings_hidden),
];

/// A problem that one check found: the problem, why it matters, and how to fix it.
struct FailedCheck {
    level: Level,
    problem: String,
    why: &'static str,
    fix: String,
}

/// A server and the facts that it reported.
struct Server<'a> {
    address: &'a str,
    facts: &'a ServerFacts,
}

impl Server<'_> {
    fn info(&self, field: &str) -> &str {
        self.facts.info.get(field).map_or("", String::as_str)
    }

    fn number(&self, field: &str) -> u64 {
        self.info(field).parse().unwrap_or_default()
    }

    /// Returns a setting of the server; `None` also if our user may not read settings.
    fn setting(&self, name: &str) -> Option<&str> {
        self.facts.settings.get(name).map(String::as_str)
    }

    fn redis_cli(&self, command: &str) -> String {
        if self.address.starts_with("sentinel:") || !self.address.contains(':') {
            // The name stands for the primary that sentinels name, or for a node of a ring, and is no URL.
            return format!("redis-cli -u ADDRESS {command}, at the address of {}", self.address);
        }
        format!("redis-cli -u {} {command}", self.address)
    }

    /// Returns whether the server writes its data to disk; `None` if that is unknown.
    fn saves(&self) -> Option<bool> {
        let appends = self.info("aof_enabled") == "1";
        if appends { Some(true) } else { self.setting("save").map(|save| !save.is_empty()) }
    }
}

fn version(server: &Server<'_>) -> Option<FailedCheck> {
    let (name, text, oldest) = match server.info("valkey_version") {
        "" => ("Redis", server.info("redis_version"), (6, 2)),
        text => ("Valkey", text, (7, 2)),
    };
    let mut numbers = text.split('.').map(|number| number.parse::<u32>().unwrap_or_default());
    let found = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    (found < oldest).then(|| FailedCheck {
        level: Level::Unsafe,
        problem: format!("{name} {text} is older than {}.{}", oldest.0, oldest.1),
        why: "Spillgate is not tested on it",
        fix: format!("run {name} {}.{} or later", oldest.0, oldest.1),
    })
}

fn role(server: &Server<'_>) -> Option<FailedCheck> {
    (server.info("role") == "slave").then(|| FailedCheck {
        level: Level::Unsafe,
        problem: format!(
            "it is a replica of {}:{}",
            server.info("master_host"),
            server.info("master_port")
        ),
        why: "it refuses writes, so every instance decides by itself",
        fix: "name the primary, or the sentinels that know it".to_owned(),
    })
}

fn script(server: &Server<'_>) -> Option<FailedCheck> {
    let why_not = server.facts.script.as_ref().err()?;
    Some(FailedCheck {
        level: Level::Unsafe,
        problem: format!("the script fails there: {why_not}"),
        why: "every instance decides by itself, by its local share of each limit",
        fix: "fix the server's error; spillgate doctor --acl prints the rights that our user needs"
            .to_owned(),
    })
}

fn eviction(server: &Server<'_>) -> Option<FailedCheck> {
    let policy = server.info("maxmemory_policy");
    (!policy.is_empty() && policy != "noeviction").then(|| FailedCheck {
        level: Level::Unsafe,
        problem: format!("maxmemory-policy is {policy}"),
        why: "a limit whose counter is evicted starts full again, and no error shows it",
        fix: server.redis_cli("CONFIG SET maxmemory-policy noeviction"),
    })
}

fn evicted(server: &Server<'_>) -> Option<FailedCheck> {
    let keys = server.number("evicted_keys");
    (keys > 0).then(|| FailedCheck {
        level: Level::Warning,
        problem: format!("{keys} keys have been evicted since it started"),
        why: "each may have been a counter, and its limit then started full again",
        fix: server.redis_cli("CONFIG SET maxmemory-policy noeviction, and give it more memory"),
    })
}

fn memory_bound(server: &Server<'_>) -> Option<FailedCheck> {
    (server.number("maxmemory") == 0).then(|| FailedCheck {
        level: Level::Warning,
        problem: "maxmemory is not set".to_owned(),
        why: "out of memory it is killed, and every limit starts full again; with a bound it refuses \
              writes, and the instances decide by their local shares",
        fix: server.redis_cli("CONFIG SET maxmemory 1gb"),
    })
}

fn memory_used(server: &Server<'_>) -> Option<FailedCheck> {
    let (used, bound) = (server.number("used_memory"), server.number("maxmemory"));
    let percent = used.saturating_mul(100).checked_div(bound)?;
    (percent >= MEMORY_WARNING_PERCENT).then(|| FailedCheck {
        level: if percent >= MEMORY_UNSAFE_PERCENT { Level::Unsafe } else { Level::Warning },
        problem: format!("{percent} % of maxmemory is used"),
        why: "full, it refuses to count new subjects",
        fix: server.redis_cli(&format!("CONFIG SET maxmemory {}", used.saturating_mul(2))),
    })
}

/// Finds a primary with replicas and without persistence: if it restarts before a failover, it is empty, and its
/// replicas copy the empty state.
fn nothing_saved(server: &Server<'_>) -> Option<FailedCheck> {
    let replicas = server.number("connected_slaves");
    (replicas > 0 && server.saves() == Some(false)).then(|| FailedCheck {
        level: Level::Unsafe,
        problem: format!("{replicas} replicas follow it, and it saves nothing"),
        why: "after a quick restart it is empty, its replicas copy that, and every limit starts full again",
        fix: server.redis_cli("CONFIG SET appendonly yes"),
    })
}

fn snapshot_failed(server: &Server<'_>) -> Option<FailedCheck> {
    let failed = server.info("rdb_last_bgsave_status") == "err"
        || server.info("aof_last_write_status") == "err"
        || server.info("aof_last_bgrewrite_status") == "err";
    failed.then(|| FailedCheck {
        level: Level::Unsafe,
        problem: "it could not write its snapshot or its append-only file".to_owned(),
        why: "by default it then refuses every write; its disk may be full",
        fix: format!(
            "free disk space, then {}",
            server.redis_cli("CONFIG SET stop-writes-on-bgsave-error no")
        ),
    })
}

fn snapshot_stops_writes(server: &Server<'_>) -> Option<FailedCheck> {
    let stops = server.setting("stop-writes-on-bgsave-error") == Some("yes");
    let snapshots = server.setting("save").is_some_and(|save| !save.is_empty());
    (stops && snapshots).then(|| FailedCheck {
        level: Level::Warning,
        problem: "stop-writes-on-bgsave-error is yes".to_owned(),
        why: "one failed snapshot, for example on a full disk, and it refuses writes",
        fix: server.redis_cli("CONFIG SET stop-writes-on-bgsave-error no"),
    })
}

fn replicas_missing(server: &Server<'_>) -> Option<FailedCheck> {
    let wanted: u64 = server.setting("min-replicas-to-write")?.parse().ok()?;
    let there = server.number("connected_slaves");
    (there < wanted).then(|| FailedCheck {
        level: Level::Unsafe,
        problem: format!("min-replicas-to-write is {wanted}, and {there} replicas follow it"),
        why: "it refuses writes until they are back",
        fix: server.redis_cli(&format!("CONFIG SET min-replicas-to-write {there}")),
    })
}

fn replicas_not_demanded(server: &Server<'_>) -> Option<FailedCheck> {
    let demanded = server.setting("min-replicas-to-write")?;
    (demanded == "0" && server.number("connected_slaves") > 0).then(|| FailedCheck {
        level: Level::Note,
        problem: "min-replicas-to-write is 0, though replicas follow it".to_owned(),
        why: "if it is cut off from its replicas, it counts on beside its successor, and both admit \
              the full limit meanwhile",
        fix: server.redis_cli("CONFIG SET min-replicas-to-write 1"),
    })
}

fn full_coverage(server: &Server<'_>) -> Option<FailedCheck> {
    let demanded = server.setting("cluster-require-full-coverage") == Some("yes");
    (demanded && server.info("cluster_enabled") == "1").then(|| FailedCheck {
        level: Level::Warning,
        problem: "cluster-require-full-coverage is yes".to_owned(),
        why: "if one primary without a replica fails, all primaries refuse writes",
        fix: server.redis_cli("CONFIG SET cluster-require-full-coverage no"),
    })
}

fn settings_hidden(server: &Server<'_>) -> Option<FailedCheck> {
    server.facts.settings.is_empty().then(|| FailedCheck {
        level: Level::Note,
        problem: "our user may not read its settings".to_owned(),
        why: "the checks of its persistence and of its reasons to refuse writes did not run",
        fix: "run spillgate doctor once as a user with +config|get".to_owned(),
    })
}

/// The used share of `maxmemory` beyond which a busy hour may fill the rest.
const MEMORY_WARNING_PERCENT: u64 = 80;
const MEMORY_UNSAFE_PERCENT: u64 = 95;
