//! `spillgate bench`: opens a limiter in this process from the settings; the rest is in `spillgate-tools`.

use std::process::ExitCode;

use spillgate_server::config::{Config, Flags};
use spillgate_server::{App, stop_on_signals};
use spillgate_tools::bench::{self, OpenLimiter};
use spillgate_tools::{BenchArgs, Failure};
use tokio::runtime::Runtime;

pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode, Failure> {
    // Each connection is a file. If this fails, the bound of the system stays.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    Runtime::new()?.block_on(async {
        let opened = match args.url {
            Some(_) => None,
            None => Some(open(args).await?),
        };
        bench::run(args, opened, stop_on_signals()?).await
    })
}

async fn open(args: &BenchArgs) -> Result<OpenLimiter, Failure> {
    let given = Flags { redis: args.redis.as_deref(), ..Flags::default() };
    let config = Config::load(args.config.as_deref(), given)?;
    let store = config.settings.store;
    let app = App::open(&store, config.policy).await?;
    let url = store.url().map(str::to_owned);
    Ok(OpenLimiter { limiter: app.limiter().clone(), store: app.store.to_string(), url })
}
