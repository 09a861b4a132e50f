//! Loads the settings of commands that need a store outside of this process.

use std::path::Path;

use spillgate_server::config::{Config, Flags};
use spillgate_tools::Failure;

/// Loads settings, and refuses those that name no store.
pub(crate) fn load(file: Option<&Path>, flags: Flags<'_>) -> Result<Config, Failure> {
    let config = Config::load(file, flags)?;
    if config.settings.store.is_shared() { Ok(config) } else { Err(NO_STORE.into()) }
}

const NO_STORE: &str = "no store is named, so state is in memory and there is nothing to check; \
    name one with --redis redis://127.0.0.1:6379, or with --config FILE that has a [store]";
