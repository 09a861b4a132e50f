//! `spillgate bench`: opens a limiter in this process from the settings; the rest is in `spillgate-tools`.

use std::process::ExitCode;

use spillgate_server::config::{Config, Flags};
use spillgate_server::{App, stop_on_signals};
use spillgate_tools::bench::{self, OpenLimiter, StoreFlags};
use spillgate_tools::{BenchArgs, Failure};
use tokio::runtime::Runtime;

pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode, Failure> {
    // Each connection is a file. If this fails, the bound of the system stays.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    Runtime::new()?.block_on(async {
        bench::run(args, stop_on_signals()?, |flags| Box::pin(open(flags))).await
    })
}

async fn open(flags: StoreFlags<'_>) -> Result<OpenLimiter, Failure> {
    let given = Flags { redis: flags.redis, ..Flags::default() };
    let config = Config::load(flags.config, given)?;
    let mut store = config.settings.store;
    if let Some(connections) = flags.connections {
        if !store.is_shared() {
            return Err(
                "--connections: state is in memory, so there is nothing to connect to; name a \
                        store with --redis, or a server with --url"
                    .into(),
            );
        }
        if connections > CONNECTIONS_MAX {
            return Err(format!(
                "--connections: must be at most {CONNECTIONS_MAX}, got {connections}"
            )
            .into());
        }
        store.connections = Some(connections as usize);
    }
    if let Some(instances) = flags.expected_instances {
        store.expected_instances = Some(instances);
    }
    let app = App::open(&store, config.policy).await?;
    let url = store.url().map(str::to_owned);
    Ok(OpenLimiter { limiter: app.limiter().clone(), store: app.store_name().to_owned(), url })
}

/// The most connections that the limiter's builder accepts.
const CONNECTIONS_MAX: u32 = 16;
