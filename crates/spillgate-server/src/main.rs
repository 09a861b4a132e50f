//! `spillgate`: the limiter as a service, and the commands around it.

use std::process::ExitCode;

use clap::Parser;

mod app;
mod bounds;
mod cli;
mod commands;
mod config;
mod domains;
mod door;
mod metrics;
mod reload;

fn main() -> ExitCode {
    match cli::Cli::try_parse() {
        Ok(cli) => commands::run(cli.command),
        Err(usage) => commands::explain_usage(&usage),
    }
}
