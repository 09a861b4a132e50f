//! The scripts of the store, for operators who load them before the first call.

use super::Limiter;
use crate::engine::Engine;
use crate::error::StoreError;

/// A script as a server gets it.
///
/// [`Scripts`] has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Script {
    /// Its Lua text.
    pub text: &'static str,
    /// The SHA1 of the text in hexadecimal, by which EVALSHA calls it.
    pub sha1: &'static str,
}

/// The scripts of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scripts {
    /// Decides requests and reservations.
    pub decisions: Script,
    /// Takes and returns leases.
    pub leases: Script,
}

impl Scripts {
    /// Returns the scripts for Redis 7.0 and later and for Valkey, which begin with `#!lua`.
    ///
    /// ```
    /// use spillgate::store::Scripts;
    ///
    /// assert!(Scripts::marked().decisions.text.starts_with("#!lua"));
    /// assert_eq!(Scripts::plain().decisions.sha1.len(), 40);
    /// ```
    pub fn marked() -> Scripts {
        Scripts::of_server(true)
    }

    /// Returns the scripts for Redis 6.2.
    pub fn plain() -> Scripts {
        Scripts::of_server(false)
    }

    fn of_server(marked: bool) -> Scripts {
        let [decisions, leases] = spillgate_redis::script_of_server(marked);
        let script = |(text, sha1)| Script { text, sha1 };
        Scripts { decisions: script(decisions), leases: script(leases) }
    }
}

impl Limiter {
    /// Loads the scripts into every server of the store. Returns, for each server by name, the SHA1
    /// of both scripts, or the error. Memory has no servers.
    ///
    /// Calls load a missing script by themselves; this saves the first calls the time.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::Limiter;
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// assert!(limiter.load_scripts().await.is_empty(), "state is in memory");
    /// # });
    /// ```
    pub async fn load_scripts(&self) -> Vec<(String, Result<[String; 2], StoreError>)> {
        match &self.inner.engine {
            Engine::Memory(_) => Vec::new(),
            Engine::Redis(redis) => redis.load_scripts().await,
        }
    }
}
