//! Replays events: passes each one, at its own instant, to a limiter of each policy.
//!
//! The limiters are the product's own, with a clock that the replay sets, so that they decide as `spillgate serve`
//! would have. One thread reads or makes events; another decides them.

use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use spillgate::testing::ManualClock;
use spillgate::{Limiter, Policy, Reason};

use super::event::{Event, Vocabulary};
use super::tally::{Denied, Tally};
use crate::Failure;

/// A policy to replay.
pub(super) struct Contender {
    pub(super) name: String,
    pub(super) policy: Policy,
}

/// The results of all policies.
pub(super) struct Outcome {
    pub(super) judged: Vec<Judged>,
    /// The instants of the first and the last event.
    pub(super) span_us: Option<(u64, u64)>,
    /// Which attributes of the vocabulary any event had.
    pub(super) present: Vec<bool>,
}

/// The results of one policy.
pub(super) struct Judged {
    pub(super) name: String,
    pub(super) tally: Tally,
    /// The most counters that were held at once.
    pub(super) max_counters: usize,
    /// Counters in use that were evicted for want of room. Their subjects may have been admitted too often.
    pub(super) evicted: u64,
    /// The difference from the first policy; empty for the first itself.
    pub(super) difference: Difference,
    #[cfg(test)]
    pub(super) verdicts: Vec<super::tests::Answer>,
}

/// Where a policy and the first one decide differently.
pub(super) struct Difference {
    /// Denied by the first policy and not by this one.
    pub(super) only_first_denies: u64,
    pub(super) only_this_denies: u64,
    /// The subjects that only the first policy denies.
    pub(super) subjects: Denied,
}

/// A policy with its limiter and its counts.
struct Judge {
    name: String,
    limiter: Limiter,
    clock: ManualClock,
    tally: Tally,
    max_counters: usize,
    difference: Difference,
    /// The decision of each event.
    #[cfg(test)]
    verdicts: Vec<super::tests::Answer>,
}

/// Passes every event of `source` to every policy. `watch` gets the number of events so far, again and again.
pub(super) fn replay<F: Send>(
    contenders: Vec<Contender>,
    follow: &[(String, String)],
    words: &Vocabulary,
    source: impl FnOnce(&mut dyn FnMut(&mut Event)) -> Result<F, Failure> + Send,
    mut watch: impl FnMut(u64),
) -> Result<(F, Outcome), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let mut judges = runtime.block_on(judges(contenders, follow, words))?;
    let mut span_us = None;
    let mut present = vec![false; words.names().len()];
    let (full, batches) = sync_channel(BATCHES);
    let (used, free) = channel();
    let found = thread::scope(|scope| {
        // A failure is no `Send`; its text is.
        let reader = scope.spawn(move || {
            let mut sender = Batches { full, free, batch: Vec::new(), length: 0 };
            let found =
                source(&mut |event| sender.add(event)).map_err(|failure| failure.to_string());
            sender.send();
            found
        });
        // A decision in memory never waits, so this only polls.
        runtime.block_on(async {
            let mut count = 0;
            for (batch, length) in batches {
                for event in &batch[..length] {
                    if present.contains(&false) {
                        event.values().for_each(|(attribute, _)| present[attribute] = true);
                    }
                    judge_by_all(&mut judges, event, words).await;
                }
                if let [first, .., last] | [first @ last] = &batch[..length] {
                    span_us =
                        Some((span_us.map_or(first.at_us, |(from_us, _)| from_us), last.at_us));
                }
                judges.iter_mut().for_each(Judge::note_counters);
                count += length as u64;
                watch(count);
                // The reader may have ended by now.
                let _ = used.send(batch);
            }
        });
        reader.join().map_err(|_| {
            Failure::from("the thread that reads the log panicked: this is a bug, please report it")
        })
    })??;
    let judged = judges.into_iter().map(Judge::end).collect();
    Ok((found, Outcome { judged, span_us, present }))
}

async fn judges(
    contenders: Vec<Contender>,
    follow: &[(String, String)],
    words: &Vocabulary,
) -> Result<Vec<Judge>, Failure> {
    let mut judges = Vec::new();
    for Contender { name, policy } in contenders {
        let clock = ManualClock::new();
        let tally = Tally::new(&policy, words, follow);
        let limiter = Limiter::builder().policy(policy).manual_clock(&clock).top(false);
        let rules = tally.rules.len();
        let limiter = limiter.build().await?;
        let difference =
            Difference::new(judges.first().map_or(rules, |first: &Judge| first.tally.rules.len()));
        judges.push(Judge {
            name,
            limiter,
            clock,
            tally,
            max_counters: 0,
            difference,
            #[cfg(test)]
            verdicts: Vec::new(),
        });
    }
    Ok(judges)
}

async fn judge_by_all(judges: &mut [Judge], event: &Event, words: &Vocabulary) {
    let [first, others @ ..] = judges else { return };
    let (verdict, by) = first.judge(event, words).await;
    for other in others {
        let (others_verdict, _) = other.judge(event, words).await;
        other.difference.note(verdict, others_verdict, by, &first.tally, event);
    }
}

impl Judge {
    /// Returns the reason of a denial, and the rule of the deciding limit.
    async fn judge(
        &mut self,
        event: &Event,
        words: &Vocabulary,
    ) -> (Option<Reason>, Option<usize>) {
        self.clock.set(Duration::from_micros(event.at_us));
        let decision = self.limiter.check(&event.request(words)).await;
        self.tally.note(event, &decision, words);
        #[cfg(test)]
        self.verdicts.push(super::tests::answer(event.at_us, &decision));
        (decision.reason(), decision.top().map(|counter| counter.rule_index()))
    }

    /// Notes how many counters are held. It is called now and then, since it sums over the engine's tables.
    fn note_counters(&mut self) {
        let counters = self.limiter.memory_stats().map_or(0, |memory| memory.counters);
        self.max_counters = self.max_counters.max(counters);
    }

    fn end(self) -> Judged {
        let memory = self.limiter.memory_stats().unwrap_or_default();
        let evicted = memory.evicted + memory.overflowed;
        Judged {
            name: self.name,
            tally: self.tally,
            max_counters: self.max_counters,
            evicted,
            difference: self.difference,
            #[cfg(test)]
            verdicts: self.verdicts,
        }
    }
}

impl Difference {
    fn new(rules: usize) -> Difference {
        Difference { only_first_denies: 0, only_this_denies: 0, subjects: Denied::new(rules) }
    }

    fn note(
        &mut self,
        first: Option<Reason>,
        this: Option<Reason>,
        by: Option<usize>,
        tally: &Tally,
        event: &Event,
    ) {
        match (first.is_none(), this.is_none()) {
            (false, true) => {
                self.only_first_denies += 1;
                if let Some(rule) = by {
                    tally.name_denied(rule, event, &mut self.subjects);
                }
            }
            (true, false) => self.only_this_denies += 1,
            _ => {}
        }
    }
}

/// Sends events from one thread to the other, many at a time, and uses their memory again.
struct Batches {
    full: SyncSender<(Vec<Event>, usize)>,
    free: Receiver<Vec<Event>>,
    batch: Vec<Event>,
    length: usize,
}

impl Batches {
    fn add(&mut self, event: &mut Event) {
        if self.batch.is_empty() {
            let used = self.free.try_recv();
            self.batch = used.unwrap_or_else(|_| vec![Event::default(); BATCH]);
        }
        std::mem::swap(&mut self.batch[self.length], event);
        self.length += 1;
        if self.length == BATCH {
            self.send();
        }
    }

    fn send(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        let length = std::mem::take(&mut self.length);
        // The receiver is gone only if the other thread has failed, which reports it.
        let _ = self.full.send((batch, length));
    }
}

/// Large enough that the threads seldom wake each other, and small enough for the processor's cache.
const BATCH: usize = 1_024;
/// The most batches that wait for decisions.
const BATCHES: usize = 8;
