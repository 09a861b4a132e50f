//! `spillgate simulate`: loads policies from files; the rest is in `spillgate-tools`.

use std::process::ExitCode;

use spillgate_server::config;
use spillgate_tools::{Failure, SimulateArgs, simulate};

pub(crate) fn run(args: &SimulateArgs) -> Result<ExitCode, Failure> {
    simulate::run(args, &|file| Ok(config::load_file(file)?.policy))
}
