//! The flags of `spillgate bench`.

use std::path::PathBuf;

use clap::Args;

use super::{Pace, SUBJECTS_MAX, Scenario, Yardstick};
use crate::flag::{attribute, choice};
use crate::simulate::duration::positive;
use crate::simulate::{Rate, rate};

/// Puts a load to the limiter or to a server, and tells how fast it answered, and what.
///
/// Without --url it asks the library in this process, over the store of --redis or --config, or in
/// memory. Calls are made on time whatever the answers, and times count from when a call was due: a
/// target that stands still for a second makes late all that was due meanwhile, as for users.
/// Ctrl-C ends it early and tells what was answered so far.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct BenchArgs {
    /// steady, burst, hot-key, zipf, many-tenants or failover
    #[arg(value_name = "SCENARIO", default_value = "steady", value_parser = scenario)]
    pub(crate) scenario: Scenario,

    /// So many calls in all: 20000 (a second), 90/minute; or max: each caller asks when answered
    #[arg(long, value_name = "RATE", default_value = "10000", value_parser = pace)]
    pub(crate) rate: Pace,

    /// For how long each contender is asked: 500ms, 10s, 5m
    #[arg(long = "duration", value_name = "TIME", default_value = "10s", value_parser = length)]
    pub(crate) duration_us: u64,

    /// So many calls wait for answers at most
    #[arg(long, value_name = "NUMBER", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) callers: u32,

    /// To the store [default: as set], or to the door [default: 8; http:// one for each caller]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) connections: Option<u32>,

    /// How many ask [default: 1000; zipf 100000; many-tenants 1000000]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=SUBJECTS_MAX))]
    pub(crate) subjects: Option<u64>,

    /// Other numbers, other chances; the same number, the same calls
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,

    /// The limit of each subject, which comes with the question [default: 100/second]
    #[arg(long)]
    pub(crate) quota: Option<String>,

    /// How much may pass at once; token buckets only [default: the quota's count]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) burst: Option<u64>,

    /// token-bucket, fixed-window, sliding-log or sliding-window [default: token-bucket]
    #[arg(long, value_name = "NAME")]
    pub(crate) algorithm: Option<String>,

    /// Ask by rules instead, of --config or of the server: this attribute is the subject
    #[arg(long, value_name = "ATTRIBUTE", conflicts_with_all = ["quota", "burst", "algorithm", "against"])]
    pub(crate) by: Option<String>,

    /// An attribute that all requests have: route=/login
    #[arg(long, value_name = "NAME=VALUE", requires = "by", value_parser = attribute)]
    pub(crate) with: Vec<(String, String)>,

    /// The domain of the rules [default: default]
    #[arg(long, requires = "by")]
    pub(crate) domain: Option<String>,

    /// A door: http://HOST:PORT, grpc://HOST:PORT (Envoy), resp://[:PASSWORD@]HOST:PORT
    #[arg(long, value_name = "URL", conflicts_with_all = ["redis", "config"])]
    pub(crate) url: Option<String>,

    /// The file with the door's token, if it asks for one
    #[arg(long, value_name = "FILE", requires = "url")]
    pub(crate) token_file: Option<PathBuf>,

    /// The library over this Redis or Valkey
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,

    /// The library with these settings and rules: a Cluster, Sentinels, a ring
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Ask these the same in turns: evalsha, redis (INCR), governor
    #[arg(long, value_name = "YARDSTICKS", value_delimiter = ',', value_parser = yardstick)]
    pub(crate) against: Vec<Yardstick>,

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

fn scenario(text: &str) -> Result<Scenario, String> {
    choice(text, &Scenario::NAMES)
}

fn yardstick(text: &str) -> Result<Yardstick, String> {
    choice(text, &Yardstick::NAMES)
}

fn pace(text: &str) -> Result<Pace, String> {
    let help = "write so many a second such as 20000, so many in so long such as 90/minute, or max";
    if text == "max" {
        return Ok(Pace::Max);
    }
    let told = match text.replace('_', "").parse() {
        Ok(count) => Rate { count, period_us: 1_000_000 },
        Err(_) => rate(text).map_err(|_| help.to_owned())?,
    };
    if told.count == 0 { Err(help.to_owned()) } else { Ok(Pace::At(told)) }
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

/// Shorter ones measure the start.
const LENGTH_MIN_US: u64 = 100_000;
const LENGTH_MAX_US: u64 = 86_400_000_000;
/// A caller that waits longer for a verdict has left.
const PATIENCE_MAX_US: u64 = 60_000_000;

const EXAMPLES: &str = "\
Examples:
  spillgate bench
  spillgate bench zipf --redis redis://127.0.0.1:6379 --rate 50000 --against evalsha
  spillgate bench hot-key --config limits.toml --by tenant --with route=/search
  spillgate bench burst --url http://127.0.0.1:8080 --rate 5000 --duration 1m --svg burst.svg
  spillgate bench steady --url grpc://127.0.0.1:8081 --by ip --rate max
  spillgate bench failover --rate 2000 --json

Scenarios: steady: evenly spaced, subjects in turn; burst: all of a second in its first tenth;
  hot-key: nine of ten calls for one subject; zipf: the n-th of many asks 1/n as often as the first;
  many-tenants: a million subjects, all alike; failover: steady, while a redis-server started for
  this is killed and comes back empty.

Yardsticks are asked in turns with the limiter, by the same clients, and ratios are medians of five
  pairs: evalsha is the shortest correct token bucket, redis an INCR that limits nothing, governor
  a keyed limiter in this process.

Exit codes: 0 measured, however slow, 3 error.";

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
