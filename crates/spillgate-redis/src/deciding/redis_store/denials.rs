//! The denials in the fleet's record, as one instance adds and reads them.

use std::ops::RangeInclusive;

use super::RedisStore;
use super::record::PATIENCE;
use crate::error::StoreError;
use crate::fleet::denials::{DenialsOfHour, DenialsOfMinute};

impl RedisStore {
    /// Returns the number by which this instance spreads its calls over a minute.
    pub fn instance_id(&self) -> u64 {
        self.servers.instance_id
    }

    /// Adds a part of a minute to the record, unless it has that part already.
    pub async fn add_denials(&self, denials: &DenialsOfMinute) -> Result<(), StoreError> {
        let call = denials.call(&self.servers.record, self.instance_id());
        self.call_record(&call, PATIENCE).await.map(drop)
    }

    /// Reads some fields of some hours.
    pub async fn denials_of(
        &self,
        hours: RangeInclusive<u64>,
        fields: &[u64],
    ) -> Result<Vec<DenialsOfHour>, StoreError> {
        let call = DenialsOfHour::call(&self.servers.record, hours.clone(), fields);
        DenialsOfHour::read(self.call_record(&call, PATIENCE).await?, hours, fields)
    }

    /// Reads a page of one hour. `cursor` is 0 for the first, and that of the page before for others.
    pub async fn page_of_denials(
        &self,
        hour: u64,
        cursor: u64,
    ) -> Result<(u64, DenialsOfHour), StoreError> {
        let call = DenialsOfHour::page(&self.servers.record, hour, cursor);
        DenialsOfHour::read_page(self.call_record(&call, PATIENCE).await?, hour)
    }
}
