//! What is looked at across servers, and in our own settings.

use std::time::Duration;

use spillgate::{ServerFacts, StoreProbe};

use super::checks;
use super::finding::{Finding, Level};
use crate::config::Settings;

/// Returns everything that is wrong with a store and the settings for it, worst first.
pub fn findings(probe: &StoreProbe, settings: &Settings) -> Vec<Finding> {
    if probe.servers.is_empty() {
        return Vec::new();
    }
    let mut findings: Vec<Finding> = probe.unreachable().map(out_of_reach).collect();
    for (address, facts) in probe.reached() {
        findings.extend(checks::server(address, facts));
        findings.extend(latency(address, facts, probe.timeout));
    }
    findings.extend(clocks(probe));
    findings.extend(secret(settings));
    findings.extend(shares(probe));
    findings.sort_by_key(|finding| finding.level);
    findings
}

fn out_of_reach((address, why): (&str, &spillgate::StoreError)) -> Finding {
    Finding {
        level: Level::Unsafe,
        check: "reach",
        server: Some(address.to_owned()),
        what: format!("no answer: {why}"),
        why: "its subjects are limited by each process alone",
        mend: "start it, or mend its address, the network or our credentials".to_owned(),
    }
}

fn latency(address: &str, facts: &ServerFacts, timeout: Duration) -> Option<Finding> {
    let timeout_us = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
    let (half, tail) = (percentile(&facts.script_us, 500), percentile(&facts.script_us, 990));
    let fork_us = facts.info.get("latest_fork_usec").and_then(|us| us.parse().ok()).unwrap_or(0);
    let (level, what) = if half? > timeout_us {
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
        what: format!("{what}, and a decision may wait {}", ms(timeout_us)),
        why: "what takes longer is decided by the process alone, and counts as charged",
        mend: "bring the store nearer, or raise timeout under [store]".to_owned(),
    })
}

/// Of all servers and ourselves: by whose clock a window ends differs by so much.
fn clocks(probe: &StoreProbe) -> Vec<Finding> {
    let ahead_us: Vec<i64> = probe.reached().map(|(_, facts)| facts.ahead_us).collect();
    let apart_us = match (ahead_us.iter().min(), ahead_us.iter().max()) {
        (Some(least), Some(most)) => most.abs_diff(*least),
        _ => 0,
    };
    let from_us = ahead_us.iter().map(|us| us.unsigned_abs()).max().unwrap_or_default();
    let finding = |level, what| Finding {
        level,
        check: "clocks",
        server: None,
        what,
        why: "windows end at other moments on other servers; and after a failover between clocks \
              so far apart, limits are held longer or begin afresh",
        mend: "run chrony or ntpd on each, and let the clock slew, not step".to_owned(),
    };
    let mut findings = Vec::new();
    if apart_us > CLOCKS_APART_WARNING_US {
        let level = if apart_us > CLOCKS_APART_UNSAFE_US { Level::Unsafe } else { Level::Warning };
        findings.push(finding(level, format!("the servers' clocks are {} apart", ms(apart_us))));
    }
    if from_us > CLOCKS_APART_UNSAFE_US {
        let what = format!("a server's clock and ours are {} apart", ms(from_us));
        findings.push(finding(Level::Warning, what));
    }
    findings
}

fn secret(settings: &Settings) -> Option<Finding> {
    let exposed = settings.http.is_some_and(|door| !door.ip().to_canonical().is_loopback());
    settings.store.key_secret_file.is_none().then(|| Finding {
        level: if exposed { Level::Unsafe } else { Level::Note },
        check: "key-secret",
        server: None,
        what: "no key_secret_file is set, so subjects are hashed under a secret that everybody has"
            .to_owned(),
        why: "whoever reaches a door can aim at one shard; whoever reads the store can guess who is \
              limited",
        mend: "openssl rand -hex 16 > FILE, the same for the whole fleet, and name FILE as \
               key_secret_file under [store]"
            .to_owned(),
    })
}

fn shares(probe: &StoreProbe) -> Option<Finding> {
    probe.share_is_guessed.then(|| Finding {
        level: Level::Note,
        check: "fallback-share",
        server: None,
        what: format!(
            "without the store, each process enforces 1/{} of a limit: nobody has said how many \
             processes there are",
            probe.shares
        ),
        why: "more processes admit more than the limit together, fewer admit less",
        mend: "write expected_instances under [store]; or say on_outage = \"deny\" or \"allow\" in the rule"
            .to_owned(),
    })
}

/// Returns the least value that so many thousandths of the values do not exceed. The list is in order; an empty one
/// has none.
pub fn percentile(sorted: &[u64], thousandths: usize) -> Option<u64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((sorted.len() * thousandths).div_ceil(1_000).saturating_sub(1).min(last)).copied()
}

/// Writes microseconds as milliseconds: `1.234 ms`.
pub fn ms(us: u64) -> String {
    format!("{}.{:03} ms", us / 1_000, us % 1_000)
}

/// What a network between two data centres can explain.
const CLOCKS_APART_WARNING_US: u64 = 50_000;
/// What it cannot.
const CLOCKS_APART_UNSAFE_US: u64 = 500_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_least_that_so_many_do_not_exceed() {
        let sorted: Vec<u64> = (1..=1_000).collect();
        assert_eq!(percentile(&sorted, 500), Some(500));
        assert_eq!(percentile(&sorted, 990), Some(990));
        assert_eq!(percentile(&sorted, 999), Some(999));
        assert_eq!(percentile(&[7], 999), Some(7));
        assert_eq!(percentile(&[], 500), None);
    }
}
