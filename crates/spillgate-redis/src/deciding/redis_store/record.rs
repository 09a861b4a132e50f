//! The fleet's record, as one instance calls it. No decision waits for any of these calls.

use std::time::Duration;

use super::RedisStore;
use crate::error::StoreError;
use crate::fleet::RECORD;
use crate::fleet::control::{self, Exchange, Exchanged};
use crate::time::Deadline;

/// The server that has the record, as far as its connections show it. If it stays the same between two calls, no
/// failover lies between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    shard: String,
    /// How many connections to it were opened so far.
    opened: u64,
}

impl Origin {
    /// Makes the origin of a test, after so many failovers.
    #[doc(hidden)]
    pub fn after_failovers(opened: u64) -> Origin {
        Origin { shard: String::new(), opened }
    }
}

impl RedisStore {
    /// Returns the server that has the record; `None` while a Cluster has no map.
    pub fn origin(&self) -> Option<Origin> {
        let topology = &self.servers.topology;
        let shard = topology.route(topology.location_of_record(RECORD)).ok()?.shard;
        Some(Origin { shard: shard.name.clone(), opened: shard.link.opened() })
    }

    /// Reads the version of the runtime changes; it is empty if there are none.
    pub async fn version_of_changes(&self) -> Result<Vec<u8>, StoreError> {
        control::version(self.call_record(&control::look(), LOOK).await?)
    }

    /// Exchanges runtime changes with the record.
    pub async fn exchange(&self, exchange: &Exchange) -> Result<Exchanged, StoreError> {
        Exchanged::read(self.call_record(&exchange.command(), EXCHANGE).await?)
    }

    async fn call_record(
        &self,
        command: &::redis::Cmd,
        within: Duration,
    ) -> Result<::redis::Value, StoreError> {
        let location = self.servers.topology.location_of_record(RECORD);
        self.servers.command_at(location, command, Deadline::after(within)).await
    }
}

/// The time limit of a look. A lost one and the next fit the second in which a change reaches every instance.
const LOOK: Duration = Duration::from_millis(400);
/// The time limit of an exchange. An operator can wait.
const EXCHANGE: Duration = Duration::from_secs(1);
