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
use super::report::Input;
use super::tally::{Denied, Tally};
use crate::Failure;

/// A policy to replay.
pub(super) struct Contender {
    pub(super) name: String,
    pub(super) policy: Policy,
}

/// The results of all policies.
pub(super) struct Outcome {
    pub(super) policies: Vec<PolicyReplay>,
    /// The instants of the first and the last event.
    pub(super) span_us: Option<(u64, u64)>,
    /// Which attributes of the vocabulary any event had.
    pub(super) present: Vec<bool>,
}

/// A policy with its limiter and its counts.
pub(super) struct PolicyReplay {
    pub(super) name: String,
    limiter: Limiter,
    clock: ManualClock,
    pub(super) tally: Tally,
    /// The difference from the first policy; empty for the first itself.
    pub(super) difference: Difference,
}

/// Where a policy and the first one decide differently.
pub(super) struct Difference {
    /// Denied by the first policy and not by this one.
    pub(super) only_first_denies: u64,
    pub(super) only_this_denies: u64,
    /// The subjects that only the first policy denies.
    pub(super) subjects: Denied,
}

/// Passes every event of `source` to every policy.
pub(super) fn replay(
    contenders: Vec<Contender>,
    follow: &[(String, String)],
    words: &Vocabulary,
    source: impl FnOnce(&mut dyn FnMut(&mut Event)) -> Result<Input, Failure> + Send,
) -> Result<(Input, Outcome), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let mut policies = runtime.block_on(policy_replays(contenders, follow, words))?;
    let mut span_us = None;
    let mut present = vec![false; words.names().len()];
    let (full, batches) = sync_channel(BATCHES);
    let (used, free) = channel();
    let input = thread::scope(|scope| {
        // A failure is no `Send`; its text is.
        let reader = scope.spawn(move || {
            let mut sender = Batches { full, free, batch: Vec::new(), length: 0 };
            let input =
                source(&mut |event| sender.add(event)).map_err(|failure| failure.to_string());
            sender.send();
            input
        });
        // A decision in memory never waits, so this only polls.
        runtime.block_on(async {
            for (batch, length) in batches {
                for event in &batch[..length] {
                    if present.contains(&false) {
                        event.values().for_each(|(attribute, _)| present[attribute] = true);
                    }
                    replay_event(&mut policies, event, words).await;
                }
                if let [first, .., last] | [first @ last] = &batch[..length] {
                    span_us =
                        Some((span_us.map_or(first.at_us, |(from_us, _)| from_us), last.at_us));
                }
                // The reader may have ended by now.
                let _ = used.send(batch);
            }
        });
        reader.join().map_err(|_| {
            Failure::from("the thread that reads the log panicked: this is a bug, please report it")
        })
    })??;
    Ok((input, Outcome { policies, span_us, present }))
}

async fn policy_replays(
    contenders: Vec<Contender>,
    follow: &[(String, String)],
    words: &Vocabulary,
) -> Result<Vec<PolicyReplay>, Failure> {
    let mut policies: Vec<PolicyReplay> = Vec::new();
    for Contender { name, policy } in contenders {
        let clock = ManualClock::new();
        let tally = Tally::new(&policy, words, follow);
        let limiter = Limiter::builder().policy(policy).manual_clock(&clock).top(false);
        let rules = tally.rules.len();
        let limiter = limiter.build().await?;
        let difference =
            Difference::new(policies.first().map_or(rules, |first| first.tally.rules.len()));
        policies.push(PolicyReplay { name, limiter, clock, tally, difference });
    }
    Ok(policies)
}

async fn replay_event(policies: &mut [PolicyReplay], event: &Event, words: &Vocabulary) {
    let [first, others @ ..] = policies else { return };
    let (reason, by) = first.check(event, words).await;
    for other in others {
        let (others_reason, _) = other.check(event, words).await;
        other.difference.note(reason, others_reason, by, &first.tally, event);
    }
}

impl PolicyReplay {
    /// Returns how many counters in use were evicted for want of room. Their subjects may have been admitted too often.
    pub(super) fn evicted(&self) -> u64 {
        let stats = self.limiter.stats();
        stats.evictions + stats.overflows
    }

    /// Returns the reason of a denial, and the rule of the deciding limit.
    async fn check(
        &mut self,
        event: &Event,
        words: &Vocabulary,
    ) -> (Option<Reason>, Option<usize>) {
        self.clock.set(Duration::from_micros(event.at_us));
        let decision = self.limiter.check(&event.request(words)).await;
        self.tally.note(event, &decision, words);
        (decision.reason(), decision.top().map(|counter| counter.rule_index()))
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
