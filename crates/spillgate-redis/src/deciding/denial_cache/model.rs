//! Tries every short history of two decisions, a reset of ours, actions of other instances, and
//! time. A denial from memory must be right, except while room was made that this instance cannot
//! know of.
//!
//! The limit is one in three ticks, and a tick is less than half of the longest time that a denial
//! is used.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::algorithm::Reading;
use crate::limit::{Limit, NamedLimit};
use crate::subject::SubjectKey;

/// The state of the model.
#[derive(Debug)]
struct World {
    now_us: u64,
    /// The time at which the store has room.
    room_at_us: u64,
    /// The time until which the first denial by the store holds.
    refused_until_us: Option<u64>,
    cache: DenialCache,
    calls: Vec<Call>,
    reset: Reset,
    /// The time at which another instance reset the subject.
    reset_elsewhere_us: Option<u64>,
    left: Budget,
    mistake: Mistake,
}

/// A decision that went on to the store, with the store's reply.
#[derive(Clone, Copy, Debug)]
struct Call {
    sent: Sent,
    reply: Option<ChargeReply>,
}

/// A reset of ours. The store executes it before the cache drops its denials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reset {
    NotYet,
    Executed,
    Over,
}

/// The number of steps of each kind that may still happen.
#[derive(Clone, Copy, Debug)]
struct Budget {
    decisions: u32,
    ticks: u32,
    admissions_elsewhere: u32,
}

/// A mistake that a wrong implementation could make. The search must find each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// The era is taken when the reply came instead of when the call was sent.
    ForgetsByReceipt,
    /// A denial is used for its wait from when its reply came.
    HoldsFromReceipt,
    /// Later answers give a `retry_after` that counts from when the call was sent.
    CountsFromSending,
    /// A reset drops no denial.
    KeepsOnReset,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask,
    Execute(usize),
    Receive(usize),
    AdmitElsewhere,
    ResetElsewhere,
    Reset,
    Wait,
}

#[test]
fn a_remembered_denial_is_right_unless_room_was_made_unnoticed() {
    let (states, refused) = search(Mistake::None).unwrap();
    println!("{states} states, {refused} denials from memory");
    assert!(refused > 100, "{refused}");
}

#[test]
fn the_search_finds_each_mistake() {
    for mistake in [
        Mistake::ForgetsByReceipt,
        Mistake::HoldsFromReceipt,
        Mistake::CountsFromSending,
        Mistake::KeepsOnReset,
    ] {
        let found = search(mistake).unwrap_err();
        println!("{mistake:?}: {found}");
    }
}

/// Returns the number of states and of denials from memory, or the shortest history with a wrong
/// one.
fn search(mistake: Mistake) -> Result<(usize, usize), String> {
    let limit = NamedLimit::new(Limit::per(1, Duration::from_micros(3 * TICK_US)), 0);
    let key = SubjectKey { tag: 1, id: 2, rule: 3 };
    let counter = PlannedCharge { cost: 1, ..PlannedCharge::new(key, limit) };
    let (mut seen, mut refused) = (BTreeSet::new(), 0);
    let mut histories = vec![(World::new(mistake), Vec::new())];
    while !histories.is_empty() {
        let mut longer = Vec::new();
        for (world, history) in &histories {
            for step in world.steps() {
                let mut next = world.copied();
                let mut history: Vec<Step> = history.clone();
                history.push(step);
                refused += usize::from(
                    next.take(step, &counter).map_err(|why| format!("{history:?}: {why}"))?,
                );
                if seen.insert(format!("{next:?}")) {
                    longer.push((next, history));
                }
            }
        }
        histories = longer;
    }
    Ok((seen.len(), refused))
}

impl World {
    fn new(mistake: Mistake) -> World {
        World {
            now_us: START_US,
            room_at_us: START_US,
            refused_until_us: None,
            cache: DenialCache { slots: Box::new([Mutex::default()]), ..DenialCache::new(false) },
            calls: Vec::new(),
            reset: Reset::NotYet,
            reset_elsewhere_us: None,
            left: Budget { decisions: 2, ticks: 3, admissions_elsewhere: 1 },
            mistake,
        }
    }

    fn copied(&self) -> World {
        let slot = self.cache.slots[0].lock().clone();
        let read = |counter: &AtomicU64| AtomicU64::new(counter.load(Ordering::Relaxed));
        let cache = DenialCache {
            slots: Box::new([Mutex::new(slot)]),
            ended: read(&self.cache.ended),
            latest_us: read(&self.cache.latest_us),
            ..DenialCache::new(false)
        };
        World { cache, calls: self.calls.clone(), ..*self }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut may = |it: bool, step| steps.extend(Some(step).filter(|_| it));
        may(self.left.decisions > 0, Step::Ask);
        for (number, call) in self.calls.iter().enumerate() {
            let reply = Step::Receive(number);
            may(true, if call.reply.is_none() { Step::Execute(number) } else { reply });
        }
        may(self.left.admissions_elsewhere > 0 && self.has_room(), Step::AdmitElsewhere);
        may(self.reset_elsewhere_us.is_none(), Step::ResetElsewhere);
        may(self.reset != Reset::Over, Step::Reset);
        may(self.left.ticks > 0, Step::Wait);
        steps
    }

    fn has_room(&self) -> bool {
        self.now_us >= self.room_at_us
    }

    /// Takes a step. Returns whether a decision was denied from memory, or the error in it.
    fn take(&mut self, step: Step, counter: &PlannedCharge) -> Result<bool, String> {
        match step {
            Step::Ask => {
                self.left.decisions -= 1;
                let era = self.cache.ended.load(Ordering::Acquire);
                let sent = Sent { at_us: self.now_us, era };
                if let ChargeOutcome::Remembered { retry_after_us, .. } =
                    self.cache.outcome_of(counter, sent)
                {
                    return self.judge(retry_after_us).map(|()| true);
                }
                self.calls.push(Call { sent, reply: None });
            }
            Step::Execute(call) => {
                let fits = self.has_room();
                if fits {
                    self.room_at_us = self.now_us + 3 * TICK_US;
                } else {
                    self.refused_until_us.get_or_insert(self.room_at_us);
                }
                let wait_us = self.room_at_us - self.now_us;
                let retry_after_us = Some(if fits { 0 } else { wait_us });
                let reading = Reading { remaining: 0, retry_after_us, reset_after_us: wait_us };
                self.calls[call].reply = Some(ChargeReply { fits, reading, charge: None });
            }
            Step::Receive(call) => {
                let Call { mut sent, reply } = self.calls.remove(call);
                let mut received_us = self.now_us;
                match self.mistake {
                    Mistake::ForgetsByReceipt => {
                        sent.era = self.cache.ended.load(Ordering::Acquire)
                    }
                    Mistake::HoldsFromReceipt => sent.at_us = received_us,
                    Mistake::CountsFromSending => received_us = sent.at_us,
                    Mistake::None | Mistake::KeepsOnReset => {}
                }
                let refused = reply.filter(|reply| !reply.fits);
                let denial = refused
                    .and_then(|reply| CachedDenial::from_reply(counter, &reply, sent, received_us));
                denial.into_iter().for_each(|denial| self.cache.remember(denial));
            }
            Step::AdmitElsewhere => {
                self.left.admissions_elsewhere -= 1;
                self.room_at_us = self.now_us + 3 * TICK_US;
            }
            Step::ResetElsewhere => {
                self.reset_elsewhere_us = Some(self.now_us);
                self.room_at_us = self.now_us;
            }
            Step::Reset if self.reset == Reset::NotYet => {
                self.reset = Reset::Executed;
                self.room_at_us = self.now_us;
            }
            Step::Reset => {
                self.reset = Reset::Over;
                if self.mistake != Mistake::KeepsOnReset {
                    self.cache.end();
                }
            }
            Step::Wait => {
                self.left.ticks -= 1;
                self.now_us += TICK_US;
            }
        }
        Ok(false)
    }

    /// Checks a denial from memory. The store must deny as well, except for a second after a reset
    /// elsewhere and until our own reset has returned. A caller that waits for `retry_after` must
    /// wait at least as long as the store demanded.
    fn judge(&self, retry_after_us: Option<u64>) -> Result<(), String> {
        let unnoticed = self.reset == Reset::Executed
            || self.reset_elsewhere_us.is_some_and(|at_us| self.now_us < at_us + BELIEVED_US);
        let until_us = self.now_us + retry_after_us.unwrap_or_default();
        if self.has_room() && !unnoticed {
            Err(format!("denied at {}, with room since {}", self.now_us, self.room_at_us))
        } else if self.refused_until_us.is_some_and(|refused_us| until_us < refused_us) {
            Err(format!("asked to wait until {until_us}, with room at {}", self.room_at_us))
        } else {
            Ok(())
        }
    }
}

const START_US: u64 = 10_000_000;
const TICK_US: u64 = 400_000;
