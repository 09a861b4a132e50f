//! `spillgate status`: shows the status of one server on one screen.

use std::fmt;
use std::process::ExitCode;

use hyper::Request;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use spillgate_tools::{Failure, counted, printable, say};
use tokio::runtime::Runtime;

use crate::ERROR;
use crate::cli::StatusArgs;
use crate::client;

pub(crate) fn run(args: &StatusArgs) -> Result<ExitCode, Failure> {
    let request = Request::get("/admin/v1/status");
    let ask = client::ask_admin_api(&args.api, request, Vec::new());
    let reply = Runtime::new()?.block_on(ask)?;
    let answer: Answer = client::read(&reply)?;
    match args.json {
        true => say(&String::from_utf8_lossy(&reply))?,
        false => say(&format!("{}: {answer}", args.api.url))?,
    }
    Ok(match &*answer.level {
        "ok" => ExitCode::SUCCESS,
        "warning" => ExitCode::from(WARNING),
        // A server that is critical and one that does not answer need the same attention.
        _ => ExitCode::from(ERROR),
    })
}

#[derive(Deserialize)]
struct Answer {
    at_ms: i64,
    version: String,
    level: String,
    word: String,
    conditions: Vec<Condition>,
    rules: Rules,
    store: String,
    shards: Vec<Shard>,
    fleet: Option<Fleet>,
}

#[derive(Deserialize)]
struct Condition {
    level: String,
    text: String,
    since_ms: Option<i64>,
    next: String,
}

#[derive(Deserialize)]
struct Rules {
    enforce: usize,
    shadow: usize,
    off: usize,
}

#[derive(Deserialize)]
struct Shard {
    name: String,
    degraded: bool,
    trouble: Option<String>,
}

#[derive(Deserialize)]
struct Fleet {
    instances: usize,
    allowed: u64,
    denied: u64,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.level)?;
        if self.word != "healthy" {
            write!(f, ", {}", self.word)?;
        }
        for condition in &self.conditions {
            write!(f, "\n{:8}  {}", condition.level, printable(&condition.text))?;
            if let Some((since, lasted)) = condition.since(self.at_ms) {
                write!(f, "\n{:8}  since {since}, for {lasted:#}", "")?;
            }
            write!(f, "\n{:8}  next: {}", "", printable(&condition.next))?;
        }
        let Rules { enforce, shadow, off } = self.rules;
        write!(f, "\nrules     {enforce} enforced, {shadow} in shadow, {off} off")?;
        write!(f, "\nstore     {}", printable(&self.store))?;
        for shard in &self.shards {
            write!(f, "\nshard     {shard}")?;
        }
        if let Some(Fleet { instances, allowed, denied }) = self.fleet {
            let instances = counted(instances, "instance");
            write!(
                f,
                "\nfleet     {instances}; {allowed} allowed and {denied} denied in the last minute"
            )?;
        }
        write!(f, "\nversion   {}", self.version)
    }
}

impl Condition {
    /// Returns the beginning of the condition, if it is known, and how long it has lasted.
    fn since(&self, now_ms: i64) -> Option<(Timestamp, SignedDuration)> {
        let since_s = self.since_ms? / 1_000;
        let lasted = SignedDuration::from_secs((now_ms / 1_000 - since_s).max(0));
        Some((Timestamp::from_second(since_s).ok()?, lasted))
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match (&self.trouble, self.degraded) {
            (Some(trouble), _) => trouble,
            (None, true) => "does not answer",
            (None, false) => "no trouble",
        };
        write!(f, "{}: {}", self.name, printable(state))
    }
}

/// The exit code if the worst condition is a warning.
const WARNING: u8 = 1;
