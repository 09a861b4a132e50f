//! `spillgate fleet`: lists the live instances of the fleet, and shows at a glance which of them differs.

use std::process::ExitCode;

use hyper::Request;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use spillgate_tools::{Failure, counted, printable, say};
use tokio::runtime::Runtime;

use crate::cli::FleetArgs;
use crate::client;

pub(crate) fn run(args: &FleetArgs) -> Result<ExitCode, Failure> {
    let ask = client::ask_admin_api(&args.api, Request::get("/admin/v1/fleet"), Vec::new());
    let reply = Runtime::new()?.block_on(ask)?;
    let Answer { instances } = client::read(&reply)?;
    match args.json {
        true => say(&String::from_utf8_lossy(&reply))?,
        false => say(&table(&instances, Timestamp::now()))?,
    }
    let are_alike = instances.iter().all(|instance| instance.differs_in.is_empty());
    Ok(if are_alike { ExitCode::SUCCESS } else { ExitCode::from(UNLIKE) })
}

#[derive(Deserialize)]
struct Answer {
    instances: Vec<Instance>,
}

#[derive(Deserialize)]
struct Instance {
    name: String,
    version: String,
    started_ms: u64,
    policy: String,
    policy_loaded_ms: u64,
    allowed: u64,
    denied: u64,
    p99_us: Option<u64>,
    degraded_since_ms: Option<u64>,
    changes: u64,
    differs_in: Vec<String>,
}

/// Returns a table with a row for each instance. Policies are numbered, the most common first, because an operator cannot
/// compare fingerprints at a glance.
fn table(instances: &[Instance], now: Timestamp) -> String {
    let mut policies: Vec<(&str, usize)> = Vec::new();
    for instance in instances {
        match policies.iter_mut().find(|(policy, _)| *policy == instance.policy) {
            Some((_, count)) => *count += 1,
            None => policies.push((&instance.policy, 1)),
        }
    }
    policies.sort_by_key(|(policy, count)| (std::cmp::Reverse(*count), *policy));
    let number =
        |policy: &str| policies.iter().position(|(it, _)| *it == policy).map_or(0, |it| it + 1);
    let head = HEAD.map(str::to_owned);
    let rows = instances.iter().map(|it| it.row(number(&it.policy), policies.len(), now));
    let rows: Vec<[String; HEAD.len()]> = [head].into_iter().chain(rows).collect();
    let mut text = spillgate_tools::table(&rows, 4).trim_start_matches('\n').to_owned();
    let differing = instances.iter().filter(|instance| !instance.differs_in.is_empty()).count();
    let all = counted(instances.len(), "instance");
    text.push_str(&match differing {
        0 => format!("\n\n{all}, all alike"),
        some => format!("\n\n{all}, {some} unlike the one that answers"),
    });
    text
}

impl Instance {
    fn row(&self, policy: usize, policies: usize, now: Timestamp) -> [String; HEAD.len()] {
        let ago = |ms: u64| {
            let ms = i64::try_from(ms).unwrap_or(i64::MAX);
            let seconds = now.as_millisecond().saturating_sub(ms).max(0) / 1_000;
            format!(
                "{:#}",
                SignedDuration::from_secs(match seconds {
                    // An operator compares days and hours, not seconds.
                    3_600.. => seconds - seconds % 60,
                    _ => seconds,
                })
            )
        };
        let policy = if policies > 1 { format!("#{policy}, ") } else { String::new() };
        let degraded =
            self.degraded_since_ms.map(|ms| format!("without the store for {}", ago(ms)));
        let differs = match self.differs_in.is_empty() {
            true => None,
            false => Some(format!("another {}", self.differs_in.join(", "))),
        };
        let notes: Vec<String> = [differs, degraded].into_iter().flatten().collect();
        let p99 =
            self.p99_us.map_or("-".to_owned(), |us| format!("{}.{:03} ms", us / 1_000, us % 1_000));
        let cells = [
            self.name.clone(),
            notes.join("; "),
            format!("{policy}{} ago", ago(self.policy_loaded_ms)),
            self.version.clone(),
            ago(self.started_ms),
            (self.allowed.saturating_add(self.denied) / 60).to_string(),
            self.denied.to_string(),
            p99,
            self.changes.to_string(),
        ];
        cells.map(|cell| printable(&cell))
    }
}

/// The exit code if an instance differs from the one that answers.
const UNLIKE: u8 = 1;
const HEAD: [&str; 9] =
    ["name", "", "policy loaded", "version", "up", "a second", "denied a minute", "p99", "changes"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_odd_instance_is_found_at_a_glance() {
        let instance = |name: &str, policy: &str, differs: &[&str]| Instance {
            name: name.to_owned(),
            version: "0.1.0".to_owned(),
            started_ms: 0,
            policy: policy.to_owned(),
            policy_loaded_ms: 60_000,
            allowed: 6_000,
            denied: 60,
            p99_us: Some(412),
            degraded_since_ms: None,
            changes: 7,
            differs_in: differs.iter().map(|it| (*it).to_owned()).collect(),
        };
        let now = Timestamp::from_second(7_200).unwrap();
        let alike = [instance("web-1", "aa", &[]), instance("web-2", "aa", &[])];
        assert_eq!(
            table(&alike, now),
            "  name     policy loaded  version  up  a second  denied a minute       p99  changes
  web-1    1h 59m ago     0.1.0    2h       101               60  0.412 ms        7
  web-2    1h 59m ago     0.1.0    2h       101               60  0.412 ms        7

2 instances, all alike"
        );
        let odd = Instance {
            degraded_since_ms: Some(7_000_000),
            ..instance("b\\u{1b}", "bb", &["policy"])
        };
        let text = table(&[instance("web-1", "aa", &[]), instance("web-2", "aa", &[]), odd], now);
        let line = text.lines().nth(3).unwrap();
        assert!(
            line.contains("another policy; without the store for 3m 20s  #2, 1h 59m ago"),
            "{text}"
        );
        assert!(text.ends_with("3 instances, 1 unlike the one that answers"), "{text}");
    }
}
