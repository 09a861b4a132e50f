//! The flags of `spillgate simulate`.

use std::path::PathBuf;

use clap::Args;

use super::condition::{Condition, condition};
use super::log::{Format, Mapping, mapping};
use crate::duration;

/// Replays an access log, and reports the denied requests.
///
/// Time is the log's own: a day takes seconds to replay, and every decision is the one that
/// `spillgate serve` would have made. Logs are in the Common or Combined format, JSON lines or CSV,
/// plain or packed by gzip; the format is detected. Paths, addresses and methods are normalised as
/// by the forward-auth API. No server and no store is contacted.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct SimulateArgs {
    /// Access logs, in the order of time; - is the standard input
    #[arg(value_name = "LOG", required = true)]
    pub(crate) logs: Vec<String>,

    /// The rules to try, as `spillgate serve` would load them
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,

    /// Other rules for the same traffic, to show where they decide differently
    #[arg(long, value_name = "FILE")]
    pub(crate) against: Option<PathBuf>,

    /// The domain of all requests [default: default]
    #[arg(long)]
    pub(crate) domain: Option<String>,

    /// common, combined, json or csv [default: detected]
    #[arg(long, value_name = "NAME", value_enum, hide_possible_values = true)]
    pub(crate) format: Option<Format>,

    /// The field of an attribute, or of the time: user=account.id; usual names need none
    #[arg(long, value_name = "ATTRIBUTE=FIELD", value_parser = mapping)]
    pub(crate) map: Vec<Mapping>,

    /// A field with a cost besides one request, in the unit of its name, or tokens=FIELD
    #[arg(long, value_name = "[UNIT=]FIELD")]
    pub(crate) cost_from: Option<String>,

    /// How much later than in order a line may come and still be put in order
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    pub(crate) delay: u64,

    /// Spread the requests of one second over it, for a log that has whole seconds only
    #[arg(long)]
    pub(crate) spread: bool,

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
  kubectl logs deploy/web | spillgate simulate --config limits.toml -

Fields: by name, a.b.c within JSON, query:NAME for a parameter of the request's query. They hold
  the attributes of the rules, and time. CSV has commas, and names its columns on its first line.

Conditions: NAME or NAME(RULE), one of > >= < <= =, and a number or, of all requests, a percentage.
  denied, cost-exceeds-limit (a part of denied), subjects-denied,
  would-deny (by shadow and post-paid rules)                                 of all, or of one rule
  unmatched (matched no rule), malformed and late (lines)                    of all
  newly-denied, newly-allowed (against --against)                           of all

Exit codes: 0 done, 1 a condition of --fail-if holds, 2 error.";
