//! Deciding while the store is out of reach: by each rule's `on_outage`, in one place.

use smallvec::SmallVec;

use crate::algorithm::{
    Intent, Numbers, concurrency, fixed_window, sliding_log, sliding_window, token_bucket,
};
use crate::decision::{Source, Tiers, Verdict};
use crate::engine::{Ask, AskTier, Memory};
use crate::plan::Plan;
use crate::policy::OnOutage;
use crate::time::Clock;

/// What this process does alone: a memory engine that enforces its share of every limit.
#[derive(Debug)]
pub(crate) struct Fallback {
    memory: Memory,
}

impl Fallback {
    pub(crate) fn new(keys_max: usize, clock: Clock) -> Fallback {
        Fallback { memory: Memory::new(keys_max, clock) }
    }

    /// Decides a plan whose store did not answer: all or none over the mix of what its rules say.
    pub(crate) fn judge(&self, plan: Plan<'_>) -> Tiers {
        let shares: Vec<Option<Numbers>> = plan
            .ask
            .tiers
            .iter()
            .zip(plan.on_outage())
            .map(|(tier, on_outage)| (on_outage == OnOutage::Local).then(|| share_of(tier.numbers)))
            .collect();
        let refused = plan
            .on_outage()
            .zip(&plan.ask.tiers)
            .any(|(on_outage, tier)| on_outage == OnOutage::Deny && tier.group == 0);
        let told = {
            let mut ask = Ask { intent: plan.ask.intent, tiers: SmallVec::new() };
            let mut oversized = false;
            for (tier, share) in plan.ask.tiers.iter().zip(&shares) {
                let Some(numbers) = share else { continue };
                let fits = tier.cost <= numbers.capacity();
                oversized |= !fits && tier.group == 0;
                let cost = if fits { tier.cost } else { 0 };
                ask.tiers.push(AskTier { numbers, cost, ..*tier });
            }
            if refused || oversized {
                ask.intent = Intent::Peek;
            }
            self.memory.decide(&ask)
        };
        let costs: SmallVec<[(u64, u64); 4]> = plan
            .ask
            .tiers
            .iter()
            .zip(&shares)
            .map(|(tier, share)| (tier.cost, share.as_ref().map_or(u64::MAX, Numbers::capacity)))
            .collect();
        let mut told = told.tiers.into_iter();
        plan.judged_with(|i, on_outage, judged| {
            let hopeless = judged.verdict == Verdict::Never;
            judged.source = Source::OutagePolicy;
            match on_outage {
                OnOutage::Deny if !hopeless => judged.verdict = Verdict::Denied,
                OnOutage::Allow if !hopeless => judged.retry_after_us = Some(0),
                OnOutage::Deny | OnOutage::Allow => {}
                OnOutage::Local => {
                    judged.source = Source::Fallback;
                    let Some(tier) = told.next() else { return };
                    let (cost, capacity) = costs[i];
                    if hopeless {
                        return;
                    }
                    // A cost above the share may fit the whole limit once the store is back.
                    let fits = tier.fits && cost <= capacity;
                    judged.verdict = if fits { Verdict::Allowed } else { Verdict::Denied };
                    judged.retry_after_us =
                        tier.reading.retry_after_us.filter(|_| cost <= capacity);
                    judged.remaining = Some(tier.reading.remaining);
                    judged.reset_after_us = Some(tier.reading.reset_after_us);
                }
            }
        })
    }
}

/// This process's share of a limit: the rate exactly, counts and bursts rounded down, at least 1.
fn share_of(numbers: &Numbers) -> Numbers {
    let part = |count: u32| (count / SHARES).max(1);
    match numbers {
        Numbers::TokenBucket(numbers) => {
            let period_us = numbers.period_us * u64::from(SHARES);
            let burst = u64::from(part(numbers.burst));
            let share = token_bucket::Numbers::new(numbers.count, period_us, burst);
            // One token at the slowest rate still refills within 2^53 µs.
            Numbers::TokenBucket(share.unwrap_or(*numbers))
        }
        Numbers::FixedWindow(numbers) => Numbers::FixedWindow(fixed_window::Numbers {
            count: part(numbers.count),
            window: numbers.window.clone(),
        }),
        Numbers::SlidingLog(numbers) => {
            Numbers::SlidingLog(sliding_log::Numbers { count: part(numbers.count), ..*numbers })
        }
        Numbers::SlidingWindow(numbers) => Numbers::SlidingWindow(sliding_window::Numbers {
            count: part(numbers.count),
            ..*numbers
        }),
        Numbers::Concurrency(numbers) => {
            Numbers::Concurrency(concurrency::Numbers { count: part(numbers.count), ..*numbers })
        }
    }
}

/// Nobody has told how many processes share the limit: enough for most fleets.
const SHARES: u32 = 16;
