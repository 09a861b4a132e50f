//! `spillgate serve`: runs the service of `spillgate-server`.

use std::process::ExitCode;

use spillgate_server::config::Flags;
use spillgate_tools::Failure;

use crate::cli::ServeArgs;

pub(crate) fn run(args: &ServeArgs) -> Result<ExitCode, Failure> {
    let flags = Flags {
        http: args.http.as_deref(),
        grpc: args.grpc.as_deref(),
        resp: args.resp.as_deref(),
        admin: args.admin.as_deref(),
        redis: args.redis.as_deref(),
    };
    spillgate_server::serve(args.config.as_deref(), flags)?;
    Ok(ExitCode::SUCCESS)
}
