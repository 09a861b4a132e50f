//! The record of denials on the store.

#[cfg(feature = "redis")]
use std::time::Duration;

use super::super::super::Inner;
use crate::control::ControlError;
use crate::denials::{Denials, Denied, Fit, HOURS_KEPT, Hours, MINUTE_US, MINUTES};
use crate::engine::RedisStore;
#[cfg(feature = "redis")]
use crate::time::monotonic_us;
#[cfg(feature = "redis")]
use spillgate_redis::denials::DenialsOfMinute;

#[cfg(feature = "redis")]
impl Inner {
    /// Adds the next part of a minute to the record, if its time has come. Returns whether there may be more.
    pub async fn add_denials(&self) -> bool {
        let Some(store) = self.engine.store() else { return false };
        let denials = &self.denials;
        if let Some(mut index) = denials.index.try_lock() {
            index.drop_unused(denials.now_us());
        }
        let Some(part) = denials.due(store.instance_id()) else { return false };
        let subjects = part.minute.subjects.iter();
        let added = DenialsOfMinute {
            minute: part.minute.minute,
            part: part.number as u64,
            others: part.minute.others,
            subjects: subjects.map(|(field, count)| denials.seal.sealed(*field, count)).collect(),
        };
        // If it fails, the next look tries again. The record takes a part once.
        let is_added = store.add_denials(&added).await.is_ok();
        if is_added {
            denials.note_sent(&part);
        }
        is_added
    }

    /// Reads some subjects of the record.
    pub async fn stored_denials_of(
        &self,
        store: &RedisStore,
        fields: &[u64],
        since: u64,
    ) -> Result<Denials, ControlError> {
        let mut hours = Hours::default();
        let now_hour = self.denials.now_us() / MINUTE_US / MINUTES;
        for fields in fields.chunks(FIELDS_OF_CALL) {
            let read = store.denials_of(since / MINUTES..=now_hour, fields).await;
            for hour in read.map_err(ControlError::Store)? {
                self.take_hour(&mut hours, &hour);
            }
        }
        Ok(hours.of(fields, since))
    }

    /// Reads what the index lacks of the record since a minute, and returns how many hours it lacks then.
    pub async fn read_denials(&self, store: &RedisStore, since: u64) -> Result<u64, ControlError> {
        let (began_us, index) = (monotonic_us(), &self.denials.index);
        loop {
            let now_us = self.denials.now_us();
            let next = index.lock().next_page(since / MINUTES, now_us);
            let Some(page) = next else { return Ok(0) };
            if monotonic_us().saturating_sub(began_us) >= READING_US {
                return Ok(index.lock().unread(since / MINUTES, now_us));
            }
            let read = store.page_of_denials(page.hour, page.cursor).await;
            let (cursor, of_hour) = read.map_err(ControlError::Store)?;
            {
                let mut index = index.lock();
                self.take_hour(&mut index.hours, &of_hour);
                let oldest = (now_us / MINUTE_US / MINUTES).saturating_sub(HOURS_KEPT);
                index.hours.forget_before(oldest);
                index.note_page(page, cursor, now_us);
            }
            // Decisions wait for the same server.
            tokio::time::sleep(PAGE_PAUSE).await;
        }
    }

    /// Searches what was read, or with state in memory all that there is.
    pub fn search_denials(&self, since: u64, fit: impl Fn(&Denied) -> Option<Fit>) -> Denials {
        match self.engine.is_memory() {
            true => self.denials.hours.lock().matching(since, fit),
            false => self.denials.index.lock().hours.matching(since, fit),
        }
    }

    /// Takes over what can be opened of an hour.
    fn take_hour(&self, hours: &mut Hours, of_hour: &spillgate_redis::denials::DenialsOfHour) {
        for stored in &of_hour.subjects {
            if let Some(count) = self.denials.seal.open(stored) {
                hours.set(of_hour.hour, stored.field, count);
            }
        }
        if let Some(others) = of_hour.others {
            hours.set_others(of_hour.hour, others);
        }
    }
}

/// Without a store there is only this process.
#[cfg(not(feature = "redis"))]
impl Inner {
    pub(crate) async fn add_denials(&self) -> bool {
        false
    }

    pub(crate) async fn stored_denials_of(
        &self,
        store: &RedisStore,
        _: &[u64],
        _: u64,
    ) -> Result<Denials, ControlError> {
        match *store {}
    }

    pub(crate) async fn read_denials(
        &self,
        store: &RedisStore,
        _: u64,
    ) -> Result<u64, ControlError> {
        match *store {}
    }

    pub(crate) fn search_denials(
        &self,
        since: u64,
        fit: impl Fn(&Denied) -> Option<Fit>,
    ) -> Denials {
        self.denials.hours.lock().matching(since, fit)
    }
}

/// The fields that one call reads of each of 48 hours, in less than 1 ms of the server's time.
const FIELDS_OF_CALL: usize = 8;
#[cfg(feature = "redis")]
const PAGE_PAUSE: Duration = Duration::from_millis(1);
/// How long a search reads before it answers.
const READING_US: u64 = 4_000_000;
