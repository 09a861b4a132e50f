//! `spillgate doctor`: probes the store as the service uses it, and prints the findings.

use std::process::ExitCode;

use serde::Serialize;
use spillgate::store::{ServerFacts, StoreProbe};
use spillgate_server::App;
use spillgate_server::config::{Config, Flags};
use spillgate_server::doctor::{
    CHECKS_OF_SERVER, Finding, Level, findings, instance_findings, ms, percentile, without_map,
};
use spillgate_tools::{Failure, counted, say};
use tokio::runtime::Runtime;

use crate::cli::DoctorArgs;

pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    if args.acl {
        say(&acl())?;
        return Ok(ExitCode::SUCCESS);
    }
    let flags = Flags { redis: args.redis.as_deref(), ..Flags::default() };
    let Config { settings, policy } = Config::load(args.config.as_deref(), flags)?;
    if !settings.store.is_shared() {
        return Err(NO_STORE.into());
    }
    let (probe, shards) = Runtime::new()?.block_on(async {
        let app = App::open_to_look(&settings.store, policy).await?;
        Ok::<_, Failure>((app.probe(SAMPLES).await, app.limiter().shards()))
    })?;
    let mut findings: Vec<Finding> = instance_findings(&probe)
        .chain(without_map(&probe, shards))
        .chain(findings(&probe, &settings))
        .collect();
    findings.sort_by_key(|finding| finding.level);
    match args.json {
        true => say(&serde_json::to_string(&Report::new(&probe, &findings))?)?,
        false => print(&probe, &findings)?,
    }
    let safe = findings.iter().all(|finding| finding.level != Level::Unsafe);
    Ok(if safe { ExitCode::SUCCESS } else { ExitCode::from(UNSAFE) })
}

/// Returns the command that creates the Redis user for Spillgate, to be run on each server.
fn acl() -> String {
    format!("ACL SETUSER spillgate on >PASSWORD {}", spillgate::store::acl_rules())
}

fn print(probe: &StoreProbe, findings: &[Finding]) -> Result<(), Failure> {
    for (name, facts) in probe.reached() {
        say(&format!("{name}: {}", introduction(facts)))?;
        say(&format!("  script  {}", Latency::from_sorted(&facts.script_us)))?;
        let ahead = ms(facts.ahead_us.unsigned_abs());
        let way = if facts.ahead_us < 0 { "behind" } else { "ahead of" };
        say(&format!("  clock   {ahead} {way} this machine's"))?;
    }
    if probe.reached().next().is_some() {
        say(&"")?;
    }
    for finding in findings {
        say(&format!("{}\n", finding.for_people()))?;
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    say(&format!(
        "{} unsafe, {}, {}; {} checks on each of {}",
        count(Level::Unsafe),
        counted(count(Level::Warning), "warning"),
        counted(count(Level::Note), "note"),
        CHECKS_OF_SERVER,
        counted(probe.reached().count(), "server")
    ))?;
    Ok(())
}

/// Describes a server: version, mode and replicas.
fn introduction(facts: &ServerFacts) -> String {
    let kind = if facts.info.get("cluster_enabled").is_some_and(|enabled| enabled == "1") {
        "in a cluster"
    } else {
        "standalone"
    };
    let replicas = facts.info.get("connected_slaves").map_or("0", String::as_str);
    format!("{}, {kind}, replicas: {replicas}", version(facts))
}

fn version(facts: &ServerFacts) -> String {
    let field = |name: &str| facts.info.get(name);
    match (field("valkey_version"), field("redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, Some(version)) => format!("Redis {version}"),
        (None, None) => "a server of no known kind".to_owned(),
    }
}

/// The whole report, for programs.
#[derive(Serialize)]
struct Report<'a> {
    safe: bool,
    timeout_us: u64,
    servers: Vec<Server<'a>>,
    findings: &'a [Finding],
}

#[derive(Serialize)]
struct Server<'a> {
    name: &'a str,
    version: String,
    ahead_us: i64,
    script: Latency,
}

/// The latency of a number of calls, in microseconds; `None` if none was answered.
#[derive(Serialize)]
struct Latency {
    p50_us: Option<u64>,
    p99_us: Option<u64>,
    p999_us: Option<u64>,
}

impl<'a> Report<'a> {
    fn new(probe: &'a StoreProbe, findings: &'a [Finding]) -> Report<'a> {
        let server = |(name, facts): (&'a str, &'a ServerFacts)| Server {
            name,
            version: version(facts),
            ahead_us: facts.ahead_us,
            script: Latency::from_sorted(&facts.script_us),
        };
        Report {
            safe: findings.iter().all(|finding| finding.level != Level::Unsafe),
            timeout_us: u64::try_from(probe.timeout.as_micros()).unwrap_or(u64::MAX),
            servers: probe.reached().map(server).collect(),
            findings,
        }
    }
}

impl Latency {
    fn from_sorted(sorted: &[u64]) -> Latency {
        Latency {
            p50_us: percentile(sorted, 500),
            p99_us: percentile(sorted, 990),
            p999_us: percentile(sorted, 999),
        }
    }
}

impl std::fmt::Display for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |us: Option<u64>| us.map_or("unknown".to_owned(), ms);
        let (p50, p99, p999) = (shown(self.p50_us), shown(self.p99_us), shown(self.p999_us));
        write!(f, "p50 {p50}, p99 {p99}, p99.9 {p999}")
    }
}

const NO_STORE: &str = "no store is named, so state is in memory and there is nothing to check; \
    name one with --redis redis://127.0.0.1:6379, or with --config FILE that has a [store]";

/// The calls of the script that are measured, enough for a p99.9.
const SAMPLES: usize = 1_000;

/// The exit code if a finding is unsafe.
const UNSAFE: u8 = 1;
