//! Records what this instance decides for the history of its fleet, and reads that of all instances.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::super::{Inner, Limiter};
use crate::control::ControlError;
use crate::history::{FleetHistory, HOURS_KEPT, MINUTE_US, MINUTES, Totals, last_whole_minute};

impl Limiter {
    /// Returns what all instances of the fleet decided in the minutes that began from `since` on and ended by `until`: with
    /// the decisions of one rule, or of all rules. `None` if state is in memory, where there is no fleet.
    ///
    /// Each instance records a minute within another one, so the latest minute is between one and two minutes old.
    /// The store keeps 48 hours.
    ///
    /// # Errors
    /// Returns [`ControlError::Store`] if the store does not answer.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::{Duration, SystemTime};
    ///
    /// use spillgate::Limiter;
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// let now = SystemTime::now();
    /// let history = limiter.fleet_history(now - Duration::from_secs(3600), now, None).await?;
    /// assert!(history.is_none(), "state is in memory");
    /// # Ok::<(), spillgate::control::ControlError>(()) }).unwrap();
    /// ```
    pub async fn fleet_history(
        &self,
        since: SystemTime,
        until: SystemTime,
        rule: Option<&str>,
    ) -> Result<Option<FleetHistory>, ControlError> {
        let Some(store) = self.inner.engine.store() else { return Ok(None) };
        let recorder = &self.inner.history;
        let now_us = recorder.now_us();
        let oldest = (now_us / MINUTE_US / MINUTES).saturating_sub(HOURS_KEPT) * MINUTES;
        let first = us_of(since).div_ceil(MINUTE_US).max(oldest);
        let last = (us_of(until) / MINUTE_US).saturating_sub(1).min(last_whole_minute(now_us));
        if first > last {
            return Ok(Some(FleetHistory::default()));
        }
        let mut hours = recorder.hours.lock().await;
        for hour in hours.wanted(first / MINUTES..=last / MINUTES, now_us) {
            let read = store.history_of(hour).await.map_err(ControlError::Store)?;
            hours.note(hour, read, now_us);
        }
        // An event of an outage is appended when it is over.
        let within_ms = us_of(since) / 1_000..=us_of(until) / 1_000 + APPENDED_LATER_MS;
        let events = store.events(within_ms).await.map_err(ControlError::Store)?;
        let mut events = recorder.events.opened(&events);
        events.retain(|event| (since..=until).contains(&event.at));
        Ok(Some(FleetHistory { events, ..hours.history(first..=last, rule) }))
    }

    /// Adds an event of this instance to the history of the fleet, such as a reload: a word for its kind, and a sentence. With
    /// state in memory it does nothing.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::Limiter;
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// limiter.note_event("reload", "policy file reloaded: 3 rules in force");
    /// # });
    /// ```
    pub fn note_event(&self, kind: &str, text: &str) {
        let Inner { engine, control, history, identity, .. } = &*self.inner;
        if !engine.is_memory() {
            history.events.add(control.now_us(), &identity.name, kind, text);
        }
    }
}

impl Inner {
    /// Ends the minute before, if another has begun.
    pub fn settle_history(&self) {
        self.history.settle(|| self.totals());
    }

    /// Notes the counts of the present minute before rules begin to count anew.
    pub fn note_history(&self) {
        self.history.note(self.totals());
    }

    /// Notes that they did.
    pub fn begin_history_anew(&self) {
        self.history.begin_anew(&self.totals());
    }

    fn totals(&self) -> Totals {
        let stats = self.counts.read();
        let counts = self.metrics.read(&self.in_force.load().meters, stats.unmatched);
        Totals {
            requests: [stats.allowed, stats.denied, stats.unmatched],
            times: counts.decisions,
            rules: counts.rules,
        }
    }

    /// Adds the last events and the next minute of this instance to the history of the fleet, if its time has come. Returns
    /// whether there may be more.
    pub async fn add_history(&self) -> bool {
        let Some(store) = self.engine.store() else { return false };
        if let Ok(mut hours) = self.history.hours.try_lock() {
            hours.drop_unused(self.history.now_us());
        }
        for _ in 0..EVENTS_AT_ONCE {
            let Some((stamp, sealed)) = self.history.events.next() else { break };
            // A minute does not wait for an event that is refused.
            if store.append_event(&sealed).await.is_err() {
                break;
            }
            self.history.events.note_sent(stamp);
        }
        let Some(minute) = self.history.due(store.instance_id()) else { return false };
        // If it fails, the next look tries again. The record takes a minute once.
        let is_added = store.add_history(&minute.stored()).await.is_ok();
        if is_added {
            self.history.note_sent(minute.minute);
        }
        is_added
    }

    /// Adds what this instance has counted and not sent, the present minute too, and removes it from the fleet, as far as a
    /// second suffices.
    pub async fn end_minutes(&self) {
        self.denials.close();
        self.history.close(|| self.totals());
        // It would report this instance again.
        self.control.watch.stop();
        let write = async {
            while self.add_denials().await {}
            while self.add_history().await {}
            self.save_audit().await;
            if let Some(store) = self.engine.store() {
                let _ = store.leave().await;
            }
        };
        let _ = tokio::time::timeout(CLOSING, write).await;
    }
}

fn us_of(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// The most events that one look appends, since the next heartbeat waits for it.
const EVENTS_AT_ONCE: usize = 8;
/// The longest time by which an event is appended later than it was.
const APPENDED_LATER_MS: u64 = 3_600_000;
/// How long an instance that stops waits for the record.
const CLOSING: Duration = Duration::from_secs(1);

#[cfg(test)]
mod filled;
#[cfg(test)]
mod tests;
