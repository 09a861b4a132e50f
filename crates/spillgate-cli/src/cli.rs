//! The command line: commands, flags and their help. What the flags mean is said in `config`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use spillgate_tools::{BenchArgs, ImportArgs, SimulateArgs, attribute};

/// Spillgate limits rates for a whole fleet: exact, fast, and honest about failure.
#[derive(Debug, Parser)]
#[command(name = "spillgate", version, after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(ServeArgs),
    Check(CheckArgs),
    Explain(ExplainArgs),
    Top(TopArgs),
    Validate(ValidateArgs),
    Simulate(Box<SimulateArgs>),
    Bench(Box<BenchArgs>),
    Doctor(DoctorArgs),
    Import(ImportArgs),
    Scripts(ScriptsArgs),
}

/// Answers checks, and operators on a door of their own, until SIGTERM or Ctrl-C.
///
/// Settings come from the flags, then from the environment (SPILLGATE_STORE__URL is `url` under
/// `[store]`), then from the file. Without any: only this machine is answered, no rules, state in
/// memory.
#[derive(Args, Debug)]
#[command(after_help = SERVE_EXAMPLES, verbatim_doc_comment)]
pub(crate) struct ServeArgs {
    /// Rules and settings, as `spillgate validate` checks them
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// State in this Redis or Valkey, shared with every process that names it
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,

    /// Where the HTTP door listens; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http: Option<String>,

    /// Where Envoy's rate limit service listens, or "off" [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) grpc: Option<String>,

    /// Where Redis clients are answered, or "off" [default: 127.0.0.1:6380]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) resp: Option<String>,

    /// Where health, metrics and the admin door listen, or "off" [default: 127.0.0.1:8082]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) admin: Option<String>,
}

/// Asks once whether something may happen now, and charges it if so.
///
/// Give attributes for the rules of the policy to meet, or --key and --quota for a limit that
/// comes with the question. A cost of 0 looks without charging.
#[derive(Args, Debug)]
#[command(after_help = CHECK_EXAMPLES, verbatim_doc_comment)]
pub(crate) struct CheckArgs {
    /// Attributes of the request: ip=203.0.113.7 route=/login
    #[arg(value_name = "NAME=VALUE", value_parser = attribute)]
    pub(crate) attributes: Vec<(String, String)>,

    /// The server to ask
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) url: String,

    /// Ask this Redis or Valkey directly, without a server
    #[arg(long, value_name = "URL", conflicts_with = "url")]
    pub(crate) redis: Option<String>,

    /// Rules and settings to ask it by
    #[arg(long, value_name = "FILE", requires = "redis")]
    pub(crate) config: Option<PathBuf>,

    /// The domain of the rules, or of the key [default: default]
    #[arg(long)]
    pub(crate) domain: Option<String>,

    /// What it costs: a number of requests, or by unit: requests=1,tokens=900 [default: 1]
    #[arg(long, value_parser = cost, allow_hyphen_values = true)]
    pub(crate) cost: Option<Cost>,

    /// Who is limited, where the limit comes with the question
    #[arg(long, requires = "quota", conflicts_with = "attributes")]
    pub(crate) key: Option<String>,

    /// The limit: 5/minute, 100/30s, 1_000_000/day
    #[arg(long, requires = "key")]
    pub(crate) quota: Option<String>,

    /// How much may pass at once; token buckets only [default: the quota's count]
    #[arg(long, value_name = "NUMBER", requires = "quota")]
    pub(crate) burst: Option<u64>,

    /// token-bucket, fixed-window, sliding-log or sliding-window [default: token-bucket]
    #[arg(long, value_name = "NAME", requires = "quota")]
    pub(crate) algorithm: Option<String>,

    /// Print the server's JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Tells why a request would be decided as it would, and what a raise would change.
///
/// Nothing is charged. It asks the admin door of a server, or a store directly.
#[derive(Args, Debug)]
#[command(after_help = EXPLAIN_EXAMPLES, verbatim_doc_comment)]
pub(crate) struct ExplainArgs {
    /// Attributes of the request: ip=203.0.113.7 route=/login
    #[arg(value_name = "NAME=VALUE", value_parser = attribute)]
    pub(crate) attributes: Vec<(String, String)>,

    /// The admin door of the server to ask
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8082")]
    pub(crate) url: String,

    /// The file with that door's token, if it asks for one
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// Ask this Redis or Valkey directly, without a server
    #[arg(long, value_name = "URL", conflicts_with_all = ["url", "token_file"])]
    pub(crate) redis: Option<String>,

    /// Rules and settings to ask it by
    #[arg(long, value_name = "FILE", requires = "redis")]
    pub(crate) config: Option<PathBuf>,

    /// The domain of the rules [default: default]
    #[arg(long)]
    pub(crate) domain: Option<String>,

    /// What it would cost: a number of requests, or by unit: requests=1,tokens=900 [default: 1]
    #[arg(long, value_parser = cost, allow_hyphen_values = true)]
    pub(crate) cost: Option<Cost>,

    /// Print the server's JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Shows who uses most and who is refused most, by rule, as one server has seen it of late.
///
/// In a terminal it refreshes every second, until Ctrl-C.
#[derive(Args, Debug)]
#[command(after_help = TOP_EXAMPLES, verbatim_doc_comment)]
pub(crate) struct TopArgs {
    /// Of this rule only
    #[arg(long, value_name = "NAME")]
    pub(crate) rule: Option<String>,

    /// So many subjects of each rule
    #[arg(short, long, default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) number: u8,

    /// The admin door of the server to ask
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8082")]
    pub(crate) url: String,

    /// The file with that door's token, if it asks for one
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// Show it once, in a terminal too
    #[arg(long)]
    pub(crate) once: bool,

    /// Print the server's JSON, once
    #[arg(long)]
    pub(crate) json: bool,
}

/// Tells whether a file of rules and settings loads, and what is odd about it.
///
/// And in which order its rules are judged, and what they come to while the store is out of reach.
#[derive(Args, Debug)]
#[command(after_help = VALIDATE_EXAMPLES, verbatim_doc_comment)]
pub(crate) struct ValidateArgs {
    /// The file
    #[arg(value_name = "FILE", required_unless_present = "schema")]
    pub(crate) file: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// End with 1 where there are warnings
    #[arg(long, value_name = "LEVEL")]
    pub(crate) deny: Option<Deny>,

    /// Tell what becomes of the state that this file left
    #[arg(long, value_name = "OLD")]
    pub(crate) against: Option<PathBuf>,

    /// Tell what the state of so many subjects takes, rule by rule
    #[arg(long, value_name = "NUMBER")]
    pub(crate) subjects: Option<u64>,

    /// Print the JSON Schema of the file, for editors, and nothing else
    #[arg(long, conflicts_with_all = ["file", "json", "deny", "against", "subjects"])]
    pub(crate) schema: bool,
}

/// What ends `spillgate validate` with 1 beside a file that does not load.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Deny {
    Warnings,
}

/// Looks at the store: how it is set up, how fast it is, and whether limits hold there.
///
/// Each finding says what is so, why it matters, and the command that mends it. A key of its own is
/// charged by the real script, and removed again.
#[derive(Args, Debug)]
#[command(after_help = DOCTOR_EXAMPLES, verbatim_doc_comment)]
pub(crate) struct DoctorArgs {
    /// Rules and settings, as `spillgate serve` would take them
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// The Redis or Valkey to look at
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Print the command that makes a user who may do what Spillgate needs, and nothing else
    #[arg(long, conflicts_with_all = ["config", "redis", "json"])]
    pub(crate) acl: bool,
}

/// Prints the store's scripts, or loads them ahead of the first call.
///
/// One decides; one takes tokens ahead, for rules with a lease.
#[derive(Args, Debug)]
#[command(after_help = SCRIPTS_EXAMPLES, verbatim_doc_comment)]
pub(crate) struct ScriptsArgs {
    #[command(subcommand)]
    pub(crate) what: Scripts,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Scripts {
    /// Prints the script that decides, and its SHA1 on the error output
    Print {
        /// The one for servers before Redis 7.0
        #[arg(long)]
        plain: bool,

        /// The one that takes tokens ahead
        #[arg(long)]
        leases: bool,
    },
    /// Loads both into every server, and checks the SHA1s that each answers
    Load {
        /// A Redis or Valkey; once for each
        #[arg(long, value_name = "URL")]
        redis: Vec<String>,

        /// Settings, as `spillgate serve` would take them: every node of their store
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

/// A cost as it goes into the body of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    Requests(u64),
    ByUnit(Vec<(String, u64)>),
}

fn cost(text: &str) -> Result<Cost, String> {
    let amount = |text: &str| text.parse::<u64>().map_err(|_| COST_HELP.to_owned());
    if !text.contains('=') {
        return amount(text).map(Cost::Requests);
    }
    let by_unit = text.split(',').map(|part| {
        let (unit, text) = part.split_once('=').ok_or(COST_HELP)?;
        Ok((unit.to_owned(), amount(text)?))
    });
    by_unit.collect::<Result<_, String>>().map(Cost::ByUnit)
}

const COST_HELP: &str =
    "write a whole number such as 5, or whole numbers by unit such as requests=1,tokens=900";

const EXAMPLES: &str = "\
Examples:
  spillgate serve
  spillgate serve --redis redis://127.0.0.1:6379 --config limits.toml
  spillgate check --key u1 --quota 5/minute
  spillgate explain ip=203.0.113.7
  spillgate validate limits.toml
  spillgate simulate --config limits.toml access.log
  spillgate bench zipf --redis redis://127.0.0.1:6379 --against evalsha
  spillgate doctor --redis redis://127.0.0.1:6379

Exit codes: 0 done, 2 error; `check`, `validate`, `simulate` and `doctor` list theirs in their help.";

const SERVE_EXAMPLES: &str = "\
Examples:
  spillgate serve
  spillgate serve --redis redis://127.0.0.1:6379
  spillgate serve --config limits.toml --http 127.0.0.1:9090
  SPILLGATE_STORE__TIMEOUT=10ms spillgate serve --config limits.toml

  curl -s localhost:8080/v1/check -d '{\"key\":\"u1\",\"limit\":{\"quota\":\"5/minute\"}}'";

const CHECK_EXAMPLES: &str = "\
Examples:
  spillgate check --key u1 --quota 5/minute
  spillgate check ip=203.0.113.7 route=/login
  spillgate check --domain web --cost requests=1,tokens=900 tenant=acme
  spillgate check --redis redis://127.0.0.1:6379 --config limits.toml ip=203.0.113.7

Exit codes: 0 allowed, 1 denied, 2 error.";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  spillgate explain ip=203.0.113.7 route=/login
  spillgate explain --domain web --cost tokens=900 tenant=acme
  spillgate explain --redis redis://127.0.0.1:6379 --config limits.toml ip=203.0.113.7

Exit codes: 0 explained, allowed or denied, 2 error.";

const TOP_EXAMPLES: &str = "\
Examples:
  spillgate top
  spillgate top --rule login -n 20
  spillgate top --url http://10.0.0.7:8082 --token-file admin.token --json

Exit codes: 0 shown, 2 error.";

const VALIDATE_EXAMPLES: &str = "\
Examples:
  spillgate validate limits.toml
  spillgate validate --json --deny warnings limits.toml
  spillgate validate --against in-force.toml --subjects 100000 limits.toml
  spillgate validate --schema > spillgate.schema.json

Exit codes: 0 it loads, 1 it does not or has warnings that are denied, 2 error.";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  spillgate doctor --redis redis://127.0.0.1:6379
  spillgate doctor --config limits.toml --json
  spillgate doctor --acl

Exit codes: 0 safe, 1 something is unsafe, 2 error.";

const SCRIPTS_EXAMPLES: &str = "\
Examples:
  spillgate scripts print > check.lua
  spillgate scripts print --leases > lease.lua
  spillgate scripts load --redis redis://10.0.0.1:6379 --redis redis://10.0.0.2:6379
  spillgate scripts load --config limits.toml

Exit codes: 0 done, 2 error.";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_cost_is_a_number_or_numbers_by_unit() {
        let by_unit = vec![("requests".to_owned(), 1), ("tokens".to_owned(), 900)];
        assert_eq!(cost("5"), Ok(Cost::Requests(5)));
        assert_eq!(cost("18446744073709551615"), Ok(Cost::Requests(u64::MAX)));
        assert_eq!(cost("requests=1,tokens=900"), Ok(Cost::ByUnit(by_unit)));
        for text in ["", "-1", "1.5", "tokens", "tokens=", "tokens=1,", "18446744073709551616"] {
            assert_eq!(cost(text), Err(COST_HELP.to_owned()), "{text:?}");
        }
    }
}
