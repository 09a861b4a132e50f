//! The program `spillgate`: the service and the tools around it, as commands.

use std::process::ExitCode;

fn main() -> ExitCode {
    spillgate_server::run()
}
