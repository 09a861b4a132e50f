//! The program `spillgate`: the limiter as a service, and the commands around it.
//!
//! A library only so that the fuzz targets reach its parsers: what it offers is [`run`].

use std::process::ExitCode;

use clap::Parser;

mod app;
mod bounds;
mod cli;
mod commands;
mod config;
mod credentials;
mod domains;
mod door;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
mod metrics;
mod reload;
mod systemd;
mod telemetry;

/// Does what the command line says, and tells how that ended.
pub fn run() -> ExitCode {
    match cli::Cli::try_parse() {
        Ok(cli) => commands::run(cli.command),
        Err(usage) => commands::explain_usage(&usage),
    }
}
