//! `spillgate serve`: runs the service of `spillgate-server`, with the warnings of `spillgate validate` about its file.

use std::path::Path;
use std::process::ExitCode;

use spillgate_server::config::{self, Flags};
use spillgate_tools::Failure;

use crate::cli::ServeArgs;
use crate::validate;

pub(crate) fn run(args: &ServeArgs) -> Result<ExitCode, Failure> {
    let flags = Flags {
        http: args.http.as_deref(),
        grpc: args.grpc.as_deref(),
        resp: args.resp.as_deref(),
        admin: args.admin.as_deref(),
        redis: args.redis.as_deref(),
        expose: args.expose,
    };
    let file = args.config.as_deref().or(args.file.as_deref());
    spillgate_server::serve(file, flags, &file.map_or(Vec::new(), warnings))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the warnings about a file. A file that does not load has none here: the service reports its problems and
/// does not start.
fn warnings(file: &Path) -> Vec<String> {
    let name = file.display().to_string();
    let text = config::read(file).unwrap_or_default();
    if text.len() > BYTES_MAX {
        return Vec::new();
    }
    config::load_text(&name, &text)
        .map_or(Vec::new(), |loaded| validate::warnings(&name, &text, &loaded))
}

/// The longest file that is checked at the start, so that the check takes no noticeable time.
const BYTES_MAX: usize = 256 * 1024;
