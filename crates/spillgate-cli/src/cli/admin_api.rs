//! The options of commands that ask one admin API.

use std::path::PathBuf;

use clap::Args;

/// The admin API that `admin`, `denials`, `explain`, `fleet`, `status` or `top` asks. The options are global, so that they may stand after
/// an action of `admin`.
#[derive(Args, Debug)]
pub(crate) struct AdminApi {
    /// The admin API of the server to use
    #[arg(long, global = true, value_name = "URL", default_value = "http://127.0.0.1:8082")]
    pub(crate) url: String,

    #[command(flatten)]
    pub(crate) access: AdminAccess,
}

/// How `admin`, `explain`, `fleet`, `status` and `top` reach an admin API.
#[derive(Args, Debug)]
pub(crate) struct AdminAccess {
    /// PEM file of the server's authority [default: those of the machine]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,

    /// The file with the token of the admin API [default: the token in SPILLGATE_ADMIN_TOKEN]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}
