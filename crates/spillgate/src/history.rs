//! What all instances of a fleet decided in each minute of the last 48 hours.
//!
//! After each minute every instance adds its decisions to the record that all instances share, and
//! [`Limiter::fleet_history`](crate::Limiter::fleet_history) reads it.

// This module has the data: the minutes of this instance until they are in the record, and the hours that were read.
// `limiter/control/history.rs` writes and reads.

use std::collections::BTreeMap;
use std::time::SystemTime;

use spillgate_redis::history::{Counts, Facts, HourOfFleet, SLOTS};

use crate::control::system_time;
use crate::metrics::{Decisions, Durations, RESULTS};

mod event;
mod recorder;

pub(crate) use event::Events;
pub use event::FleetEvent;
pub(crate) use recorder::{Recorder, Totals};

/// The history of a fleet over some time.
///
/// [`Limiter::fleet_history`](crate::Limiter::fleet_history) returns it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct FleetHistory {
    /// The minutes, the oldest first. A minute is missing if no instance has recorded it: none ran, or the store was down
    /// for more than an hour or has lost it.
    pub minutes: Vec<FleetMinute>,
    /// The decisions of each rule in these minutes.
    pub rules: Vec<RuleHistory>,
    /// With a rule: the time from which the minutes have all of its decisions. In an hour before, it had no place of its own,
    /// and others were counted together. `None` if they have all from the first.
    pub rule_since: Option<SystemTime>,
    /// The events of instances within this time, the oldest first; the newest 500 if there are more.
    pub events: Vec<FleetEvent>,
}

/// The decisions of one rule over some time.
///
/// [`FleetHistory`] lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleHistory {
    /// `None` for all rules without a place of their own: in each hour 64 rules have one.
    pub rule: Option<String>,
    /// Requests that it allowed.
    pub allowed: u64,
    /// Requests that it denied.
    pub denied: u64,
    /// Requests that it would have denied if it were not in shadow.
    pub would_deny: u64,
}

/// The decisions of all instances in one minute.
///
/// [`FleetHistory`] lists them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FleetMinute {
    /// The beginning of the minute.
    pub begin: SystemTime,
    /// How many instances have recorded it.
    pub instances: u32,
    /// Requests that were allowed.
    pub allowed: u32,
    /// Requests that were denied.
    pub denied: u32,
    /// Requests that no rule matched.
    pub unmatched: u32,
    /// Decisions of rules by source, in the order of [`RuleCounts::by_source`](crate::metrics::RuleCounts::by_source).
    pub sources: [u32; 6],
    /// The times of decisions.
    pub times: Durations,
    /// The decisions of the rule that was asked for, or of all rules.
    pub decisions: Decisions,
}

/// What one instance decided in one minute.
#[derive(Clone, Debug)]
pub(crate) struct OwnMinute {
    pub(crate) minute: u64,
    pub(crate) requests: [u32; 3],
    pub(crate) sources: [u32; 6],
    pub(crate) times: Durations,
    /// The busiest rules, and under an empty name all others.
    pub(crate) rules: Vec<(String, Decisions)>,
}

/// The hours that this instance has read. They are kept while pages ask.
#[derive(Debug, Default)]
pub(crate) struct Hours {
    read: BTreeMap<u64, (u64, HourOfFleet)>,
    asked_us: u64,
}

impl OwnMinute {
    /// Returns the minute as the record has it.
    pub(crate) fn stored(&self) -> spillgate_redis::history::MinuteOfInstance {
        let mut facts = Facts::default();
        facts[..3].copy_from_slice(&self.requests);
        facts[INSTANCES] = 1;
        facts[SOURCES..TIMES].copy_from_slice(&self.sources);
        for (fact, count) in facts[TIMES..].iter_mut().zip(self.times.buckets()) {
            *fact = u32::try_from(count).unwrap_or(u32::MAX);
        }
        let counts = |(rule, decisions): &(String, Decisions)| (rule.clone(), counts_of(decisions));
        let rules = self.rules.iter().map(counts).collect();
        spillgate_redis::history::MinuteOfInstance { minute: self.minute, facts, rules }
    }
}

impl Hours {
    /// Notes a question, and returns those of its hours that must be read, the oldest first.
    pub(crate) fn wanted(&mut self, hours: std::ops::RangeInclusive<u64>, now_us: u64) -> Vec<u64> {
        self.asked_us = now_us;
        let is_current = |hour: &u64| match self.read.get(hour) {
            None => false,
            // After an outage of the store, minutes of an hour ago are written.
            Some((read_us, _)) => {
                let was_final = *read_us >= (hour + 3) * MINUTES * MINUTE_US;
                was_final || now_us.saturating_sub(*read_us) < FRESH_US
            }
        };
        hours.filter(|hour| !is_current(hour)).collect()
    }

    pub(crate) fn note(&mut self, hour: u64, read: HourOfFleet, now_us: u64) {
        self.read.insert(hour, (now_us, read));
        let oldest = (now_us / MINUTE_US / MINUTES).saturating_sub(HOURS_KEPT);
        self.read = self.read.split_off(&oldest);
    }

    /// Drops all if no page has asked for a while.
    pub(crate) fn drop_unused(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.asked_us) >= UNUSED_US {
            self.read.clear();
        }
    }

    /// Returns the history of some minutes: with the decisions of one rule, or of all rules.
    pub(crate) fn history(
        &self,
        minutes: std::ops::RangeInclusive<u64>,
        rule: Option<&str>,
    ) -> FleetHistory {
        let mut history = FleetHistory::default();
        let mut rules: BTreeMap<Option<&str>, RuleHistory> = BTreeMap::new();
        for (hour, (_, read)) in
            self.read.range(minutes.start() / MINUTES..=minutes.end() / MINUTES)
        {
            let mut names = [None; SLOTS + 1];
            for (name, slot) in read.rules().filter(|(_, slot)| (1..=SLOTS).contains(slot)) {
                names[slot] = Some(name);
            }
            for place in 0..MINUTES {
                let minute = hour * MINUTES + place;
                let facts = read.facts(place as usize);
                if !minutes.contains(&minute) || facts[INSTANCES] == 0 {
                    continue;
                }
                let mut sum = Decisions::default();
                for (slot, name) in names.iter().enumerate() {
                    let decisions = decisions_of(read.counts(place as usize, slot));
                    if decisions.all() > 0 {
                        rules.entry(*name).or_default().add(&decisions);
                        if rule.is_none() || rule == *name {
                            sum.add(decisions);
                        }
                        if name.is_none() && rule.is_some() && !names.contains(&rule) {
                            let end = (hour + 1) * MINUTES * MINUTE_US;
                            history.rule_since = Some(system_time(end));
                        }
                    }
                }
                history.minutes.push(FleetMinute::new(minute, &facts, sum));
            }
        }
        let named = |(name, sum): (Option<&str>, RuleHistory)| RuleHistory {
            rule: name.map(str::to_owned),
            ..sum
        };
        history.rules = rules.into_iter().map(named).collect();
        history
    }
}

impl RuleHistory {
    fn add(&mut self, decisions: &Decisions) {
        self.allowed += decisions.allowed();
        self.denied += decisions.denied();
        self.would_deny += decisions.would_deny();
    }
}

impl FleetMinute {
    fn new(minute: u64, facts: &Facts, decisions: Decisions) -> FleetMinute {
        let mut buckets = Durations::default().buckets();
        for (bucket, fact) in buckets.iter_mut().zip(&facts[TIMES..]) {
            *bucket = u64::from(*fact);
        }
        FleetMinute {
            begin: system_time(minute * MINUTE_US),
            instances: facts[INSTANCES],
            allowed: facts[0],
            denied: facts[1],
            unmatched: facts[2],
            sources: std::array::from_fn(|source| facts[SOURCES + source]),
            times: Durations::from_buckets(buckets),
            decisions,
        }
    }
}

fn counts_of(decisions: &Decisions) -> Counts {
    let mut counts = Counts::default();
    counts[..RESULTS.len()].copy_from_slice(&decisions.results);
    counts[RESULTS.len()] = decisions.near_limit;
    counts
}

fn decisions_of(counts: Counts) -> Decisions {
    let mut results = [0; RESULTS.len()];
    results.copy_from_slice(&counts[..RESULTS.len()]);
    Decisions { results, near_limit: counts[RESULTS.len()] }
}

/// Returns the end of the last minute that every instance has recorded by now, if the store was up.
#[doc(hidden)]
pub fn recorded_until(now: SystemTime) -> SystemTime {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    system_time((last_whole_minute(now_us) + 1) * MINUTE_US)
}

/// Returns the last minute that every instance has recorded by now, if it can.
pub(crate) fn last_whole_minute(now_us: u64) -> u64 {
    (now_us.saturating_sub(SPREAD_US + LATE_US) / MINUTE_US).saturating_sub(1)
}

// The places of a minute's facts. The first three are requests: allowed, denied and unmatched.
const INSTANCES: usize = 3;
const SOURCES: usize = 4;
const TIMES: usize = 10;

pub(crate) const MINUTE_US: u64 = 60_000_000;
pub(crate) const MINUTES: u64 = 60;
/// How many hours are kept and read, besides the one that began last.
pub(crate) const HOURS_KEPT: u64 = 48;
/// Instances write a minute one after the other within this time.
const SPREAD_US: u64 = 45_000_000;
/// The longest time between two looks, and until the call is done.
const LATE_US: u64 = 2_000_000;
/// How old an hour may be that still changes.
const FRESH_US: u64 = 5_000_000;
/// How long the hours are kept after the last question.
const UNUSED_US: u64 = 600_000_000;
