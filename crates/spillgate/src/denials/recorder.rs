//! Records the denials of one instance: the current minute, and the minutes that are over until they are in the
//! record.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::minute::{CountedMinute, EndedMinute};
use super::{AllowedCounts, Hours, MINUTE_US, MinuteCounts};
#[cfg(feature = "redis")]
use super::{DenialSeal, Index};
use crate::subject::Secret;
use crate::time::Clock;

/// What one instance knows of denials.
#[derive(Debug)]
pub(crate) struct Recorder {
    keeping: Keeping,
    clock: Clock,
    pub(crate) counts: MinuteCounts,
    /// The minutes that are over and not settled: rarely more than one.
    counted: Mutex<Vec<CountedMinute>>,
    /// With state in memory: the record.
    pub(crate) hours: Mutex<Hours>,
    unsent: Mutex<Unsent>,
    /// Whether the present minute is the last, which ends at once.
    is_closing: AtomicBool,
    /// Held by a question while it searches. One search takes seconds.
    pub(crate) searching: tokio::sync::Mutex<()>,
    #[cfg(feature = "redis")]
    pub(crate) seal: DenialSeal,
    /// What was read of the fleet's record to search it.
    #[cfg(feature = "redis")]
    pub(crate) index: Mutex<Index>,
}

/// What becomes of the minutes that are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// Nothing is counted.
    Off,
    /// They stay in this process.
    InMemory,
    /// They are sent to the fleet's record.
    OnStore,
}

#[derive(Debug, Default)]
struct Unsent {
    minutes: VecDeque<EndedMinute>,
    /// How many parts of the first minute are in the record.
    sent: usize,
    /// How many minutes were dropped.
    dropped: u64,
}

/// A part of a minute, to be sent.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) minute: EndedMinute,
    pub(crate) number: usize,
}

impl Recorder {
    pub(crate) fn new(
        keeping: Keeping,
        allowed: AllowedCounts,
        clock: Clock,
        secret: &Secret,
    ) -> Recorder {
        Recorder {
            keeping,
            clock,
            counts: MinuteCounts::new(allowed),
            counted: Mutex::default(),
            hours: Mutex::default(),
            unsent: Mutex::default(),
            is_closing: AtomicBool::new(false),
            searching: tokio::sync::Mutex::default(),
            #[cfg(feature = "redis")]
            seal: DenialSeal::new(secret),
            #[cfg(feature = "redis")]
            index: Mutex::default(),
        }
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.keeping != Keeping::Off
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.clock.now_us()
    }

    /// Ends the present minute, so that it can be sent at once.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
        self.settle();
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Ends the minute before, if another has begun.
    #[inline]
    pub(crate) fn turn(&self) {
        let minute = self.now_us() / MINUTE_US + u64::from(self.is_closing());
        if let Some(counted) = self.counts.turn(minute) {
            let mut waiting = self.counted.lock();
            // Without a runtime no task settles them.
            match waiting.len() < COUNTED_MAX {
                true => waiting.push(counted),
                false => self.unsent.lock().dropped += 1,
            }
        }
    }

    /// Goes on with the minutes that are over: in memory they are added to their hours, else they wait for the store.
    /// No decision does this.
    pub(crate) fn settle(&self) {
        self.turn();
        match self.keeping {
            Keeping::Off => {}
            // A search holds the hours for a while, and the next call comes soon.
            Keeping::InMemory => {
                if let Some(mut hours) = self.hours.try_lock() {
                    self.ended().for_each(|minute| hours.add(minute));
                }
            }
            Keeping::OnStore => self.ended().for_each(|minute| self.unsent.lock().add(minute)),
        }
    }

    fn ended(&self) -> impl Iterator<Item = EndedMinute> {
        std::mem::take(&mut *self.counted.lock()).into_iter().map(CountedMinute::ended)
    }

    /// Returns the part of a minute that is to be sent now. `instance` spreads the calls of a fleet over the minute.
    pub(crate) fn due(&self, instance: u64) -> Option<Part> {
        let unsent = self.unsent.lock();
        let first = unsent.minutes.front()?;
        let at_us = (first.minute + 1) * MINUTE_US + instance % SPREAD_US;
        if self.now_us() < at_us && !self.is_closing() {
            return None;
        }
        let number = unsent.sent;
        let subjects = first.subjects.chunks(PART_MAX).nth(number).unwrap_or_default().to_vec();
        let others = if number == 0 { first.others } else { 0 };
        Some(Part { minute: EndedMinute { minute: first.minute, others, subjects }, number })
    }

    /// Notes that the record has a part.
    pub(crate) fn note_sent(&self, part: &Part) {
        let mut unsent = self.unsent.lock();
        let parts = match unsent.minutes.front() {
            // It may have been dropped meanwhile.
            Some(first) if first.minute == part.minute.minute => {
                first.subjects.len().div_ceil(PART_MAX)
            }
            _ => return,
        };
        unsent.sent = part.number + 1;
        if unsent.sent >= parts {
            unsent.minutes.pop_front();
            unsent.sent = 0;
        }
    }

    /// Returns how many minutes were dropped because the store was down.
    pub(crate) fn dropped(&self) -> u64 {
        self.unsent.lock().dropped
    }
}

impl Unsent {
    fn add(&mut self, minute: EndedMinute) {
        self.minutes.push_back(minute);
        if self.minutes.len() > UNSENT_MAX {
            self.minutes.pop_front();
            (self.sent, self.dropped) = (0, self.dropped + 1);
            tracing::warn!(
                target: "spillgate",
                "a minute of denials was dropped, because the store did not take it for an hour; \
                 if it is up, see whether its user has the rights of `spillgate doctor --acl`"
            );
        }
    }
}

/// The most minutes that are over and wait to be settled.
const COUNTED_MAX: usize = 2;
/// The most minutes that wait for a store that is down.
const UNSENT_MAX: usize = 60;
/// The most subjects of one call: they take less than 1 ms of the server's time.
const PART_MAX: usize = 128;
/// The last seconds of a minute are left for minutes with several parts.
const SPREAD_US: u64 = 45_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Reason;
    use crate::denials::Denied;
    use crate::subject::SHARED_SECRET;

    fn on_store(clock: &Clock) -> Recorder {
        let (allowed, secret) = (AllowedCounts::sampled(), Secret::new(&SHARED_SECRET));
        Recorder::new(Keeping::OnStore, allowed, clock.clone(), &secret)
    }

    fn deny(recorder: &Recorder, rule: u64) {
        let name = rule.to_string();
        let subject = || Denied::new(&name, "0", [].into_iter());
        recorder.counts.count(rule, Reason::LimitExceeded, subject);
    }

    #[test]
    fn a_minute_is_due_once_its_turn_has_come_and_part_by_part() {
        let clock = Clock::given(7 * MINUTE_US);
        let recorder = on_store(&clock);
        recorder.turn();
        (0..172).for_each(|rule| deny(&recorder, rule));
        clock.set(8 * MINUTE_US);
        recorder.settle();
        let instance = 3 * SPREAD_US + 20_000_000;
        assert!(recorder.due(instance).is_none());
        clock.set(8 * MINUTE_US + 20_000_000);
        let first = recorder.due(instance).unwrap();
        assert_eq!((first.minute.minute, first.number, first.minute.subjects.len()), (7, 0, 128));
        assert_eq!(recorder.due(instance).unwrap().number, 0, "until it is in the record");
        recorder.note_sent(&first);
        let second = recorder.due(instance).unwrap();
        assert_eq!((second.number, second.minute.subjects.len()), (1, 44));
        recorder.note_sent(&second);
        assert!(recorder.due(instance).is_none());
    }

    /// A limiter whose runtime has ended goes on deciding.
    #[test]
    fn minutes_that_nothing_settles_take_bounded_memory() {
        let clock = Clock::given(0);
        let recorder = on_store(&clock);
        for minute in 0..100 {
            clock.set(minute * MINUTE_US);
            recorder.turn();
            deny(&recorder, 1);
        }
        assert_eq!(recorder.counted.lock().len(), COUNTED_MAX);
        assert!(recorder.dropped() >= 96, "{}", recorder.dropped());
    }

    #[test]
    fn of_more_than_60_unsent_minutes_the_oldest_are_dropped_and_counted() {
        let clock = Clock::given(0);
        let recorder = on_store(&clock);
        for minute in 0..63 {
            clock.set(minute * MINUTE_US);
            recorder.settle();
            deny(&recorder, 1);
        }
        clock.set(99 * MINUTE_US);
        recorder.settle();
        assert_eq!((recorder.dropped(), recorder.due(0).unwrap().minute.minute), (3, 3));
    }
}
