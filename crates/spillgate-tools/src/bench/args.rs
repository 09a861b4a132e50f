//! The flags of `spillgate bench`.

use std::path::PathBuf;

use clap::Args;

use super::{Baseline, Pace, SUBJECTS_MAX, Scenario};
use crate::flag::{attribute, whole_number};
use crate::simulate::duration::positive;
use crate::simulate::{Rate, rate};

/// Makes calls to the limiter or to a server, and reports its speed and its decisions.
///
/// Without --url it checks the library in this process, over the store of --redis or --config, or in
/// memory. Calls are made on time even while answers are late, and times count from when a call was
/// due: if the target stalls for a second, every call of that second is late, as for users.
/// Ctrl-C ends it early and reports the answers so far.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct BenchArgs {
    /// steady, burst, hot-key, zipf, many-tenants or outage
    #[arg(value_name = "SCENARIO", default_value = "steady", hide_possible_values = true)]
    pub(crate) scenario: Scenario,

    /// Calls in all: 20000 (a second), 90/minute; or max: each caller calls again when answered
    #[arg(long, value_name = "RATE", default_value = "10000", value_parser = pace)]
    pub(crate) rate: Pace,

    /// How long each target is called: 500ms, 10s, 5m
    #[arg(long = "duration", value_name = "TIME", default_value = "10s", value_parser = length)]
    pub(crate) duration_us: u64,

    /// The most calls that wait for answers at once
    #[arg(long, value_name = "NUMBER", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) callers: u32,

    /// To the store [default: as set], or to the server [default: 8; http:// one for each caller]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) connections: Option<u32>,

    /// How many subjects [default: 1000; zipf 100000; many-tenants 1000000]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=SUBJECTS_MAX))]
    pub(crate) subjects: Option<u64>,

    /// Seeds the random order of subjects; the same number makes the same calls
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,

    /// The inline limit of each subject [default: 100/second]
    #[arg(long)]
    pub(crate) quota: Option<String>,

    /// How many calls pass at once; token buckets only [default: the quota's count]
    #[arg(long, value_name = "NUMBER", value_parser = whole_number)]
    pub(crate) burst: Option<u64>,

    /// token-bucket, fixed-window, sliding-log or sliding-window [default: token-bucket]
    #[arg(long, value_name = "NAME")]
    pub(crate) algorithm: Option<String>,

    /// Check by the rules of --config or of the server instead: this attribute is the subject
    #[arg(long, value_name = "ATTRIBUTE", conflicts_with_all = ["quota", "burst", "algorithm", "against"])]
    pub(crate) by: Option<String>,

    /// An attribute that all requests have: route=/login
    #[arg(long, value_name = "NAME=VALUE", requires = "by", value_parser = attribute)]
    pub(crate) with: Vec<(String, String)>,

    /// The domain of the rules [default: default]
    #[arg(long, requires = "by")]
    pub(crate) domain: Option<String>,

    /// A server: http://HOST:PORT, grpc://HOST:PORT (Envoy), resp://[:PASSWORD@]HOST:PORT
    #[arg(long, value_name = "URL", conflicts_with_all = ["redis", "config"])]
    pub(crate) url: Option<String>,

    /// The file with the server's token, if it requires one
    #[arg(long, value_name = "FILE", requires = "url")]
    pub(crate) token_file: Option<PathBuf>,

    /// The library over this Redis or Valkey
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,

    /// The library with these settings and rules: a Cluster, Sentinels, a ring
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Call this baseline in turns: evalsha
    #[arg(long, value_name = "BASELINE", hide_possible_values = true)]
    pub(crate) against: Option<Baseline>,

    /// How long an answer may take
    #[arg(long = "timeout", value_name = "TIME", default_value = "1s", value_parser = patience)]
    pub(crate) timeout_us: u64,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Draw rate and latency over time into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

fn pace(text: &str) -> Result<Pace, String> {
    let help = "write calls a second such as 20000, calls in a period such as 90/minute, or max";
    if text == "max" {
        return Ok(Pace::Max);
    }
    let parsed = match text.replace('_', "").parse() {
        Ok(count) => Rate { count, period_us: 1_000_000 },
        Err(_) => rate(text).map_err(|_| help.to_owned())?,
    };
    if parsed.count == 0 { Err(help.to_owned()) } else { Ok(Pace::At(parsed)) }
}

fn length(text: &str) -> Result<u64, String> {
    positive(text).and_then(|us| match us {
        LENGTH_MIN_US..=LENGTH_MAX_US => Ok(us),
        _ => Err("write a time from 100ms to 24h".to_owned()),
    })
}

fn patience(text: &str) -> Result<u64, String> {
    positive(text).and_then(|us| match us {
        1_000..=PATIENCE_MAX_US => Ok(us),
        _ => Err("write a time from 1ms to 60s".to_owned()),
    })
}

/// A shorter run measures mostly the start.
const LENGTH_MIN_US: u64 = 100_000;
const LENGTH_MAX_US: u64 = 86_400_000_000;
/// A caller that waits longer for a decision has left.
const PATIENCE_MAX_US: u64 = 60_000_000;

const EXAMPLES: &str = "\
Examples:
  spillgate bench
  spillgate bench zipf --redis redis://127.0.0.1:6379 --rate 50000 --against evalsha
  spillgate bench hot-key --config limits.toml --by tenant --with route=/search
  spillgate bench burst --url http://127.0.0.1:8080 --rate 5000 --duration 1m --svg burst.svg
  spillgate bench steady --url grpc://127.0.0.1:8081 --by ip --rate max
  spillgate bench outage --rate 2000 --json

Scenarios: steady: evenly spaced, subjects in turn; burst: all of a second in its first tenth;
  hot-key: nine of ten calls for one subject; zipf: the n-th subject makes 1/n as many calls as
  the first; many-tenants: a million subjects, all alike; outage: steady, while a redis-server
  started for this is killed and comes back empty.

The baseline evalsha is the shortest correct token bucket, one script call for each check. It is
  called in turns with the limiter, by the same clients, and ratios are medians of five pairs.

Exit codes: 0 measured, however slow, 2 error.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_a_quota_or_max() {
        let at = |count, period_us| Ok(Pace::At(Rate { count, period_us }));
        assert_eq!(pace("20_000"), at(20_000, 1_000_000));
        assert_eq!(pace("90/minute"), at(90, 60_000_000));
        assert_eq!(pace("max"), Ok(Pace::Max));
        for text in ["", "0", "-1", "fast", "1.5", "unlimited", "none", "0/second"] {
            assert!(pace(text).unwrap_err().contains("or max"), "{text:?}");
        }
    }
}
