//! `spillgate completions`: prints a script that completes commands and flags in a shell.

use std::process::ExitCode;

use clap::CommandFactory;
use spillgate_tools::{Failure, write};

use crate::cli::{Cli, CompletionsArgs};

pub(crate) fn run(args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    // Generated into memory first: clap_complete panics if its output cannot be written.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "spillgate", &mut script);
    write(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
