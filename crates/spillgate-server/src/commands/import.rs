//! `spillgate import`: rules out of another limiter's configuration.

use std::process::ExitCode;

use spillgate::Policy;

use super::{Failure, complain, say};
use crate::cli::{ImportArgs, ImportFrom};
use crate::config;

mod envoy;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;

/// The policy on the output, what of it differs on the error output.
pub(super) fn run(args: &ImportArgs) -> Result<ExitCode, Failure> {
    let ImportFrom::Envoy { file } = &args.from;
    let name = file.display().to_string();
    let imported = envoy::import(&config::read(file)?).map_err(|note| format!("{name}:{note}"))?;
    // Nobody is given a file that does not load.
    Policy::from_toml_file("the imported policy", &imported.policy)
        .map_err(|error| format!("{error}; the rules of {name} cannot be said in this version"))?;
    say(&imported.policy.trim_end())?;
    for note in &imported.notes {
        complain(&format!("{name}:{note}"));
    }
    Ok(ExitCode::SUCCESS)
}
