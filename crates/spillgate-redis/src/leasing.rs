//! Leases on the store: one call for one counter, with a script of its own.

use super::{Redis, StoreError};
use crate::lease::{Exchange, Granted};
use crate::program::Call;

impl Redis {
    /// Returns leases that this instance is done with, and takes a new one.
    ///
    /// # Errors
    ///
    /// A subject that moves to another node gets no lease: its two owners would have to agree.
    pub async fn lease(&self, exchange: &Exchange) -> Result<Granted, StoreError> {
        let counter = &exchange.counter;
        if self.topology.old_location(counter).is_some() {
            return Err(StoreError::NotExecuted("the subject is moving to another node".into()));
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
