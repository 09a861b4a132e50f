//! `spillgate import`: rules out of another limiter's configuration.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use spillgate::Policy;

use crate::{Failure, say};

mod envoy;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;

/// Makes rules of another limiter's configuration.
///
/// The rules go to the output, remarks on what is not as it was to the error output.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct ImportArgs {
    #[command(subcommand)]
    from: ImportFrom,
}

#[derive(Debug, Subcommand)]
enum ImportFrom {
    /// The YAML of envoyproxy/ratelimit: domain and descriptors
    Envoy {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Writes the policy to the output, and passes a remark on each difference to `complain`.
///
/// # Errors
///
/// If the file cannot be read, is no such configuration, or holds what no rule can express.
pub fn run(args: &ImportArgs, complain: impl Fn(&str)) -> Result<ExitCode, Failure> {
    let ImportFrom::Envoy { file } = &args.from;
    let name = file.display().to_string();
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("cannot read {name}: {error}"))?;
    let imported = envoy::import(&text).map_err(|note| format!("{name}:{note}"))?;
    // Nobody is given a file that does not load.
    Policy::from_toml_file("the imported policy", &imported.policy)
        .map_err(|error| format!("{error}; the rules of {name} cannot be said in this version"))?;
    say(&imported.policy.trim_end())?;
    for note in &imported.notes {
        complain(&format!("{name}:{note}"));
    }
    Ok(ExitCode::SUCCESS)
}

const EXAMPLES: &str = "\
Examples:
  spillgate import envoy ratelimit/config.yaml > limits.toml
  spillgate validate limits.toml

Exit codes: 0 done, 3 error.";
