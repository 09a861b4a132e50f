//! The checks across all servers of the store, and of the settings.

use std::time::Duration;

use spillgate::store::{ServerFacts, ShardStatus, StoreProbe};

use super::checks;
use super::finding::{Finding, Level};
use crate::config::Settings;

/// Returns all findings on a store and on the settings for it, the worst first.
pub fn findings(probe: &StoreProbe, settings: &Settings) -> Vec<Finding> {
    if probe.servers.is_empty() {
        return Vec::new();
    }
    let unreachable = probe.unreachable().map(|(address, why)| {
        // The name of a primary under sentinels holds no address.
        let server = match address.starts_with("sentinel://") {
            true => settings.store.to_string(),
            false => address.to_owned(),
        };
        out_of_reach(server, format!("no answer: {why}"))
    });
    let mut findings: Vec<Finding> = unreachable.collect();
    for (address, facts) in probe.reached() {
        findings.extend(checks::server(address, facts));
        findings.extend(latency(address, facts, probe.timeout));
    }
    findings.extend(clocks(probe));
    findings.extend(secret(settings));
    findings.extend(open_secrets(settings));
    findings.extend(shares(probe));
    findings.sort_by_key(|finding| finding.level);
    findings
}

/// Returns a finding for each address of a Cluster if none gave the map of its nodes. A probe then has no servers.
pub fn without_map(probe: &StoreProbe, shards: Vec<ShardStatus>) -> impl Iterator<Item = Finding> {
    let is_unknown = move |shard: &ShardStatus| probe.servers.is_empty() && shard.degraded;
    shards.into_iter().filter(is_unknown).map(|shard| {
        let why = shard.trouble.as_deref().unwrap_or("no answer in time");
        out_of_reach(shard.name, format!("the nodes of the Cluster are unknown: {why}"))
    })
}

fn out_of_reach(server: String, problem: String) -> Finding {
    Finding {
        level: Level::Unsafe,
        check: "reach",
        server: Some(server),
        problem,
        why: "each instance limits its subjects by itself",
        fix: "start it, or correct its address, the network or our credentials".to_owned(),
    }
}

fn latency(address: &str, facts: &ServerFacts, timeout: Duration) -> Option<Finding> {
    let timeout_us = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
    let (half, tail) = (percentile(&facts.script_us, 500), percentile(&facts.script_us, 990));
    let fork_us = facts.info.get("latest_fork_usec").and_then(|us| us.parse().ok()).unwrap_or(0);
    let (level, problem) = if half? > timeout_us {
        (Level::Unsafe, format!("half of the checks took longer than {}", ms(half?)))
    } else if tail? > timeout_us {
        (Level::Warning, format!("one check of a hundred took longer than {}", ms(tail?)))
    } else if fork_us > timeout_us {
        (Level::Warning, format!("its last fork stopped it for {}", ms(fork_us)))
    } else {
        return None;
    };
    Some(Finding {
        level,
        check: "latency",
        server: Some(address.to_owned()),
        problem: format!("{problem}, and a decision may wait {}", ms(timeout_us)),
        why: "the instance decides later calls by itself, and counts them as charged",
        fix: "bring the store nearer, or raise timeout under [store]".to_owned(),
    })
}

/// Compares the clocks of all servers and of this process. Windows end by the clock of the server that holds them.
fn clocks(probe: &StoreProbe) -> Vec<Finding> {
    let ahead_us: Vec<i64> = probe.reached().map(|(_, facts)| facts.ahead_us).collect();
    let apart_us = match (ahead_us.iter().min(), ahead_us.iter().max()) {
        (Some(least), Some(most)) => most.abs_diff(*least),
        _ => 0,
    };
    let from_us = ahead_us.iter().map(|us| us.unsigned_abs()).max().unwrap_or_default();
    let finding = |level, problem| Finding {
        level,
        check: "clocks",
        server: None,
        problem,
        why: "windows end at different times on different servers, and after a failover limits hold \
              longer or start full again",
        fix: "run chrony or ntpd on each, and let the clock slew, not step".to_owned(),
    };
    let mut findings = Vec::new();
    if apart_us > CLOCKS_APART_WARNING_US {
        let level = if apart_us > CLOCKS_APART_UNSAFE_US { Level::Unsafe } else { Level::Warning };
        findings.push(finding(level, format!("the servers' clocks are {} apart", ms(apart_us))));
    }
    if from_us > CLOCKS_APART_UNSAFE_US {
        let problem = format!("a server's clock and ours are {} apart", ms(from_us));
        findings.push(finding(Level::Warning, problem));
    }
    findings
}

fn secret(settings: &Settings) -> Option<Finding> {
    settings.store.key_secret_file.is_none().then(|| Finding {
        level: if settings.data_is_exposed() { Level::Unsafe } else { Level::Note },
        check: "key-secret",
        server: None,
        problem:
            "no key_secret_file is set, so subjects are hashed under the default secret, which is \
               public"
                .to_owned(),
        why: "a client can aim its requests at one shard, and a reader of the store can guess its \
              subjects",
        fix: "openssl rand -hex 16 > FILE, the same for all instances, and name FILE as \
              key_secret_file under [store]"
            .to_owned(),
    })
}

fn open_secrets(settings: &Settings) -> impl Iterator<Item = Finding> {
    settings.open_secrets().map(|(setting, file)| Finding {
        level: Level::Warning,
        check: "open-secret",
        server: None,
        problem: format!("every user of this machine may read {}, the {setting}", file.display()),
        why: "any of them can use what it holds",
        fix: format!("chmod o= {}", file.display()),
    })
}

fn shares(probe: &StoreProbe) -> Option<Finding> {
    probe.share_is_guessed.then(|| Finding {
        level: Level::Note,
        check: "local-share",
        server: None,
        problem: format!(
            "expected_instances is not set, so without the store each instance enforces 1/{} of a limit",
            probe.shares
        ),
        why: "more instances admit more than the limit together, fewer admit less",
        fix: "write expected_instances under [store], or on_outage = \"deny\" or \"allow\" in the rule"
            .to_owned(),
    })
}

/// Returns a percentile, in thousandths: the least value that this share of the values does not exceed. The list must
/// be sorted; an empty one has no percentile.
pub fn percentile(sorted: &[u64], thousandths: usize) -> Option<u64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((sorted.len() * thousandths).div_ceil(1_000).saturating_sub(1).min(last)).copied()
}

/// Writes microseconds as milliseconds: `1.234 ms`.
pub fn ms(us: u64) -> String {
    format!("{}.{:03} ms", us / 1_000, us % 1_000)
}

/// The largest difference of two clocks that the network between two data centres can explain.
const CLOCKS_APART_WARNING_US: u64 = 50_000;
/// The least difference that no network explains.
const CLOCKS_APART_UNSAFE_US: u64 = 500_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_least_value_that_its_share_does_not_exceed() {
        let sorted: Vec<u64> = (1..=1_000).collect();
        assert_eq!(percentile(&sorted, 500), Some(500));
        assert_eq!(percentile(&sorted, 990), Some(990));
        assert_eq!(percentile(&sorted, 999), Some(999));
        assert_eq!(percentile(&[7], 999), Some(7));
        assert_eq!(percentile(&[], 500), None);
    }
}
