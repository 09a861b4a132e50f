//! `spillgate serve`: opens the store and the door, and keeps both until told to stop.

use std::process::ExitCode;

use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use super::{Failure, complain};
use crate::app::App;
use crate::cli::ServeArgs;
use crate::config::{Config, Flags};
use crate::door::{self, http};

pub(super) fn run(args: &ServeArgs) -> Result<ExitCode, Failure> {
    let flags = Flags { http: args.http.as_deref(), redis: args.redis.as_deref() };
    let config = Config::load(args.config.as_deref(), flags)?;
    Runtime::new()?.block_on(serve(config))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(config: Config) -> Result<(), Failure> {
    let Config { settings, policy } = config;
    // From here on a signal ends the process in order; before, it just ends it.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let app = App::open(&settings.store, policy).await?;
    let listener = door::listen(settings.http).await?;
    let store = settings.store.url.as_deref().map_or("memory".to_owned(), without_credentials);
    complain(&format!("HTTP on http://{}, store: {store}", listener.local_addr()?));
    door::serve(listener, http::routes(app), stop).await;
    Ok(())
}

/// What may be shown of a store's address: no user, no password, no parameters.
fn without_credentials(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let shown = rest.split(['?', '#']).next().unwrap_or_default();
    // The last @ of all: a password may hold every one of these characters, even unescaped.
    let host = rest
        .rsplit_once('@')
        .map_or(shown, |(_, host)| host.split(['?', '#']).next().unwrap_or_default());
    format!("{scheme}://{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_never_shown() {
        for (url, shown) in [
            ("redis://127.0.0.1:6379", "redis://127.0.0.1:6379"),
            ("redis://user:secret@host:6379/2", "redis://host:6379/2"),
            ("redis://:se/c?re#t@host/0", "redis://host/0"),
            ("redis://:s@cret@host", "redis://host"),
            ("unix:///run/redis.sock?pass=secret", "unix:///run/redis.sock"),
            ("user:secret@host", "://host"),
        ] {
            assert_eq!(without_credentials(url), shown);
        }
    }
}
