//! A probe of the store's servers: their settings, correctness and speed. It shows operators
//! problems before an outage does.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::StoreError;
use crate::store::InstanceMismatch;

/// The result of probing a whole store.
///
/// `Limiter::probe` returns it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StoreProbe {
    /// Each server that decides; none if state is in memory.
    pub servers: Vec<ServerProbe>,
    /// The longest time that a decision waits for a silent server.
    pub timeout: Duration,
    /// The number of live instances, and of those that differ from this one.
    pub mismatch: InstanceMismatch,
    /// The number of local shares: without the store, this instance enforces one part in `shares`
    /// of a limit.
    pub shares: u32,
    /// Whether that number is a default, because the number of instances is unknown.
    pub share_is_guessed: bool,
}

/// The result of probing one server.
///
/// `Limiter::probe` returns one for each server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerProbe {
    /// The name in a ring, else the address, without credentials.
    pub name: String,
    /// The facts about the server, or the error.
    pub facts: Result<ServerFacts, StoreError>,
}

/// The facts about one server.
///
/// `Limiter::probe` finds them out.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerFacts {
    /// The fields of INFO.
    pub info: BTreeMap<String, String>,
    /// The settings that matter to Spillgate; empty if our user may not read them.
    pub settings: BTreeMap<String, String>,
    /// Its clock minus ours, in microseconds.
    pub ahead_us: i64,
    /// How long each script call took, in µs, shortest first.
    pub script_us: Vec<u64>,
    /// Whether the script decided correctly on a key of its own: charged all or none, counted
    /// exactly, and let the key expire. Otherwise the error.
    pub script: Result<(), String>,
}

impl StoreProbe {
    /// Returns the servers that answered.
    pub fn reached(&self) -> impl Iterator<Item = (&str, &ServerFacts)> {
        self.servers
            .iter()
            .filter_map(|server| Some((&server.name[..], server.facts.as_ref().ok()?)))
    }

    /// Returns the servers that did not answer, with their errors.
    pub fn unreachable(&self) -> impl Iterator<Item = (&str, &StoreError)> {
        self.servers
            .iter()
            .filter_map(|server| Some((&server.name[..], server.facts.as_ref().err()?)))
    }
}
