//! Makes minutes of the counts of one instance, and keeps them until they are in the record.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use spillgate_redis::history::SLOTS;

use super::{Events, Hours, MINUTE_US, OwnMinute, SPREAD_US};
use crate::metrics::{Decisions, Durations, RuleCounts};
use crate::subject::Secret;
use crate::time::Clock;

/// What one instance knows of the history.
#[derive(Debug)]
pub(crate) struct Recorder {
    clock: Clock,
    state: Mutex<State>,
    /// Whether the present minute is the last, which ends at once.
    is_closing: AtomicBool,
    /// What was read of the record. A question holds it while it reads.
    pub(crate) hours: tokio::sync::Mutex<Hours>,
    pub(crate) events: Events,
}

#[derive(Debug)]
struct State {
    /// The present minute, and the counts at its beginning.
    minute: u64,
    before: Totals,
    unsent: VecDeque<OwnMinute>,
}

/// The counts of this instance since it was built.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    /// Allowed, denied and unmatched requests.
    pub(crate) requests: [u64; 3],
    pub(crate) times: Durations,
    pub(crate) rules: Vec<RuleCounts>,
}

impl Recorder {
    pub(crate) fn new(clock: Clock, secret: &Secret) -> Recorder {
        let minute = clock.now_us() / MINUTE_US;
        let state = State { minute, before: Totals::default(), unsent: VecDeque::new() };
        Recorder {
            clock,
            state: Mutex::new(state),
            is_closing: AtomicBool::new(false),
            hours: Default::default(),
            events: Events::new(secret),
        }
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.clock.now_us()
    }

    /// Ends the present minute, so that it can be sent at once.
    pub(crate) fn close(&self, totals: impl FnOnce() -> Totals) {
        self.is_closing.store(true, Ordering::Relaxed);
        self.settle(totals);
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Ends the minute before, if another has begun.
    pub(crate) fn settle(&self, totals: impl FnOnce() -> Totals) {
        let minute = self.now_us() / MINUTE_US + u64::from(self.is_closing());
        let mut state = self.state.lock();
        // While a clock that was set back a little catches up, the minute goes on, since the record takes minutes in order.
        if (minute..minute + BACK_MAX).contains(&state.minute) {
            return;
        }
        let totals = totals();
        let ended = totals.since(&state.before, state.minute);
        (state.minute, state.before) = (minute, totals);
        state.unsent.push_back(ended);
        if state.unsent.len() > UNSENT_MAX {
            state.unsent.pop_front();
            tracing::warn!(
                target: "spillgate",
                "a minute of this instance is missing in the history of the fleet, because the store did not take it for \
                 an hour; if it is up, see whether its user has the rights of `spillgate doctor --acl`"
            );
        }
    }

    /// Returns the minute that is to be sent now. `instance` spreads the calls of a fleet over the minute.
    pub(crate) fn due(&self, instance: u64) -> Option<OwnMinute> {
        let state = self.state.lock();
        let first = state.unsent.front()?;
        let at_us = (first.minute + 1) * MINUTE_US + instance % SPREAD_US;
        (self.now_us() >= at_us || self.is_closing()).then(|| first.clone())
    }

    /// Notes that the record has a minute.
    pub(crate) fn note_sent(&self, minute: u64) {
        let mut state = self.state.lock();
        // It may have been dropped meanwhile.
        if state.unsent.front().is_some_and(|first| first.minute == minute) {
            state.unsent.pop_front();
        }
    }
}

impl Totals {
    fn since(&self, before: &Totals, minute: u64) -> OwnMinute {
        let grown =
            |now: u64, before: u64| u32::try_from(now - before.min(now)).unwrap_or(u32::MAX);
        let named = |counts: &RuleCounts| (counts.domain().to_owned(), counts.rule().to_owned());
        let known: HashMap<_, &RuleCounts> =
            before.rules.iter().map(|it| (named(it), it)).collect();
        let mut sources = [0; 6];
        let mut rules: Vec<(String, Decisions)> = Vec::new();
        for counts in &self.rules {
            let before = known.get(&named(counts)).copied();
            let decisions = counts.since(before);
            if decisions.all() > 0 {
                counts.add_sources_since(before, &mut sources);
                rules.push((counts.rule().to_owned(), decisions));
            }
        }
        // Inline limits have no name. They count with the rules that have no place.
        rules.sort_by_key(|(rule, decisions)| (rule.is_empty(), Reverse(decisions.all())));
        if rules.len() > SLOTS {
            let mut others = Decisions::default();
            rules.drain(SLOTS..).for_each(|(_, decisions)| others.add(decisions));
            rules.push((String::new(), others));
        }
        OwnMinute {
            minute,
            requests: std::array::from_fn(|of| grown(self.requests[of], before.requests[of])),
            sources,
            times: self.times.since(&before.times),
            rules,
        }
    }
}

/// The most minutes that wait for a store that is down.
const UNSENT_MAX: usize = 60;
/// A clock that is set back by more minutes begins anew.
const BACK_MAX: u64 = 10;
