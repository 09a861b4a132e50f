//! `spillgate simulate`: loads the policies of files; the rest is in `spillgate-tools`.

use std::path::Path;
use std::process::ExitCode;

use spillgate::Policy;
use spillgate_tools::{SimulateArgs, simulate};

use super::Failure;
use crate::config::{self, ConfigError};

pub(super) fn run(args: &SimulateArgs) -> Result<ExitCode, Failure> {
    simulate::run(args, load)
}

fn load(file: &Path) -> Result<Policy, Failure> {
    let name = file.display().to_string();
    let text = config::read(file).map_err(ConfigError::from)?;
    Ok(config::check(&name, &text).map_err(ConfigError::of)?)
}
