//! What is looked at on one server: each check is a question to what the server told, and answers
//! with what is wrong, or with nothing.

use spillgate::ServerFacts;

use super::finding::{Finding, Level};

/// Everything that is wrong with one server.
pub(super) fn server(address: &str, facts: &ServerFacts) -> Vec<Finding> {
    let told = Told { address, facts };
    let found = CHECKS.iter().filter_map(|(check, ask)| Some((*check, ask(&told)?)));
    found
        .map(|(check, complaint)| Finding {
            level: complaint.level,
            check,
            server: Some(address.to_owned()),
            what: complaint.what,
            why: complaint.why,
            mend: complaint.mend,
        })
        .collect()
}

/// How many checks the doctor makes on each server.
pub const CHECKS_OF_SERVER: usize = CHECKS.len();

type Check = fn(&Told<'_>) -> Option<Complaint>;

const CHECKS: [(&str, Check); 15] = [
    ("version", version),
    ("role", role),
    ("script", script),
    ("eviction", eviction),
    ("evicted", evicted),
    ("memory-bound", memory_bound),
    ("memory-used", memory_used),
    ("amnesia", amnesia),
    ("snapshot-failed", snapshot_failed),
    ("snapshot-stops-writes", snapshot_stops_writes),
    ("replicas-missing", replicas_missing),
    ("replicas-not-demanded", replicas_not_demanded),
    ("full-coverage", full_coverage),
    ("keepalive", keepalive),
    ("settings-hidden", settings_hidden),
];

/// What one check has to say.
struct Complaint {
    level: Level,
    what: String,
    why: &'static str,
    mend: String,
}

/// What a server told.
struct Told<'a> {
    address: &'a str,
    facts: &'a ServerFacts,
}

impl Told<'_> {
    fn info(&self, field: &str) -> &str {
        self.facts.info.get(field).map_or("", String::as_str)
    }

    fn number(&self, field: &str) -> u64 {
        self.info(field).parse().unwrap_or_default()
    }

    /// Absent as well where we may not ask.
    fn setting(&self, name: &str) -> Option<&str> {
        self.facts.settings.get(name).map(String::as_str)
    }

    fn redis_cli(&self, command: &str) -> String {
        if self.address.starts_with("sentinel:") || !self.address.contains(':') {
            // Whoever the sentinels name, or a node of a ring.
            return format!("redis-cli -u ADDRESS {command}, at the address of {}", self.address);
        }
        format!("redis-cli -u {} {command}", self.address)
    }

    /// None is needed in a cluster: its nodes are told apart by slots.
    fn saves(&self) -> Option<bool> {
        let appends = self.info("aof_enabled") == "1";
        if appends { Some(true) } else { self.setting("save").map(|save| !save.is_empty()) }
    }
}

fn version(told: &Told<'_>) -> Option<Complaint> {
    let (name, text, oldest) = match told.info("valkey_version") {
        "" => ("Redis", told.info("redis_version"), (6, 2)),
        text => ("Valkey", text, (7, 2)),
    };
    let mut numbers = text.split('.').map(|number| number.parse::<u32>().unwrap_or_default());
    let found = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    (found < oldest).then(|| Complaint {
        level: Level::Unsafe,
        what: format!("{name} {text} is older than {}.{}", oldest.0, oldest.1),
        why: "nobody has tried the script there",
        mend: format!("run {name} {}.{} or later", oldest.0, oldest.1),
    })
}

fn role(told: &Told<'_>) -> Option<Complaint> {
    (told.info("role") == "slave").then(|| Complaint {
        level: Level::Unsafe,
        what: format!(
            "it is a replica of {}:{}",
            told.info("master_host"),
            told.info("master_port")
        ),
        why: "it refuses to count, so every process decides by itself",
        mend: "name the primary, or the sentinels that know who that is".to_owned(),
    })
}

fn script(told: &Told<'_>) -> Option<Complaint> {
    let why_not = told.facts.script.as_ref().err()?;
    Some(Complaint {
        level: Level::Unsafe,
        what: format!("the script does not decide there: {why_not}"),
        why: "every process decides by itself, by its share of each limit",
        mend: "mend what the server says; spillgate doctor --acl prints what our user needs"
            .to_owned(),
    })
}

fn eviction(told: &Told<'_>) -> Option<Complaint> {
    let policy = told.info("maxmemory_policy");
    (!policy.is_empty() && policy != "noeviction").then(|| Complaint {
        level: Level::Unsafe,
        what: format!("maxmemory-policy is {policy}"),
        why: "a limit whose state is evicted begins afresh, and nobody is told",
        mend: told.redis_cli("CONFIG SET maxmemory-policy noeviction"),
    })
}

fn evicted(told: &Told<'_>) -> Option<Complaint> {
    let keys = told.number("evicted_keys");
    (keys > 0).then(|| Complaint {
        level: Level::Warning,
        what: format!("{keys} keys have been evicted since it started"),
        why: "each may have been the state of a limit, which then began afresh",
        mend: told.redis_cli("CONFIG SET maxmemory-policy noeviction, and give it more memory"),
    })
}

fn memory_bound(told: &Told<'_>) -> Option<Complaint> {
    (told.number("maxmemory") == 0).then(|| Complaint {
        level: Level::Warning,
        what: "maxmemory is not set".to_owned(),
        why: "out of memory it is killed, and every limit begins afresh; with a bound it refuses, \
              and the processes decide by their shares",
        mend: told.redis_cli("CONFIG SET maxmemory 1gb"),
    })
}

fn memory_used(told: &Told<'_>) -> Option<Complaint> {
    let (used, bound) = (told.number("used_memory"), told.number("maxmemory"));
    let percent = used.saturating_mul(100).checked_div(bound)?;
    (percent >= MEMORY_WARNING_PERCENT).then(|| Complaint {
        level: if percent >= MEMORY_UNSAFE_PERCENT { Level::Unsafe } else { Level::Warning },
        what: format!("{percent} % of maxmemory is used"),
        why: "full, it refuses to count new subjects",
        mend: told.redis_cli(&format!("CONFIG SET maxmemory {}", used.saturating_mul(2))),
    })
}

/// A primary without persistence restarts empty before anybody notices that it was gone, and its
/// replicas copy the emptiness.
fn amnesia(told: &Told<'_>) -> Option<Complaint> {
    let replicas = told.number("connected_slaves");
    (replicas > 0 && told.saves() == Some(false)).then(|| Complaint {
        level: Level::Unsafe,
        what: format!("{replicas} replicas follow it, and it saves nothing"),
        why: "restarted at once it is empty, its replicas copy that, and every limit begins afresh",
        mend: told.redis_cli("CONFIG SET appendonly yes"),
    })
}

fn snapshot_failed(told: &Told<'_>) -> Option<Complaint> {
    let failed = told.info("rdb_last_bgsave_status") == "err"
        || told.info("aof_last_write_status") == "err"
        || told.info("aof_last_bgrewrite_status") == "err";
    failed.then(|| Complaint {
        level: Level::Unsafe,
        what: "it could not write its snapshot or its append-only file".to_owned(),
        why: "by default it then refuses every write: is its disk full?",
        mend: format!(
            "make room, then {}",
            told.redis_cli("CONFIG SET stop-writes-on-bgsave-error no")
        ),
    })
}

fn snapshot_stops_writes(told: &Told<'_>) -> Option<Complaint> {
    let stops = told.setting("stop-writes-on-bgsave-error") == Some("yes");
    let snapshots = told.setting("save").is_some_and(|save| !save.is_empty());
    (stops && snapshots).then(|| Complaint {
        level: Level::Warning,
        what: "stop-writes-on-bgsave-error is yes".to_owned(),
        why: "one snapshot that fails, for a full disk, and it refuses to count",
        mend: told.redis_cli("CONFIG SET stop-writes-on-bgsave-error no"),
    })
}

fn replicas_missing(told: &Told<'_>) -> Option<Complaint> {
    let wanted: u64 = told.setting("min-replicas-to-write")?.parse().ok()?;
    let there = told.number("connected_slaves");
    (there < wanted).then(|| Complaint {
        level: Level::Unsafe,
        what: format!("min-replicas-to-write is {wanted}, and {there} replicas follow it"),
        why: "it refuses to count until they are back",
        mend: told.redis_cli(&format!("CONFIG SET min-replicas-to-write {there}")),
    })
}

fn replicas_not_demanded(told: &Told<'_>) -> Option<Complaint> {
    let demanded = told.setting("min-replicas-to-write")?;
    (demanded == "0" && told.number("connected_slaves") > 0).then(|| Complaint {
        level: Level::Note,
        what: "min-replicas-to-write is 0, though replicas follow it".to_owned(),
        why: "cut off from the rest it goes on counting beside its successor, and limits are \
              granted twice while that lasts",
        mend: told.redis_cli("CONFIG SET min-replicas-to-write 1"),
    })
}

fn full_coverage(told: &Told<'_>) -> Option<Complaint> {
    let demanded = told.setting("cluster-require-full-coverage") == Some("yes");
    (demanded && told.info("cluster_enabled") == "1").then(|| Complaint {
        level: Level::Warning,
        what: "cluster-require-full-coverage is yes".to_owned(),
        why: "one dead primary without a replica, and all of them refuse to count",
        mend: told.redis_cli("CONFIG SET cluster-require-full-coverage no"),
    })
}

fn keepalive(told: &Told<'_>) -> Option<Complaint> {
    (told.setting("tcp-keepalive") == Some("0")).then(|| Complaint {
        level: Level::Note,
        what: "tcp-keepalive is 0".to_owned(),
        why: "connections of processes that are gone stay open, up to maxclients",
        mend: told.redis_cli("CONFIG SET tcp-keepalive 300"),
    })
}

fn settings_hidden(told: &Told<'_>) -> Option<Complaint> {
    told.facts.settings.is_empty().then(|| Complaint {
        level: Level::Note,
        what: "our user may not read its settings".to_owned(),
        why: "what it saves, and what makes it refuse writes, was not looked at",
        mend: "run spillgate doctor once as a user with +config|get".to_owned(),
    })
}

/// Beyond it a busy hour may fill the rest.
const MEMORY_WARNING_PERCENT: u64 = 80;
const MEMORY_UNSAFE_PERCENT: u64 = 95;
