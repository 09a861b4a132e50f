//! `spillgate simulate`: loads the policies of files; the rest is in `spillgate-tools`.

use std::process::ExitCode;

use spillgate_tools::{SimulateArgs, simulate};

use super::Failure;
use crate::config;

pub(super) fn run(args: &SimulateArgs) -> Result<ExitCode, Failure> {
    simulate::run(args, |file| Ok(config::policy_of(file)?))
}
