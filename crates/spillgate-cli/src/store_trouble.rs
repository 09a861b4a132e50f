//! Reports why a store did not decide, for commands that ask it directly.

use spillgate_server::{App, complain};

/// Writes to the error output why the store did not decide. The store is probed for that, because the limiter keeps
/// only errors of connections, and a server may also refuse the script.
pub(crate) async fn report(app: &App) {
    let probe = app.probe(0).await;
    let out_of_reach = probe.unreachable().map(|(server, why)| format!("{server}: {why}"));
    let refused = probe.reached().filter_map(|(server, facts)| {
        let why = facts.script.as_ref().err()?;
        Some(format!("{server}: {why}"))
    });
    let of_limiter = app.limiter().shards().into_iter().filter_map(|shard| {
        let why = shard.trouble?;
        Some(format!("{}: {why}", shard.name))
    });
    let why = out_of_reach.chain(refused).chain(of_limiter).next();
    let why = why.unwrap_or_else(|| format!("{}: no answer in time", app.store_name()));
    complain(&format!(
        "the store did not decide: {why}; run `spillgate doctor --redis URL` with the same URL"
    ));
}
