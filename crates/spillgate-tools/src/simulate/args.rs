//! The flags of `spillgate simulate`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::duration::{self, positive};
use super::{Condition, Format, Mapping, Rate, SUBJECTS_MAX, Shape, condition, mapping, rate};
use crate::flag::attribute;

/// Replays an access log or made-up traffic, and reports the denied requests.
///
/// Time is the log's own: a day takes seconds to replay, and every decision is the one that
/// `spillgate serve` would have made. Logs are in the Common or Combined format, JSON lines or CSV,
/// plain or packed by gzip; the format is detected. Paths, addresses and methods are normalised as
/// by the forward-auth API. No server and no store is contacted.
#[derive(Args, Debug)]
#[command(
    after_help = EXAMPLES,
    verbatim_doc_comment,
    group = ArgGroup::new("rules").args(["config", "quota"]).required(true),
    group = ArgGroup::new("traffic").args(["logs", "pattern"]).required(true),
)]
pub struct SimulateArgs {
    /// Access logs, in the order of time; - is the standard input
    #[arg(value_name = "LOG")]
    pub(crate) logs: Vec<String>,

    /// The rules to try, as `spillgate serve` would load them
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Other rules for the same traffic, to show where they decide differently
    #[arg(long, value_name = "FILE")]
    pub(crate) against: Option<PathBuf>,

    /// One limit instead of a file of rules: 5/minute, 100/30s
    #[arg(long)]
    pub(crate) quota: Option<String>,

    /// How many requests pass at once; token buckets only [default: the quota's count]
    #[arg(long, value_name = "NUMBER", conflicts_with = "config")]
    pub(crate) burst: Option<u64>,

    /// Its algorithm, or several to compare: fixed-window,sliding-log [default: token-bucket]
    #[arg(long, value_name = "NAMES", conflicts_with = "config", value_delimiter = ',')]
    pub(crate) algorithm: Vec<String>,

    /// The attributes that name the subject [default: ip]
    #[arg(long, value_name = "NAMES", conflicts_with = "config", value_delimiter = ',')]
    pub(crate) key: Vec<String>,

    /// Made-up traffic instead of a log: steady, bursty, boundary or zipf
    #[arg(long, value_name = "SHAPE", value_enum, hide_possible_values = true)]
    pub(crate) pattern: Option<Shape>,

    /// How many requests in all: 50/second [default: fits the first limit]
    #[arg(long, value_name = "QUOTA", conflicts_with = "logs", value_parser = rate)]
    pub(crate) rate: Option<Rate>,

    /// For how long: 10m, 1h30m, 7d [default: fits the first limit]
    #[arg(long = "for", value_name = "TIME", conflicts_with = "logs", value_parser = positive)]
    pub(crate) length_us: Option<u64>,

    /// How many subjects [default: 1; bursty 5; zipf 1000]
    #[arg(long, value_name = "NUMBER", conflicts_with = "logs", value_parser = clap::value_parser!(u64).range(1..=SUBJECTS_MAX))]
    pub(crate) subjects: Option<u64>,

    /// Seeds the random traffic; the same number makes the same requests
    #[arg(long, value_name = "NUMBER", conflicts_with = "logs", default_value_t = 1)]
    pub(crate) seed: u64,

    /// An attribute that all made-up requests have: route=/login
    #[arg(long, value_name = "NAME=VALUE", conflicts_with = "logs", value_parser = attribute)]
    pub(crate) with: Vec<(String, String)>,

    /// The domain of all requests [default: default]
    #[arg(long)]
    pub(crate) domain: Option<String>,

    /// common, combined, json or csv [default: detected]
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with = "pattern",
        value_enum,
        hide_possible_values = true
    )]
    pub(crate) format: Option<Format>,

    /// The field of an attribute, or of the time: user=account.id; usual names need none
    #[arg(long, value_name = "ATTRIBUTE=FIELD", conflicts_with = "pattern", value_parser = mapping)]
    pub(crate) map: Vec<Mapping>,

    /// A field with a cost besides one request, in the unit of its name, or tokens=FIELD
    #[arg(long, value_name = "[UNIT=]FIELD", conflicts_with = "pattern")]
    pub(crate) cost_from: Option<String>,

    /// How much later than in order a line may come and still be put in order
    #[arg(long, value_name = "TIME", conflicts_with = "pattern", default_value = "10s", value_parser = duration::parse)]
    pub(crate) delay: u64,

    /// Spread the requests of one second over it, for a log that has whole seconds only
    #[arg(long, conflicts_with = "pattern")]
    pub(crate) spread: bool,

    /// Stop at a line that cannot be read, instead of counting it
    #[arg(long, conflicts_with = "pattern")]
    pub(crate) strict: bool,

    /// Draw this subject's allowed requests in any one window, beside its limit: ip=203.0.113.7
    #[arg(long, value_name = "NAME=VALUE", value_parser = attribute)]
    pub(crate) follow: Vec<(String, String)>,

    /// How many of the most denied subjects to show
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub(crate) top: u16,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Exit 1 if this holds for the first policy; may be repeated
    #[arg(long, value_name = "CONDITION", value_parser = condition)]
    pub(crate) fail_if: Vec<Condition>,
}

const EXAMPLES: &str = "\
Examples:
  spillgate simulate --config limits.toml access.log.1.gz access.log
  spillgate simulate --config limits.toml --against today.toml --fail-if 'newly-denied>0' a.log
  spillgate simulate --config limits.toml --map tenant=org.id --cost-from tokens=usage app.json
  spillgate simulate --quota 100/minute --key user access.log
  spillgate simulate --quota 9/s --algorithm fixed-window,sliding-log --pattern boundary
  kubectl logs deploy/web | spillgate simulate --config limits.toml -

Fields: by name, a.b.c within JSON, #3 for the third column of CSV, query:NAME for a parameter of
  the request's query. They hold the attributes of the rules, and time.

Patterns: bursty sends twice the capacity at once, boundary a burst before and after the end of a
  window; with zipf the n-th subject makes 1/n as many requests as the first.

Conditions: NAME or NAME(RULE), one of > >= < <= =, and a number or, of all requests, a percentage.
  denied, cost-exceeds-limit (a part of denied), subjects-denied,
  would-deny (by shadow and post-paid rules)                                 of all, or of one rule
  unmatched (matched no rule), malformed and late (lines)                    of all
  newly-denied, newly-allowed (against --against)                           of all

Exit codes: 0 done, 1 a condition of --fail-if holds, 2 error.";
