//! Watches the limiter for conditions: rules that are not enforced, shards out of reach, lost state. It compares each
//! look with the one before, to know since when a condition lasts and to make events of outages.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use spillgate::control::AuditedAction;
use spillgate::store::ShardStatus;
use spillgate::{Limiter, Mode, Policy, Stats};

use super::changes::ms_of;
use super::event::{Event, EventKind, Events};

/// The conditions at the last look.
#[derive(Default)]
pub struct Watch {
    /// The policy with the runtime changes. After each change another policy is in force.
    policy: Weak<Policy>,
    has_looked: bool,
    pub switched: BTreeMap<String, Switched>,
    /// By shard, the time since which decisions are made without it.
    pub degraded: BTreeMap<String, u64>,
    losses: u64,
    pub lost_at_ms: Option<u64>,
}

/// A rule in shadow or off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Switched {
    pub(crate) rule: String,
    pub(crate) mode: Mode,
    /// Whether an operator set it. Otherwise the policy file has it.
    pub(crate) at_run_time: bool,
    pub(crate) since_ms: u64,
}

impl Watch {
    pub fn look(
        &mut self,
        limiter: &Limiter,
        stats: &Stats,
        shards: &[ShardStatus],
        now_ms: u64,
        events: &mut Events,
    ) {
        if !self.has_looked {
            self.has_looked = true;
            events.add(Event::new(now_ms, EventKind::Start, None, "started"));
        }
        let policy = limiter.policy();
        if self.policy.as_ptr() != Arc::as_ptr(&policy) {
            self.policy = Arc::downgrade(&policy);
            self.look_at_modes(limiter, now_ms);
        }
        self.look_at_shards(shards, now_ms, events);
        self.look_at_losses(stats, shards, now_ms, events);
    }

    fn look_at_modes(&mut self, limiter: &Limiter, now_ms: u64) {
        // The audit knows when an operator set a mode, also at another instance or before this one started.
        let audit = limiter.audit();
        let mut set_at_ms = HashMap::new();
        for record in &audit {
            if let AuditedAction::SetMode(_) = record.action() {
                // The newest comes first.
                set_at_ms.entry(record.rule()).or_insert_with(|| ms_of(record.at()));
            }
        }
        let before = std::mem::take(&mut self.switched);
        for mode in limiter.modes() {
            if mode.in_force() == Mode::Enforce || mode.written().is_none() {
                continue;
            }
            let (rule, at_run_time) = (mode.rule().to_owned(), mode.runtime().is_some());
            let mode = mode.in_force();
            let set_at_ms = set_at_ms.get(&*rule).filter(|_| at_run_time).copied();
            let seen_ms = before
                .get(&rule)
                .filter(|before| (before.mode, before.at_run_time) == (mode, at_run_time))
                .map(|before| before.since_ms);
            let since_ms = set_at_ms.or(seen_ms).unwrap_or(now_ms);
            self.switched.insert(rule.clone(), Switched { rule, mode, at_run_time, since_ms });
        }
    }

    fn look_at_shards(&mut self, shards: &[ShardStatus], now_ms: u64, events: &mut Events) {
        for ShardStatus { name, degraded, trouble, .. } in shards {
            match (*degraded, self.degraded.get(name).copied()) {
                (true, None) => {
                    self.degraded.insert(name.clone(), now_ms);
                    let why = trouble.as_deref().unwrap_or("it does not answer");
                    let text = format!("degraded, without {name}: {why}");
                    events.add(Event::new(now_ms, EventKind::Degraded, None, &text));
                }
                (false, Some(since_ms)) => {
                    let seconds = now_ms.saturating_sub(since_ms) / 1_000;
                    let text = format!("{name} decides again, after {seconds} s");
                    self.degraded.remove(name);
                    events.add(Event::new(now_ms, EventKind::Recovered, None, &text));
                }
                _ => {}
            }
        }
        // Shards can leave a Cluster or a ring.
        self.degraded.retain(|name, _| shards.iter().any(|shard| shard.name == *name));
    }

    fn look_at_losses(
        &mut self,
        stats: &Stats,
        shards: &[ShardStatus],
        now_ms: u64,
        events: &mut Events,
    ) {
        if stats.state_losses > self.losses {
            let text = match shards {
                [shard] => format!("state lost: {} lost its data", shard.name),
                _ => "state lost: a shard lost its data".to_owned(),
            };
            events.add(Event::new(now_ms, EventKind::StateLoss, None, &text));
            self.lost_at_ms = Some(now_ms);
        }
        self.losses = stats.state_losses;
    }
}
