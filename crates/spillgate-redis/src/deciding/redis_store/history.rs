//! The history of the fleet, as one instance adds to it and reads it.

use std::ops::RangeInclusive;

use super::RedisStore;
use super::record::PATIENCE;
use crate::error::StoreError;
use crate::fleet::audit::{self, Page};
use crate::fleet::history::{HourOfFleet, MinuteOfInstance};

impl RedisStore {
    /// Adds a minute of this instance, unless the record has it already.
    pub async fn add_history(&self, minute: &MinuteOfInstance) -> Result<(), StoreError> {
        if self.is_onlooker() {
            return Ok(());
        }
        let call = minute.call(&self.servers.record, self.instance_id());
        self.call_record(&call, PATIENCE).await.map(drop)
    }

    /// Reads an hour, counted since 1970-01-01 00:00 UTC.
    pub async fn history_of(&self, hour: u64) -> Result<HourOfFleet, StoreError> {
        let call = HourOfFleet::call(&self.servers.record, hour);
        HourOfFleet::read(self.call_record(&call, PATIENCE).await?)
    }

    /// Appends a sealed event of this instance.
    pub async fn append_event(&self, sealed: &[u8]) -> Result<(), StoreError> {
        if self.is_onlooker() {
            return Ok(());
        }
        let call = audit::append_event(&self.servers.record, sealed);
        self.call_record(&call, PATIENCE).await.map(drop)
    }

    /// Returns the newest events within a time, in ms since 1970-01-01 00:00 UTC, sealed.
    pub async fn events(&self, within_ms: RangeInclusive<u64>) -> Result<Vec<Vec<u8>>, StoreError> {
        let call = audit::events(&self.servers.record, within_ms);
        Ok(Page::read(self.call_record(&call, PATIENCE).await?, usize::MAX)?.sealed)
    }
}
