//! The commands, and what they share: how they end, and where their words go.

use std::fmt;
use std::process::ExitCode;

use clap::error::ErrorKind;
use spillgate_tools::import;

use crate::cli::Command;
use crate::telemetry::sink;

mod bench;
mod check;
mod client;
pub(crate) mod doctor;
mod explain;
mod scripts;
mod serve;
mod simulate;
mod top;
mod validate;

pub(crate) use spillgate_tools::{Failure, counted, say};

/// Runs one command to its end.
pub(crate) fn run(command: Command) -> ExitCode {
    let _flush = sink::FlushAtEnd;
    let end = match command {
        Command::Serve(args) => serve::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Import(args) => import::run(&args, |remark| complain(&remark)),
        Command::Scripts(args) => scripts::run(&args),
    };
    end.unwrap_or_else(|failure| {
        complain(&failure);
        ExitCode::from(ERROR)
    })
}

/// Help and version on the output, wrong usage on the error output.
pub(crate) fn explain_usage(usage: &clap::Error) -> ExitCode {
    // Nobody left to tell when even this cannot be written.
    let _ = usage.print();
    match usage.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(ERROR),
    }
}

/// A line about the program itself, on the error output.
pub(crate) fn complain(line: &impl fmt::Display) {
    sink::line(&format!("spillgate: {line}\n"));
}

const NO_STORE: &str = "no store is named, so state is in memory and there is nothing to look at; \
    name one: --redis redis://127.0.0.1:6379, or --config FILE with a [store]";

/// The exit code of all that went wrong, usage included: 1 and 2 are verdicts.
const ERROR: u8 = 3;
