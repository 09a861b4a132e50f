//! The command line: commands, flags and their help. `spillgate_server::config` interprets flags that are settings.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use spillgate_tools::{BenchArgs, ImportArgs, SimulateArgs, attribute, whole_number};

mod admin;
mod admin_api;

pub(crate) use admin::{
    Action, AdminArgs, AuditArgs, BlockArgs, Expiry, FileArgs, ModeArgs, NewMode, Note,
    OverrideArgs, OverridesArgs, RefundArgs, ResetArgs, Subject, UnblockArgs,
};
pub(crate) use admin_api::{AdminAccess, AdminApi};

/// Spillgate: one exact rate limit across all your instances, with a stated bound for outages.
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
    Admin(AdminArgs),
    Top(TopArgs),
    Status(StatusArgs),
    Fleet(FleetArgs),
    Denials(DenialsArgs),
    Validate(ValidateArgs),
    Simulate(Box<SimulateArgs>),
    Bench(Box<BenchArgs>),
    Doctor(DoctorArgs),
    Import(ImportArgs),
}

impl Command {
    /// Returns whether the command prints JSON, by its flag `--json`.
    pub(crate) fn prints_json(&self) -> bool {
        match self {
            Command::Check(args) => args.asked.json,
            Command::Explain(args) => args.asked.json,
            Command::Admin(args) => args.json,
            Command::Top(args) => args.json,
            Command::Fleet(args) => args.json,
            Command::Denials(args) => args.json,
            Command::Status(args) => args.json,
            Command::Validate(args) => args.json,
            Command::Simulate(args) => args.json,
            Command::Bench(args) => args.json,
            Command::Doctor(args) => args.json,
            Command::Serve(_) | Command::Import(_) => false,
        }
    }
}

/// Runs the service until SIGTERM or Ctrl-C.
///
/// Flags override the environment (SPILLGATE_STORE__URL is `url` under `[store]`), which overrides
/// the file. By default there are no rules, state is in memory, and the listeners are open to this
/// machine only.
#[derive(Args, Debug)]
#[command(after_help = SERVE_EXAMPLES, verbatim_doc_comment)]
pub(crate) struct ServeArgs {
    /// The file with rules and settings, as with --config
    #[arg(value_name = "FILE", conflicts_with = "config")]
    pub(crate) file: Option<PathBuf>,

    /// The file with rules and settings; check it with `spillgate validate`
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// The Redis or Valkey that keeps the state; all instances that name it share their limits
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,

    /// Address of the HTTP API, or "off"; port 0 takes a free port [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http: Option<String>,

    /// Address of Envoy's rate limit service (gRPC), or "off" [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) grpc: Option<String>,

    /// Address of the API for Redis clients (RESP), or "off" [default: 127.0.0.1:6380]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) resp: Option<String>,

    /// Address of the admin API with health and metrics, or "off" [default: 127.0.0.1:8082]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) admin: Option<String>,

    /// Listen on 0.0.0.0; without token files, generate tokens and print them
    #[arg(long)]
    pub(crate) expose: bool,
}

/// Checks one request against its limits, and charges it if it is allowed.
///
/// Give attributes to check the rules of the policy, or --key and --quota to check an inline limit.
/// A cost of 0 charges nothing.
#[derive(Args, Debug)]
#[command(after_help = CHECK_EXAMPLES, verbatim_doc_comment)]
pub(crate) struct CheckArgs {
    /// The HTTP API of the server to use
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) url: String,

    /// PEM file of the server's authority [default: those of the machine]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,

    /// The file with the server's token, if it requires one
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) asked: Asked,

    /// The subject of an inline limit
    #[arg(long, requires = "quota", conflicts_with = "attributes")]
    pub(crate) key: Option<String>,

    /// The inline limit: 5/minute, 100/30s, 1_000_000/day
    #[arg(long, requires = "key")]
    pub(crate) quota: Option<String>,

    /// The most that is allowed at once; token buckets only [default: the quota's count]
    #[arg(long, value_name = "NUMBER", requires = "quota", value_parser = whole_number)]
    pub(crate) burst: Option<u64>,

    /// The algorithm, by its name in a policy [default: token-bucket]
    #[arg(long, value_name = "NAME", requires = "quota")]
    pub(crate) algorithm: Option<String>,
}

/// Explains how a request would be decided, and how a higher limit would change that.
///
/// Nothing is charged. The explanation comes from the admin API of a server, or from a store
/// directly. A server that records denials also shows those of the last 48 hours.
#[derive(Args, Debug)]
#[command(after_help = EXPLAIN_EXAMPLES, verbatim_doc_comment)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) api: AdminApi,

    #[command(flatten)]
    pub(crate) asked: Asked,
}

/// What `check` and `explain` are asked.
#[derive(Args, Debug)]
pub(crate) struct Asked {
    /// Attributes of the request: ip=203.0.113.7 route=/login
    #[arg(value_name = "NAME=VALUE", value_parser = attribute)]
    pub(crate) attributes: Vec<(String, String)>,

    /// Use this Redis or Valkey directly, without a server
    #[arg(long, value_name = "URL", conflicts_with_all = ["url", "ca", "token_file"])]
    pub(crate) redis: Option<String>,

    /// The file with the rules and settings to use with --redis
    #[arg(long, value_name = "FILE", requires = "redis")]
    pub(crate) config: Option<PathBuf>,

    /// The domain of the request [default: default]
    #[arg(long)]
    pub(crate) domain: Option<String>,

    /// The cost: a number of requests, or numbers by unit: requests=1,tokens=900 [default: 1]
    #[arg(long, value_parser = cost, allow_hyphen_values = true)]
    pub(crate) cost: Option<Cost>,

    /// Print the server's JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Lists the subjects with the most use and those with the most denials, by rule.
///
/// The counts are those of one server in the last minute. A terminal shows new ones every second,
/// until Ctrl-C.
#[derive(Args, Debug)]
#[command(after_help = TOP_EXAMPLES, verbatim_doc_comment)]
pub(crate) struct TopArgs {
    /// Only this rule
    #[arg(long, value_name = "NAME")]
    pub(crate) rule: Option<String>,

    /// The most subjects in each list
    #[arg(short, long, default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) number: u8,

    /// The admin API of the server to use; of several servers, the lists are added up
    #[arg(long = "url", value_name = "URL", default_value = "http://127.0.0.1:8082")]
    pub(crate) urls: Vec<String>,

    #[command(flatten)]
    pub(crate) access: AdminAccess,

    /// Print the lists once, on a terminal too
    #[arg(long)]
    pub(crate) once: bool,

    /// Print the lists as JSON, once
    #[arg(long)]
    pub(crate) json: bool,
}

/// Shows the status of a server: each condition with its next step, rules, store and fleet.
///
/// No command is sent to the store.
#[derive(Args, Debug)]
#[command(after_help = STATUS_EXAMPLES, verbatim_doc_comment)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) api: AdminApi,

    /// Print the server's JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Lists the live instances of the fleet, and in what they differ from the one that answers.
#[derive(Args, Debug)]
#[command(after_help = FLEET_EXAMPLES, verbatim_doc_comment)]
pub(crate) struct FleetArgs {
    #[command(flatten)]
    pub(crate) api: AdminApi,

    /// Print the server's JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Shows when subjects were denied in the last 48 hours, and by which limits.
///
/// Without attributes and without --like, it shows the most denied subjects. Times are in UTC.
/// Every instance records denials after each minute, so the last minutes may be missing.
#[derive(Args, Debug)]
#[command(after_help = DENIALS_EXAMPLES, verbatim_doc_comment)]
pub(crate) struct DenialsArgs {
    /// Attributes of the subject: all of the rule's key, such as tenant=acme
    #[arg(value_name = "NAME=VALUE", value_parser = attribute)]
    pub(crate) attributes: Vec<(String, String)>,

    /// Search all rules by a part of a value instead, in capitals or not
    #[arg(long, value_name = "PART", conflicts_with_all = ["attributes", "rule"])]
    pub(crate) like: Option<String>,

    /// Only denials of this rule
    #[arg(long, value_name = "NAME")]
    pub(crate) rule: Option<String>,

    /// Only denials after this: 2h for the last two hours, or 2030-01-31T18:00:00Z
    #[arg(long, value_name = "TIME", default_value = "48h")]
    pub(crate) since: String,

    #[command(flatten)]
    pub(crate) api: AdminApi,

    /// Print the server's JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Checks a file of rules and settings, and warns of likely mistakes.
///
/// It also prints which rules allow, and which deny, during an outage of the store.
#[derive(Args, Debug)]
#[command(after_help = VALIDATE_EXAMPLES, verbatim_doc_comment)]
pub(crate) struct ValidateArgs {
    /// The file to check
    #[arg(value_name = "FILE", required_unless_present = "schema")]
    pub(crate) file: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Exit with 1 if there are warnings
    #[arg(long, value_name = "LEVEL")]
    pub(crate) deny: Option<Deny>,

    /// The file in force now: print which state the change keeps
    #[arg(long, value_name = "OLD")]
    pub(crate) against: Option<PathBuf>,

    /// Print the memory that the state of this number of subjects takes, by rule
    #[arg(long, value_name = "NUMBER", value_parser = whole_number)]
    pub(crate) subjects: Option<u64>,

    /// Print only the JSON Schema of the file, for editors
    #[arg(long, conflicts_with_all = ["file", "json", "deny", "against", "subjects"])]
    pub(crate) schema: bool,
}

/// The findings that make `spillgate validate` exit with 1, besides a file that does not load.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Deny {
    Warnings,
}

/// Checks the configuration and the speed of the store, and whether limits hold on it.
///
/// Each finding has the problem, its effect and the command that fixes it. The doctor charges a key
/// of its own with the real script, then removes it.
#[derive(Args, Debug)]
#[command(after_help = DOCTOR_EXAMPLES, verbatim_doc_comment)]
pub(crate) struct DoctorArgs {
    /// The file with rules and settings, as for `spillgate serve`
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// The Redis or Valkey to check
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Print only the command that creates a Redis user with the rights that Spillgate needs
    #[arg(long, conflicts_with_all = ["config", "redis", "json"])]
    pub(crate) acl: bool,
}

/// The cost of a check.
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
  spillgate admin mode api off
  spillgate status
  spillgate validate limits.toml
  spillgate simulate --config limits.toml access.log
  spillgate bench zipf --redis redis://127.0.0.1:6379 --against evalsha
  spillgate doctor --redis redis://127.0.0.1:6379

Exit codes: 0 done, 2 error; the help of `check`, `admin`, `status`, `validate`, `simulate`,
`doctor` and `import` lists theirs.";

const SERVE_EXAMPLES: &str = "\
Examples:
  spillgate serve
  spillgate serve --redis redis://127.0.0.1:6379
  spillgate serve --config limits.toml --http 127.0.0.1:9090
  spillgate serve --expose --config limits.toml
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
  spillgate top --url http://10.0.0.7:8082 --url http://10.0.0.8:8082 --token-file admin.token --json

Exit codes: 0 shown, 2 error.";

const STATUS_EXAMPLES: &str = "\
Examples:
  spillgate status
  spillgate status --url http://10.0.0.7:8082 --token-file admin.token --json

Exit codes: 0 healthy, maybe with notes, 1 warning, 2 critical or error.";

const FLEET_EXAMPLES: &str = "\
Examples:
  spillgate fleet
  spillgate fleet --url http://10.0.0.7:8082 --token-file admin.token --json

Exit codes: 0 all are alike, 1 some differ, 2 error.";

const DENIALS_EXAMPLES: &str = "\
Examples:
  spillgate denials tenant=acme
  spillgate denials tenant=acme --rule api --since 24h
  spillgate denials --since 15m
  spillgate denials --like acme --since 2030-01-31T18:00:00Z --json

Exit codes: 0 denials are listed, 1 none was recorded, 2 error.";

const VALIDATE_EXAMPLES: &str = "\
Examples:
  spillgate validate limits.toml
  spillgate validate --json --deny warnings limits.toml
  spillgate validate --against in-force.toml --subjects 100000 limits.toml
  spillgate validate --schema > spillgate.schema.json

Exit codes: 0 the file loads, 1 it does not or has denied warnings, 2 error.";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  spillgate doctor --redis redis://127.0.0.1:6379
  spillgate doctor --config limits.toml --json
  spillgate doctor --acl

Exit codes: 0 safe, 1 at least one finding is unsafe, 2 error.";

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
