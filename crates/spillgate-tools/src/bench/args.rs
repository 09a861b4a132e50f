//! The flags of `spillgate bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use jiff::SignedDuration;
use serde::Serialize;

use super::subjects::{SUBJECTS_MAX, Scenario};
use crate::flag::{attribute, whole_number};

/// Makes calls to the limiter or to a server, and reports its speed and its decisions.
///
/// Without --url it checks the library in this process, over the store of --redis or --config, or in
/// memory. Calls are made on time even while answers are late, and times count from when a call was
/// due: if the target stalls for a second, every call of that second is late, as for users.
/// Ctrl-C ends it early and reports the answers so far.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct BenchArgs {
    /// steady, hot-key or zipf
    #[arg(value_name = "SCENARIO", default_value = "steady", value_parser = scenario)]
    pub(crate) scenario: Scenario,

    /// Calls a second; or max: each caller calls again when answered
    #[arg(long, value_name = "NUMBER", default_value = "10000", value_parser = pace)]
    pub(crate) rate: Pace,

    /// How long each target is called: 500ms, 10s, 5m
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = length)]
    pub(crate) duration: Duration,

    /// The most calls that wait for answers at once; to a server each has a connection
    #[arg(long, value_name = "NUMBER", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) callers: u32,

    /// How many subjects [default: 1000; zipf 100000]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=SUBJECTS_MAX))]
    pub(crate) subjects: Option<u64>,

    /// The inline limit of each subject
    #[arg(long, default_value = "100/second", conflicts_with = "by")]
    pub(crate) quota: String,

    /// How many calls pass at once; token buckets only [default: the quota's count]
    #[arg(long, value_name = "NUMBER", value_parser = whole_number)]
    pub(crate) burst: Option<u64>,

    /// The algorithm, by its name in a policy [default: token-bucket]
    #[arg(long, value_name = "NAME")]
    pub(crate) algorithm: Option<String>,

    /// Check by the rules; this attribute has the subject, an address
    #[arg(long, value_name = "ATTRIBUTE", conflicts_with_all = ["burst", "algorithm", "against"])]
    pub(crate) by: Option<String>,

    /// An attribute that all requests have: route=/login
    #[arg(long, value_name = "NAME=VALUE", requires = "by", value_parser = attribute)]
    pub(crate) with: Vec<(String, String)>,

    /// The domain of the rules
    #[arg(long, default_value = "default", requires = "by")]
    pub(crate) domain: String,

    /// The HTTP API of a server: http://HOST:PORT
    #[arg(long, value_name = "URL", conflicts_with_all = ["redis", "config", "against"])]
    pub url: Option<String>,

    /// The file with the server's token, if it requires one
    #[arg(long, value_name = "FILE", requires = "url")]
    pub(crate) token_file: Option<PathBuf>,

    /// The library over this Redis or Valkey
    #[arg(long, value_name = "URL")]
    pub redis: Option<String>,

    /// The library with these settings and rules: a Cluster, Sentinels, a ring
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Call this baseline in turns: evalsha
    #[arg(long, value_name = "BASELINE", hide_possible_values = true)]
    pub(crate) against: Option<Baseline>,

    /// How long an answer may take
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = patience)]
    pub(crate) timeout: Duration,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How often calls are made: in JSON a number, or `null`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Pace {
    /// So many calls a second, at due times that do not depend on the answers: an open loop.
    PerSecond(u64),
    /// Each caller calls again when it is answered: a closed loop.
    Max,
}

/// The baselines of `--against`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Baseline {
    /// The shortest correct token bucket, one script call for each check.
    Evalsha,
}

fn scenario(text: &str) -> Result<Scenario, String> {
    match text {
        "burst" | "outage" => {
            Err(format!("run examples/load/run instead: it has {text}.js for k6"))
        }
        "many-tenants" => Err("write steady --subjects 1000000 instead".to_owned()),
        _ => {
            Scenario::from_str(text, false).map_err(|_| "write steady, hot-key or zipf".to_owned())
        }
    }
}

fn pace(text: &str) -> Result<Pace, String> {
    match text.replace('_', "").parse() {
        _ if text == "max" => Ok(Pace::Max),
        Ok(per_second @ 1..=RATE_MAX) => Ok(Pace::PerSecond(per_second)),
        _ => Err(format!("write calls a second such as 20000, at most {RATE_MAX}, or max")),
    }
}

fn length(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_millis(100), Duration::from_secs(86_400))
        .ok_or_else(|| "write a time from 100ms to 24h, such as 10s".to_owned())
}

fn patience(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_millis(1), Duration::from_secs(60))
        .ok_or_else(|| "write a time from 1ms to 60s, such as 500ms".to_owned())
}

fn within(text: &str, shortest: Duration, longest: Duration) -> Option<Duration> {
    let parsed = Duration::try_from(text.parse::<SignedDuration>().ok()?).ok()?;
    (shortest..=longest).contains(&parsed).then_some(parsed)
}

/// One thread sends all calls, and each takes it a microsecond.
const RATE_MAX: u64 = 1_000_000;

const EXAMPLES: &str = "\
Examples:
  spillgate bench
  spillgate bench zipf --redis redis://127.0.0.1:6379 --rate 50000 --against evalsha
  spillgate bench hot-key --config limits.toml --by tenant --with route=/search
  spillgate bench --url http://127.0.0.1:8080 --by ip --rate max

Scenarios: steady: the subjects in turn; hot-key: nine of ten calls for one subject; zipf: the n-th
  subject makes 1/n as many calls as the first.

The baseline evalsha is the shortest correct token bucket, one script call for each check. It is
  called in turns with the limiter, by the same clients, and ratios are medians of five pairs.

Exit codes: 0 measured, however slow, 2 error.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_or_max() {
        assert_eq!(pace("20_000"), Ok(Pace::PerSecond(20_000)));
        assert_eq!(pace("max"), Ok(Pace::Max));
        for text in ["", "0", "-1", "fast", "1.5", "90/minute", "1000001"] {
            assert!(pace(text).unwrap_err().contains("or max"), "{text:?}");
        }
    }

    #[test]
    fn a_time_has_a_unit_and_bounds() {
        assert_eq!(length("1h30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(patience("250ms"), Ok(Duration::from_millis(250)));
        for text in ["", "10", "0s", "-5s", "99ms", "25h", "fortnight"] {
            assert!(length(text).unwrap_err().contains("100ms to 24h"), "{text:?}");
        }
    }
}
