//! `spillgate import`: converts the configuration of another limiter to rules.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use spillgate::Policy;

use crate::{Failure, counted, say};

pub mod envoy;

/// Converts the configuration of another limiter to rules.
///
/// The rules go to the output. The error output names the file and the line of everything that was
/// left out or will be decided differently.
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

/// Writes the policy to the output, and passes each note on a line of the file to `complain`. The exit code is 1 if the
/// policy differs from the configuration.
///
/// # Errors
///
/// If the file cannot be read, or is not a configuration that the other limiter accepts.
pub fn run(args: &ImportArgs, complain: impl Fn(&str)) -> Result<ExitCode, Failure> {
    let ImportFrom::Envoy { file } = &args.from;
    let name = file.display().to_string();
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("cannot read {name}: {error}"))?;
    let imported = envoy::import(&text).map_err(|note| format!("{name}:{note}"))?;
    // The user gets no file that does not load.
    Policy::from_toml_named("the imported policy", &imported.policy).map_err(|error| {
        format!("{error}; the rules of {name} cannot be written in this version")
    })?;
    say(&imported.policy.trim_end())?;
    for note in &imported.notes {
        complain(&format!("{name}:{note}"));
    }
    let differences = imported.notes.iter().filter(|note| note.is_difference()).count();
    if differences == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    complain(&format!("{name}: the policy has {}", counted(differences, "difference")));
    Ok(ExitCode::from(DIFFERS))
}

/// The exit code if a construct was left out or is decided differently.
const DIFFERS: u8 = 1;

const EXAMPLES: &str = "\
Examples:
  spillgate import envoy ratelimit/config.yaml > limits.toml
  spillgate validate limits.toml

Exit codes: 0 all is as before, 1 something was left out or is decided differently, 2 error.";
