//! The command line of `spillgate admin`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};
use spillgate_tools::{attribute, whole_number};

use super::{AdminApi, Cost, cost};

/// Changes rules and subjects of running servers, and lists what is in force and who changed what.
///
/// A change reaches every server on the same store within a second. While the store is down it is
/// in force at once at the server asked, and everywhere after the store is back: then ask each
/// server. The audit lists each change with its actor, which is the name of the token.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, verbatim_doc_comment, arg_required_else_help = true)]
pub(crate) struct AdminArgs {
    #[command(subcommand)]
    pub(crate) action: Action,

    #[command(flatten)]
    pub(crate) api: AdminApi,

    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Sets the mode of a rule; `off` is the kill switch
    Mode(ModeArgs),
    /// Gives a subject other limits
    Override(OverrideArgs),
    /// Blocks a subject: nothing is allowed
    Block(BlockArgs),
    /// Removes the block or the other limits of a subject
    #[command(visible_alias = "remove")]
    Unblock(UnblockArgs),
    /// Returns quota to a subject
    Refund(RefundArgs),
    /// Resets the counters of a subject, or of a whole rule
    Reset(ResetArgs),
    /// Lists the rules with their modes and limits
    Rules,
    /// Lists the overrides and blocks that were set while running, the oldest first
    Overrides(OverridesArgs),
    /// Sets the overrides and blocks of a file that `overrides --export` wrote
    Import(FileArgs),
    /// Lists the last changes, the newest first
    Audit(AuditArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ModeArgs {
    /// The name of the rule
    pub(crate) rule: String,

    /// The mode; `file` is that of the policy file
    pub(crate) mode: NewMode,

    #[command(flatten)]
    pub(crate) expiry: Expiry,

    #[command(flatten)]
    pub(crate) note: Note,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NewMode {
    Enforce,
    Shadow,
    Off,
    File,
}

#[derive(Args, Debug)]
pub(crate) struct OverrideArgs {
    #[command(flatten)]
    pub(crate) subject: Subject,

    /// 1000/minute, or NAME=1000/minute for a named limit; repeatable
    #[arg(long, required = true)]
    pub(crate) quota: Vec<String>,

    /// The most that the first limit allows at once; token buckets only
    #[arg(long, value_name = "NUMBER", value_parser = whole_number)]
    pub(crate) burst: Option<u64>,

    #[command(flatten)]
    pub(crate) expiry: Expiry,

    #[command(flatten)]
    pub(crate) note: Note,
}

#[derive(Args, Debug)]
pub(crate) struct BlockArgs {
    #[command(flatten)]
    pub(crate) subject: Subject,

    #[command(flatten)]
    pub(crate) expiry: Expiry,

    #[command(flatten)]
    pub(crate) note: Note,
}

#[derive(Args, Debug)]
pub(crate) struct UnblockArgs {
    #[command(flatten)]
    pub(crate) subject: Subject,

    #[command(flatten)]
    pub(crate) note: Note,
}

#[derive(Args, Debug)]
pub(crate) struct RefundArgs {
    #[command(flatten)]
    pub(crate) subject: Subject,

    /// Requests to return, or numbers by unit: tokens=900
    #[arg(long, value_parser = cost, default_value = "1")]
    pub(crate) cost: Cost,

    #[command(flatten)]
    pub(crate) note: Note,
}

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("whose").required(true).args(["attributes", "all"])))]
// Generated, it would name the group first.
#[command(
    override_usage = "spillgate admin reset [OPTIONS] <RULE> <NAME=VALUE>...\n       spillgate admin reset [OPTIONS] <RULE> --all"
)]
pub(crate) struct ResetArgs {
    /// The name of the rule
    pub(crate) rule: String,

    /// Attributes of the subject: ip=203.0.113.7
    #[arg(value_name = "NAME=VALUE", value_parser = attribute)]
    pub(crate) attributes: Vec<(String, String)>,

    /// All subjects of the rule
    #[arg(long)]
    pub(crate) all: bool,

    #[command(flatten)]
    pub(crate) note: Note,
}

#[derive(Args, Debug)]
pub(crate) struct OverridesArgs {
    /// Only subjects with these attributes, by part of the value: tenant=acme; an address also finds its networks
    #[arg(value_name = "NAME=PART", value_parser = attribute)]
    pub(crate) attributes: Vec<(String, String)>,

    /// Only overrides of this rule
    #[arg(long, value_name = "NAME")]
    pub(crate) rule: Option<String>,

    /// Print a line of JSON for each, which `admin import` takes
    #[arg(long, conflicts_with = "json")]
    pub(crate) export: bool,
}

#[derive(Args, Debug)]
pub(crate) struct FileArgs {
    /// The file, with an override in JSON on each line; - for the standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Check the file and print what would be set
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Args, Debug)]
pub(crate) struct AuditArgs {
    /// Only changes of this rule
    #[arg(long, value_name = "NAME")]
    pub(crate) rule: Option<String>,

    /// The most changes to list [default: 20, or 10000 with --since or --export]
    #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) number: Option<u16>,

    /// Only changes after this: 2h for the last two hours, or 2030-01-31T18:00:00Z
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub(crate) since: Option<Timestamp>,

    /// Print a line of JSON for each change, the oldest first
    #[arg(long, conflicts_with_all = ["json", "number"])]
    pub(crate) export: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Subject {
    /// The name of the rule
    pub(crate) rule: String,

    /// Attributes of the subject: ip=203.0.113.7
    #[arg(value_name = "NAME=VALUE", value_parser = attribute, required = true)]
    pub(crate) attributes: Vec<(String, String)>,
}

#[derive(Args, Debug)]
pub(crate) struct Expiry {
    /// How long it holds: 90s, 30m, 2h or 7d [default: until it is removed]
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) lasting: Option<SignedDuration>,

    /// When it ends: 2030-01-31T18:00:00Z
    #[arg(long, value_name = "INSTANT", conflicts_with = "lasting", value_parser = instant)]
    pub(crate) until: Option<Timestamp>,
}

#[derive(Args, Debug)]
pub(crate) struct Note {
    /// Why, for the audit and the log
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

impl Expiry {
    /// Returns the instant of the end, if there is one.
    pub(crate) fn at(&self, now: Timestamp) -> Option<Timestamp> {
        self.until.or_else(|| now.checked_add(self.lasting?).ok())
    }
}

fn duration(text: &str) -> Result<SignedDuration, String> {
    let duration =
        text.parse::<Span>().and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()));
    let bounded = duration.ok().filter(|time| (1..=LASTING_MAX_S).contains(&time.as_secs()));
    bounded.ok_or_else(|| "write a time up to 366d such as 90s, 30m, 2h or 7d".to_owned())
}

fn instant(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|_| "write an instant such as 2030-01-31T18:00:00Z".to_owned())
}

/// Reads an instant, or the time that has passed since then.
fn since(text: &str) -> Result<Timestamp, String> {
    let ago = |time| Timestamp::now().checked_sub(time).ok();
    let since = duration(text).ok().and_then(ago).or_else(|| instant(text).ok());
    since.ok_or_else(|| {
        "write a time such as 2h, or an instant such as 2030-01-31T18:00:00Z".to_owned()
    })
}

/// Longer changes belong into the policy file.
const LASTING_MAX_S: i64 = 366 * 86_400;

const EXAMPLES: &str = "\
Examples:
  spillgate admin mode api off --reason 'incident 4711'
  spillgate admin mode api file
  spillgate admin override api tenant=acme --quota 1000/minute --for 1h
  spillgate admin block login ip=203.0.113.7 --for 30m --reason scraper
  spillgate admin unblock login ip=203.0.113.7
  spillgate admin refund api tenant=acme --cost tokens=900
  spillgate admin reset api tenant=acme
  spillgate admin rules
  spillgate admin overrides tenant=acme
  spillgate admin overrides --export > overrides.jsonl
  spillgate admin import overrides.jsonl --dry-run
  spillgate admin audit -n 5
  spillgate admin audit --export --since 24h >> audit.jsonl
  spillgate admin mode api off --url http://10.0.0.7:8082

Exit codes: 0 in force where asked, and within a second everywhere; 1 in force where asked, but a\n  shard gets it later; 2 error.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit_and_lasts_a_year_at_most() {
        for (text, seconds) in [("90s", 90), ("30m", 1_800), ("2h", 7_200), ("366d", LASTING_MAX_S)]
        {
            assert_eq!(duration(text), Ok(SignedDuration::from_secs(seconds)), "{text}");
        }
        for text in ["", "s", "0s", "5", "-1h", "367d", "1mo", "1é"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }
}
