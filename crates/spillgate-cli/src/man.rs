//! `spillgate man`: writes a manual page for each command.

use std::fs;
use std::process::ExitCode;

use clap::CommandFactory;
use spillgate_tools::Failure;

use crate::cli::{Cli, ManArgs};

pub(crate) fn run(args: &ManArgs) -> Result<ExitCode, Failure> {
    let folder = &args.folder;
    fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
        .map_err(|error| {
            format!("{}: cannot write manual pages: {error}; name another folder", folder.display())
        })?;
    Ok(ExitCode::SUCCESS)
}
