//! The replay: each event put to a limiter of each policy, at its own instant.
//!
//! The limiters are the product's own, with a clock that is set, so that the verdicts are those that
//! `spillgate serve` would have given. One thread reads or makes events, another judges them.

use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;

use spillgate::internals::engine::Engine;
use spillgate::internals::time::Clock;
use spillgate::{Limiter, Policy, Reason};

use super::event::{Event, Vocabulary};
use super::tally::{Refused, Tally};
use crate::Failure;

/// One policy on trial.
pub(super) struct Contender {
    pub(super) name: String,
    pub(super) policy: Policy,
}

/// What came of all policies.
pub(super) struct Outcome {
    pub(super) judged: Vec<Judged>,
    /// The instants of the first and the last event.
    pub(super) span_us: Option<(u64, u64)>,
    /// Which attributes of the vocabulary any event had.
    pub(super) told: Vec<bool>,
}

/// What came of one.
pub(super) struct Judged {
    pub(super) name: String,
    pub(super) tally: Tally,
    /// The most subjects' limits that were held at once.
    pub(super) tiers_most: usize,
    /// Live state that was let go for want of room: its verdicts may be too kind.
    pub(super) forgotten: u64,
    /// Against the first policy; nothing of itself.
    pub(super) difference: Difference,
    #[cfg(test)]
    pub(super) verdicts: Vec<super::tests::Told>,
}

/// Where a policy and the first do not agree.
pub(super) struct Difference {
    /// Refused by the first and not by this one.
    pub(super) only_first_refuses: u64,
    pub(super) only_this_refuses: u64,
    /// Who is refused by the first only.
    pub(super) subjects: Refused,
}

/// A policy at work.
struct Judge {
    name: String,
    limiter: Limiter,
    clock: Clock,
    tally: Tally,
    tiers_most: usize,
    difference: Difference,
    /// What was told of each event.
    #[cfg(test)]
    verdicts: Vec<super::tests::Told>,
}

/// Judges every event that `source` gives, by every contender. `watch` sees how many there were, again and
/// again.
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
    let mut told = vec![false; words.names().len()];
    let (full, batches) = sync_channel(BATCHES);
    let (used, free) = channel();
    let found = thread::scope(|scope| {
        // Failures are for people, and words can go from one thread to another.
        let reader = scope.spawn(move || {
            let mut sender = Batches { full, free, batch: Vec::new(), length: 0 };
            let found =
                source(&mut |event| sender.give(event)).map_err(|failure| failure.to_string());
            sender.send();
            found
        });
        // No decision waits in memory: this thread only polls.
        runtime.block_on(async {
            let mut count = 0;
            for (batch, length) in batches {
                for event in &batch[..length] {
                    if told.contains(&false) {
                        event.values().for_each(|(attribute, _)| told[attribute] = true);
                    }
                    judge_by_all(&mut judges, event, words).await;
                }
                if let [first, .., last] | [first @ last] = &batch[..length] {
                    span_us =
                        Some((span_us.map_or(first.at_us, |(from_us, _)| from_us), last.at_us));
                }
                judges.iter_mut().for_each(Judge::look);
                count += length as u64;
                watch(count);
                // Whoever reads may have ended by now.
                let _ = used.send(batch);
            }
        });
        reader.join().map_err(|_| {
            Failure::from("reading the log failed in a way that is a fault of this program")
        })
    })??;
    let judged = judges.into_iter().map(Judge::end).collect();
    Ok((found, Outcome { judged, span_us, told }))
}

async fn judges(
    contenders: Vec<Contender>,
    follow: &[(String, String)],
    words: &Vocabulary,
) -> Result<Vec<Judge>, Failure> {
    let mut judges = Vec::new();
    for Contender { name, policy } in contenders {
        let clock = Clock::given(0);
        let tally = Tally::new(&policy, words, follow);
        let limiter = Limiter::builder().policy(policy).clock(clock.clone()).top(false);
        let rules = tally.rules.len();
        let limiter = limiter.build().await?;
        let difference =
            Difference::new(judges.first().map_or(rules, |first: &Judge| first.tally.rules.len()));
        judges.push(Judge {
            name,
            limiter,
            clock,
            tally,
            tiers_most: 0,
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
    /// The verdict, and the rule that matters most to it.
    async fn judge(
        &mut self,
        event: &Event,
        words: &Vocabulary,
    ) -> (Option<Reason>, Option<usize>) {
        self.clock.set(event.at_us);
        let decision = self.limiter.check(&event.request(words)).await;
        self.tally.note(event, &decision, words);
        #[cfg(test)]
        self.verdicts.push(super::tests::told(event.at_us, &decision));
        (decision.reason(), decision.top().map(|tier| tier.position().0))
    }

    /// How much is held, from time to time: it is a sum over the engine's tables.
    fn look(&mut self) {
        if let Engine::Memory(memory) = self.limiter.engine() {
            self.tiers_most = self.tiers_most.max(memory.len());
        }
    }

    fn end(self) -> Judged {
        let forgotten = match self.limiter.engine() {
            Engine::Memory(memory) => memory.evictions().live + memory.evictions().overflowed,
            Engine::Redis(_) => 0,
        };
        Judged {
            name: self.name,
            tally: self.tally,
            tiers_most: self.tiers_most,
            forgotten,
            difference: self.difference,
            #[cfg(test)]
            verdicts: self.verdicts,
        }
    }
}

impl Difference {
    fn new(rules: usize) -> Difference {
        Difference { only_first_refuses: 0, only_this_refuses: 0, subjects: Refused::new(rules) }
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
                self.only_first_refuses += 1;
                if let Some(rule) = by {
                    tally.name_refused(rule, event, &mut self.subjects);
                }
            }
            (true, false) => self.only_this_refuses += 1,
            _ => {}
        }
    }
}

/// Events on their way from one thread to the other, many at a time, their places used again.
struct Batches {
    full: SyncSender<(Vec<Event>, usize)>,
    free: Receiver<Vec<Event>>,
    batch: Vec<Event>,
    length: usize,
}

impl Batches {
    fn give(&mut self, event: &mut Event) {
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
        // Nobody listens any more only if the judging thread has failed, which is told there.
        let _ = self.full.send((batch, length));
    }
}

/// Enough that the threads seldom wake each other, and little enough for the processor's cache.
const BATCH: usize = 1_024;
/// How many may wait to be judged.
const BATCHES: usize = 8;
