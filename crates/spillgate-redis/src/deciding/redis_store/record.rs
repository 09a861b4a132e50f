//! The fleet's record, as one instance calls it. No decision waits for any of these calls, and an error reply to one
//! of them says nothing about decisions, so it never counts for a circuit breaker.

use std::time::Duration;

use ::redis::Value;

use super::RedisStore;
use super::last_minute::LastMinute;
use crate::calls::{guard, keys};
use crate::connecting::shard::Route;
use crate::connecting::topology::Location;
use crate::error::StoreError;
use crate::fleet::Call;
use crate::fleet::audit::{self, Page, Place};
use crate::fleet::control::{Exchange, Exchanged, StoredEntry};
use crate::fleet::instances::{self, Asks, Beat, Counted, FleetInstance, Report};
use crate::store::{InstanceMismatch, Presence};
use crate::time::{Clock, Deadline, monotonic_us};

/// The server that has the record, as far as its connections show it. If it stays the same between two calls, no
/// failover lies between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    shard: String,
    /// How many connections to it were opened so far.
    opened: u64,
}

/// The other instances, as the last beats showed them.
#[derive(Debug)]
pub struct Fleet {
    pub(super) mismatch: InstanceMismatch,
    /// Settings in which instances differ whose record is elsewhere.
    pub(super) other_kinds: InstanceMismatch,
    /// Since when this instance decides some subjects without the store, in ms of the wall clock.
    pub(super) degraded_since_ms: Option<u64>,
    last_minute: LastMinute,
    /// How many beats were answered.
    beats: u64,
    /// How many beats in a row had an error although the store was up.
    troubles: u32,
    /// The monotonic time of the last beat that was answered.
    answered_us: u64,
    /// Since when the record has answered without a pause.
    in_touch_since_us: u64,
    /// What this instance said of itself last.
    row: String,
    list: Option<List>,
}

/// All instances, when they were last read.
#[derive(Clone, Debug)]
struct List {
    at_us: u64,
    /// The counts of the beat before.
    beat: [u32; 2],
    instances: Vec<FleetInstance>,
}

impl Fleet {
    pub(super) fn new() -> Fleet {
        Fleet {
            mismatch: InstanceMismatch::default(),
            other_kinds: InstanceMismatch::default(),
            degraded_since_ms: None,
            last_minute: LastMinute::new(monotonic_us()),
            beats: 0,
            troubles: 0,
            answered_us: 0,
            in_touch_since_us: 0,
            row: String::new(),
            list: None,
        }
    }
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
        let shard = self.route_of_record()?.shard;
        Some(Origin { shard: shard.name.clone(), opened: shard.link.opened() })
    }

    /// Returns whether the server of the record is down, or unknown.
    pub fn record_is_down(&self) -> bool {
        self.route_of_record().is_none_or(|route| route.shard.link.is_tripped())
    }

    /// Exchanges runtime changes with the record.
    pub async fn exchange(&self, exchange: &Exchange) -> Result<Exchanged, StoreError> {
        Exchanged::read(self.call_record(&exchange.call(&self.servers.record), PATIENCE).await?)
    }

    /// Returns the changes in the records on the other nodes of a ring, where instances had the fleet's record a few
    /// minutes ago if another name was the first. An older one lacks removals that this record has let go since.
    pub async fn changes_elsewhere(&self) -> Result<Vec<StoredEntry>, StoreError> {
        let record = &self.servers.record;
        let mut found = Vec::new();
        for location in self.servers.topology.locations_beside_record(record) {
            if self.call_at(location, &instances::count(record), PATIENCE).await? == Value::Int(0) {
                continue;
            }
            let mut exchange = Exchange::default();
            for _ in 0..PAGES_MAX {
                let answer = self.call_at(location, &exchange.call(record), PATIENCE).await?;
                let answer = Exchanged::read(answer)?;
                let is_whole = answer.is_whole();
                found.extend(answer.unseen);
                exchange.seen = answer.version;
                if is_whole {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Appends a sealed change to the audit of the record.
    pub async fn append_to_audit(&self, sealed: &[u8]) -> Result<(), StoreError> {
        let call = audit::append(&self.servers.record, sealed);
        self.call_record(&call, PATIENCE).await.map(drop)
    }

    /// Returns a page of the audit of the record, of at most this many changes.
    pub async fn audit(&self, from: Option<&Place>, changes: usize) -> Result<Page, StoreError> {
        let call = Page::call(&self.servers.record, from, changes);
        Page::read(self.call_record(&call, PATIENCE).await?, changes)
    }

    /// Reports this instance to the record, and learns how many others there are and how many of them differ, or only the
    /// version of the changes, which most beats ask for. The
    /// decisions of the report are totals, from which those of the last minute are made.
    pub async fn beat(&self, report: Report) -> Result<Beat, StoreError> {
        let id = self.own_id();
        let place = self.place(&id);
        let has_guard = !self.servers.topology.is_cluster();
        let guard = has_guard.then(|| guard::key_of(keys::ANY_TAG));
        let (call, row) = {
            let mut fleet = self.fleet.lock();
            let decided = fleet.last_minute.note(monotonic_us(), report.decided);
            let degraded_since_ms = fleet.degraded_since_ms;
            let row = place.row(&Report { decided, degraded_since_ms, ..report.clone() });
            // The store may have lost it, so it is sent now and then even if nothing has changed.
            let is_due = row != fleet.row || fleet.beats.is_multiple_of(BEATS_UNTIL_ROW);
            // Right after an outage the beats of all other instances are old.
            let is_in_touch = monotonic_us().saturating_sub(fleet.in_touch_since_us) >= IN_TOUCH_US;
            let asks = match fleet.beats {
                beats if beats.is_multiple_of(BEATS_UNTIL_TIDY) && is_in_touch => {
                    Asks::CountAndTidy
                }
                beats if beats.is_multiple_of(BEATS_UNTIL_COUNT) => Asks::Count,
                _ => Asks::Nothing,
            };
            let call = place.beat(report.policy, if is_due { &row } else { "" }, guard, asks);
            (call, row)
        };
        let beat = self.call_record(&call, ANSWER).await.and_then(Beat::read);
        self.note_trouble(beat.as_ref().err());
        let beat = beat?;
        {
            let mut fleet = self.fleet.lock();
            let now_us = monotonic_us();
            if now_us.saturating_sub(fleet.answered_us) >= FRESH_US {
                fleet.in_touch_since_us = now_us;
            }
            (fleet.row, fleet.answered_us) = (row, now_us);
            fleet.beats += 1;
        }
        if let Some(counted) = &beat.counted {
            self.fallback.note_live_instances(counted.live, monotonic_us());
            self.note_mismatch(counted, report.policy).await;
        }
        if let Some(route) = self.route_of_record().filter(|_| has_guard) {
            self.servers.member().note_guard(&route.shard, &beat.guard).await;
        }
        Ok(beat)
    }

    /// Removes this instance from the list of instances. It must not report itself any more.
    pub async fn leave(&self) -> Result<(), StoreError> {
        let id = self.own_id();
        self.call_record(&self.place(&id).leave(), PATIENCE).await.map(drop)
    }

    /// Returns all live instances, not older than two seconds. `policy` is the fingerprint of this instance's policy.
    pub async fn instances(&self, policy: u64) -> Result<Vec<FleetInstance>, StoreError> {
        self.listed(policy, |list| monotonic_us().saturating_sub(list.at_us) < FRESH_US).await
    }

    /// Returns the instances that differed from this one when they were last read.
    pub fn differing_instances(&self) -> Vec<FleetInstance> {
        let fleet = self.fleet.lock();
        if fleet.mismatch.is_none() {
            return Vec::new();
        }
        let all = fleet.list.iter().flat_map(|list| &list.instances);
        all.filter(|instance| !instance.differs_in.is_empty()).cloned().collect()
    }

    /// Returns the list of instances if it is recent enough, else reads it.
    async fn listed(
        &self,
        policy: u64,
        is_recent: impl Fn(&List) -> bool,
    ) -> Result<Vec<FleetInstance>, StoreError> {
        if let Some(list) = self.fleet.lock().list.as_ref().filter(|list| is_recent(list)) {
            return Ok(list.instances.clone());
        }
        let id = self.own_id();
        let answer = self.call_record(&self.place(&id).list(), PATIENCE).await?;
        let instances = self.place(&id).read(answer, policy)?;
        let mut fleet = self.fleet.lock();
        let beat = fleet.list.as_ref().map_or([0; 2], |list| list.beat);
        fleet.list = Some(List { at_us: monotonic_us(), beat, instances: instances.clone() });
        Ok(instances)
    }

    /// Finds out in what other instances differ. They are read anew when their numbers have changed, but at most every
    /// few seconds, and else once a minute.
    async fn note_mismatch(&self, counted: &Counted, policy: u64) {
        let now_us = monotonic_us();
        let counts = [counted.live, counted.alike];
        let before = self.mismatch();
        let mut parts = InstanceMismatch::default();
        if counted.alike < counted.live {
            // In a rollout the numbers change all the time, so a large fleet reads them less often.
            let again_us = LISTED_AGAIN_US.max(u64::from(counted.live) * LISTED_AGAIN_US_EACH);
            let is_recent = |list: &List| {
                let least = if list.beat == counts { LISTED_EVERY_US } else { again_us };
                now_us.saturating_sub(list.at_us) < least
            };
            match self.listed(policy, is_recent).await {
                Ok(listed) => {
                    let differing = listed.iter().flat_map(|instance| &instance.differs_in);
                    parts = differing.fold(parts, |parts, part| parts.and_one(part));
                }
                // As before, until the list can be read.
                Err(_) => {
                    parts = before;
                    if let Some(list) = &mut self.fleet.lock().list {
                        list.at_us = now_us;
                    }
                }
            }
        }
        let mut fleet = self.fleet.lock();
        if let Some(list) = fleet.list.as_mut().filter(|list| list.at_us >= now_us) {
            list.beat = counts;
        }
        // A command that only looks has no policy of its own.
        let policy = if self.is_onlooker() { 0 } else { parts.policy };
        let now_ms = Clock::System.now_us() / 1_000;
        let policy_since_ms = (policy > 0).then(|| before.policy_since_ms.unwrap_or(now_ms));
        let mismatch =
            InstanceMismatch { live: counted.live, policy: 0, ..parts.or(fleet.other_kinds) };
        fleet.mismatch = InstanceMismatch { policy, policy_since_ms, ..mismatch };
        let now = fleet.mismatch;
        drop(fleet);
        super::upkeep::report_mismatch(before, now);
    }

    /// Logs once that the record cannot be used although its server is up, and once that it can. A single beat may just
    /// be late.
    fn note_trouble(&self, error: Option<&StoreError>) {
        let error = error.filter(|_| !self.record_is_down());
        let mut fleet = self.fleet.lock();
        let before = fleet.troubles;
        fleet.troubles = if error.is_some() { before.saturating_add(1) } else { 0 };
        drop(fleet);
        match error {
            Some(why) if before == 1 => {
                tracing::warn!(
                    target: "spillgate",
                    %why,
                    "the fleet's record cannot be used: instances do not see each other, and runtime \
                     changes stay where they are made"
                );
            }
            None if before > 1 => {
                tracing::info!(target: "spillgate", "the fleet's record can be used again");
            }
            _ => {}
        }
    }

    /// Returns whether a beat brought the guard of the record's shard a moment ago.
    pub(super) fn knows_guard(&self) -> bool {
        let answered_us = self.fleet.lock().answered_us;
        let is_recent = monotonic_us().saturating_sub(answered_us) < FRESH_US;
        is_recent && !self.servers.topology.is_cluster()
    }

    /// Returns whether this instance only looks, and belongs to no fleet.
    pub fn is_onlooker(&self) -> bool {
        self.servers.settings.instance.presence == Presence::Onlooker
    }

    /// Returns the id under which this instance reports itself; empty for an onlooker.
    fn own_id(&self) -> String {
        if self.is_onlooker() {
            String::new()
        } else {
            format!("{:016x}", self.servers.instance_id)
        }
    }

    fn place<'a>(&'a self, id: &'a str) -> instances::Place<'a> {
        let fingerprint = &self.servers.settings.instance.fingerprint;
        instances::Place { tag: &self.servers.record, id, fingerprint }
    }

    fn route_of_record(&self) -> Option<Route> {
        let topology = &self.servers.topology;
        topology.route(topology.location_of_record(&self.servers.record)).ok()
    }

    /// Runs a call on the server that has the record.
    pub async fn call_record(&self, call: &Call, within: Duration) -> Result<Value, StoreError> {
        let location = self.servers.topology.location_of_record(&self.servers.record);
        self.call_at(location, call, within).await
    }

    async fn call_at(
        &self,
        location: Location,
        call: &Call,
        within: Duration,
    ) -> Result<Value, StoreError> {
        let deadline = Deadline::after(within);
        let run =
            |route: Route| async move { call.run(&route.shard, route.redirect, deadline).await };
        self.servers.follow(location, deadline, run).await
    }
}

/// The time limit of a beat. A lost one and the next fit the second in which a change reaches every instance.
const ANSWER: Duration = Duration::from_millis(400);
/// The time limit of other calls, for which an operator can wait.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// A few seconds.
const BEATS_UNTIL_ROW: u64 = 8;
/// Within the five seconds after which an instance is gone.
const BEATS_UNTIL_COUNT: u64 = 3;
/// About a minute.
const BEATS_UNTIL_TIDY: u64 = 64;
/// More pages than the changes of a full record take.
const PAGES_MAX: usize = 100;
/// How long an instance must have had answers before it calls others gone.
const IN_TOUCH_US: u64 = 15_000_000;
/// How old a list may be that a page shows.
const FRESH_US: u64 = 2_000_000;
/// How old a list may be from which the differing instances are counted: while their numbers stay, and after a change.
const LISTED_EVERY_US: u64 = 60_000_000;
const LISTED_AGAIN_US: u64 = 3_000_000;
/// And for each instance.
const LISTED_AGAIN_US_EACH: u64 = 50_000;
