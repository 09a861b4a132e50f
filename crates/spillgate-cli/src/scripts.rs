//! `spillgate scripts`: prints the scripts that decide and take leases in the store, or loads them before the first
//! call.

use std::path::Path;
use std::process::ExitCode;

use spillgate::Policy;
use spillgate::store::Scripts;
use spillgate_server::config::{Config, Flags, Store};
use spillgate_server::{App, complain};
use spillgate_tools::{Failure, say, write};
use tokio::runtime::Runtime;

use crate::cli::{Scripts as Command, ScriptsArgs};
use crate::store_settings;

pub(crate) fn run(args: &ScriptsArgs) -> Result<ExitCode, Failure> {
    match &args.command {
        Command::Print { plain, leases } => {
            let scripts = if *plain { Scripts::plain() } else { Scripts::marked() };
            let script = if *leases { scripts.leases } else { scripts.decisions };
            // Printed without a further line feed, because another byte would give another SHA1.
            write(&script.text)?;
            complain(&format!("its SHA1 is {}", script.sha1));
        }
        Command::Load { redis, config } => {
            Runtime::new()?.block_on(load(&stores(redis, config.as_deref())?))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the stores of the named servers, or that of the settings.
fn stores(urls: &[String], config: Option<&Path>) -> Result<Vec<Store>, Failure> {
    if urls.is_empty() {
        return Ok(vec![store_settings::load(config, Flags::default())?.settings.store]);
    }
    let of_url = |url: &String| {
        let flags = Flags { redis: Some(url), ..Flags::default() };
        Ok(Config::load(config, flags)?.settings.store)
    };
    urls.iter().map(of_url).collect()
}

/// Loads the scripts into all servers, also after one has refused them.
async fn load(stores: &[Store]) -> Result<(), Failure> {
    let (mut servers, mut failed) = (0, 0);
    for store in stores {
        let app = App::open_to_look(store, Policy::default()).await?;
        for (server, answer) in app.limiter().load_scripts().await {
            servers += 1;
            match answer {
                Ok([decides, leases]) => {
                    say(&format!("{server}: {decides} {leases}"))?;
                }
                Err(why) => {
                    failed += 1;
                    complain(&format!("{server}: {why}"));
                }
            }
        }
    }
    match (servers, failed) {
        (0, _) => Err(format!("{}: no server answers", stores[0]).into()),
        (_, 0) => Ok(()),
        _ => Err(format!("{failed} of {servers} servers do not have the scripts").into()),
    }
}
