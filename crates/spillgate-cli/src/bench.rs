//! `spillgate bench`: opens the limiter in this process by the settings; the rest is in `spillgate-tools`.

use std::process::ExitCode;

use spillgate_server::config::{Config, Flags};
use spillgate_server::{App, stop_on_signals};
use spillgate_tools::bench::{self, OpenLimiter, StoreFlags};
use spillgate_tools::{BenchArgs, Failure};
use tokio::runtime::Runtime;

pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode, Failure> {
    // Each connection is a file; where this fails, the system's own bound stands.
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
                "--connections: state is in memory, and there is nothing to connect to; name a \
                        store with --redis, or a door with --url"
                    .into(),
            );
        }
        if connections > CONNECTIONS_MAX {
            return Err(format!(
                "--connections: the library takes no more than {CONNECTIONS_MAX} to a store"
            )
            .into());
        }
        store.connections = Some(connections as usize);
    }
    if let Some(nodes) = flags.expected_instances {
        store.expected_instances = Some(nodes);
    }
    let app = App::open(&store, config.policy).await?;
    let url = store.url().map(str::to_owned);
    Ok(OpenLimiter { limiter: app.limiter().clone(), store: app.store_name().to_owned(), url })
}

/// As many as its builder takes.
const CONNECTIONS_MAX: u32 = 16;
