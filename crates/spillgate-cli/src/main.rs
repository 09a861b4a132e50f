//! The program `spillgate`: the service and its tools, as commands.

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use spillgate_server::{FlushAtEnd, complain};
use spillgate_tools::{import, say};

use cli::{Cli, Command};

mod admin;
mod bench;
mod check;
mod cli;
mod client;
mod denials;
mod doctor;
mod explain;
mod fleet;
mod gone;
mod serve;
mod simulate;
mod status;
mod top;
mod validate;

/// The allocator of glibc keeps what a burst of batches needed, for as long as any small allocation of that time lives.
/// That of musl, which releases are built with, does not.
#[cfg(target_env = "gnu")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => run(cli.command),
        Err(usage) => explain_usage(&usage),
    }
}

/// Runs one command to its end.
fn run(command: Command) -> ExitCode {
    let _flush = FlushAtEnd;
    let prints_json = command.prints_json();
    let end = match command {
        Command::Serve(args) => serve::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Admin(args) => admin::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Fleet(args) => fleet::run(&args),
        Command::Denials(args) => denials::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Import(args) => import::run(&args, |remark| complain(&remark)),
    };
    end.unwrap_or_else(|failure| {
        if prints_json {
            // If this cannot be written, the error output still has the message.
            let _ = say(&serde_json::json!({ "error": failure.to_string() }));
        }
        complain(&failure);
        ExitCode::from(ERROR)
    })
}

/// Prints help and version on the output, wrong usage on the error output.
fn explain_usage(usage: &clap::Error) -> ExitCode {
    // If this fails, there is no other output to report it on.
    let _ = usage.print();
    let command = std::env::args().nth(1).unwrap_or_default();
    if let Some(instead) = gone::instead(&command, usage) {
        complain(&instead);
    }
    match usage.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(ERROR),
    }
}

/// The exit code of every error, wrong usage included, and of a critical status. The exit code 1 is a result, such as denied or unsafe.
const ERROR: u8 = 2;
