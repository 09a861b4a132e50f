//! `spillgate bench`: opens the limiter in this process by the settings; the rest is in `spillgate-tools`.

use std::process::ExitCode;

use spillgate_tools::BenchArgs;
use spillgate_tools::bench::{self, OpenLimiter, StoreFlags};
use tokio::runtime::Runtime;

use super::{Failure, serve};
use crate::app::App;
use crate::config::{Config, Flags, Topology};

pub(super) fn run(args: &BenchArgs) -> Result<ExitCode, Failure> {
    // Each connection is a file; where this fails, the system's own bound stands.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    Runtime::new()?.block_on(async { bench::run(args, serve::on_signals()?, open).await })
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
    if let Some(nodes) = flags.expected_nodes {
        store.expected_nodes = Some(nodes);
    }
    let app = App::open(&store, config.policy).await?;
    let url = match store.topology {
        Topology::Url(url) => Some(url),
        _ => None,
    };
    Ok(OpenLimiter { limiter: app.limiter().clone(), store: app.store.to_string(), url })
}

/// As many as its builder takes.
const CONNECTIONS_MAX: u32 = 16;
