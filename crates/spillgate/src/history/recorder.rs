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
    /// What was decided in the present minute before that.
    noted: Option<OwnMinute>,
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
        let state =
            State { minute, before: Totals::default(), noted: None, unsent: VecDeque::new() };
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
        // While a clock that was set back catches up, the minute goes on: the record takes minutes in order.
        if minute <= state.minute && state.minute - minute < BACK_MAX {
            return;
        }
        if minute < state.minute {
            // These minutes are in the future, and would hold up all that follow.
            let all = state.unsent.len();
            state.unsent.retain(|unsent| unsent.minute < minute);
            let lost = all - state.unsent.len() + 1;
            tracing::warn!(target: "spillgate", lost, "the clock was set back: the history of the fleet lacks minutes of this instance");
            state.noted = None;
            (state.minute, state.before) = (minute, totals());
            return;
        }
        state.note(totals());
        state.minute = minute;
        let ended = state.noted.take();
        state.unsent.extend(ended);
        if state.unsent.len() > UNSENT_MAX {
            state.unsent.pop_front();
            tracing::warn!(
                target: "spillgate",
                "a minute of this instance is missing in the history of the fleet, because the store did not take it for \
                 an hour; if it is up, see whether its user has the rights of `spillgate doctor --acl`"
            );
        }
    }

    /// Notes the counts in the middle of a minute, before some of them begin anew.
    pub(crate) fn note(&self, totals: Totals) {
        self.state.lock().note(totals);
    }

    /// Notes the counts right after that. Those that are smaller than before have begun anew.
    pub(crate) fn begin_anew(&self, totals: &Totals) {
        let all = |counts: &RuleCounts| counts.sum(|_| true);
        let is_same = |known: &RuleCounts| {
            let now = totals.rules.iter().find(|it| it.rule() == known.rule());
            now.is_some_and(|now| all(now) >= all(known))
        };
        self.state.lock().before.rules.retain(is_same);
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

impl State {
    fn note(&mut self, totals: Totals) {
        let grown = totals.since(&self.before, self.minute);
        self.before = totals;
        match &mut self.noted {
            Some(noted) => noted.add(grown),
            None => self.noted = Some(grown),
        }
    }
}

impl OwnMinute {
    fn add(&mut self, more: OwnMinute) {
        let sums = self.requests.iter_mut().chain(&mut self.sources);
        for (sum, more) in sums.zip(more.requests.into_iter().chain(more.sources)) {
            *sum = sum.saturating_add(more);
        }
        self.times = self.times.and(&more.times);
        for (rule, decisions) in more.rules {
            match self.rules.iter_mut().find(|(known, _)| *known == rule) {
                Some((_, sum)) => sum.add(decisions),
                None => self.rules.push((rule, decisions)),
            }
        }
        self.keep_busiest();
    }

    /// Keeps the rules that deny, then the busiest, and counts all others together. Inline limits have no name.
    fn keep_busiest(&mut self) {
        let is_quiet = |decisions: &Decisions| decisions.all() == decisions.allowed();
        self.rules.sort_by_key(|(rule, decisions)| {
            (rule.is_empty(), is_quiet(decisions), Reverse(decisions.all()))
        });
        if self.rules.len() > SLOTS {
            let mut others = Decisions::default();
            self.rules.drain(SLOTS..).for_each(|(_, decisions)| others.add(decisions));
            self.rules.push((String::new(), others));
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
        let mut ended = OwnMinute {
            minute,
            requests: std::array::from_fn(|of| grown(self.requests[of], before.requests[of])),
            sources,
            times: self.times.since(&before.times),
            rules,
        };
        ended.keep_busiest();
        ended
    }
}

/// The most minutes that wait for a store that is down.
const UNSENT_MAX: usize = 60;
/// A clock that is set back by more minutes begins anew.
const BACK_MAX: u64 = 10;
