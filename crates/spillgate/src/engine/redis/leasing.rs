//! Leases, in a store: one call for one counter, of a script beside the one that decides.

use super::{Redis, StoreError};
use crate::engine::redis::program::Call;
use crate::lease::{Exchange, Granted};

impl Redis {
    /// Returns what a process is done with, and takes what there is to spare. Nothing is leased of a
    /// subject that moves: two owners would have to agree.
    pub async fn lease(&self, exchange: &Exchange<'_>) -> Result<Granted, StoreError> {
        let counter = &exchange.counter;
        if self.topology.old_location(counter).is_some() {
            return Err(StoreError::NotExecuted("the subject moves to another node".into()));
        }
        let build = |header| {
            let mut call = Call::new(header);
            call.exchange(exchange);
            call
        };
        let deadline = self.deadline();
        let run = |route| self.run_on(route, build, deadline);
        self.follow(self.topology.location(counter.key.tag), deadline, run).await?.granted(exchange)
    }
}
