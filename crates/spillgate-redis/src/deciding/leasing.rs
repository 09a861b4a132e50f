//! Leases on the store: one call for one counter, with a script of its own.

use super::engine::Redis;
use super::lease::{Exchange, Granted};
use crate::calls::program::Call;
use crate::error::StoreError;

impl Redis {
    /// Returns leases that this instance is done with, and takes a new one.
    pub async fn lease(&self, exchange: &Exchange) -> Result<Granted, StoreError> {
        let build = |header| {
            let mut call = Call::new(header);
            call.exchange(exchange);
            call
        };
        let deadline = self.deadline();
        let location = self.topology.location(exchange.counter.key.tag);
        let run = |route| self.run_on(route, build, deadline);
        self.follow(location, deadline, run).await?.granted(exchange)
    }
}
