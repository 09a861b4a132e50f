//! `spillgate scripts`: the script that decides in the store, to read, or to load ahead of the first
//! call.

use std::io::{self, Write};
use std::process::ExitCode;

use spillgate::internals::engine::redis;
use tokio::runtime::Runtime;

use super::{Failure, complain, say};
use crate::cli::{Scripts, ScriptsArgs};

pub(super) fn run(args: &ScriptsArgs) -> Result<ExitCode, Failure> {
    match &args.what {
        Scripts::Print { plain } => {
            let (text, sha) = redis::script_of_server(!plain);
            // As it is: another byte would be another SHA1.
            io::stdout().write_all(text.as_bytes())?;
            complain(&format!("its SHA1 is {sha}"));
        }
        Scripts::Load { redis: urls } => Runtime::new()?.block_on(load(urls))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Into all of them, though one refuses.
async fn load(urls: &[String]) -> Result<(), Failure> {
    let mut failed = 0;
    for url in urls {
        // Without what may be a password.
        let shown = url.rsplit_once('@').map_or(url.as_str(), |(_, host)| host);
        match redis::load_script(url).await {
            Ok(sha) => say(&format!("{shown}: {sha}"))?,
            Err(why) => {
                failed += 1;
                complain(&format!("{shown}: {why}"));
            }
        }
    }
    match failed {
        0 => Ok(()),
        _ => Err(format!("{failed} of {} servers do not have the script", urls.len()).into()),
    }
}
