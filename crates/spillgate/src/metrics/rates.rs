//! Decisions per second: the growth of the counts since a look at them ten seconds ago or more.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::RuleCounts;

/// The counts at two looks in the past.
#[derive(Debug, Default)]
pub struct Rates(Mutex<[Option<Look>; 2]>);

#[derive(Clone, Debug)]
struct Look {
    at_ns: u64,
    counts: HashMap<Labels, u64>,
}

/// Domain, rule, mode and decision.
type Labels = (Arc<str>, Arc<str>, &'static str, &'static str);

impl Rates {
    /// Returns the rates as text; nothing at the first look.
    pub fn read(&self, rules: &[RuleCounts], now_ns: u64) -> Vec<(Labels, String)> {
        let mut now = Look { at_ns: now_ns, counts: HashMap::new() };
        for rule in rules {
            for kind in rule.decisions() {
                let (domain, name) = (Arc::clone(&rule.domain), Arc::clone(&rule.rule));
                let labels = (domain, name, kind.mode.name(), kind.decision());
                *now.counts.entry(labels).or_default() += kind.count;
            }
        }
        let mut looks = self.0.lock();
        let [older, newer] = &mut *looks;
        let rates = older.as_ref().map(|older| now.since(older)).unwrap_or_default();
        if newer.as_ref().is_none_or(|newer| now_ns.saturating_sub(newer.at_ns) >= LOOK_NS) {
            *older = newer.take();
            *newer = Some(now);
            if older.is_none() {
                older.clone_from(newer);
            }
        }
        rates
    }
}

impl Look {
    fn since(&self, before: &Look) -> Vec<(Labels, String)> {
        let ns = u128::from(self.at_ns.saturating_sub(before.at_ns).max(1));
        let rate = |(labels, count): (&Labels, &u64)| {
            let was = before.counts.get(labels).copied().unwrap_or_default();
            let thousandths = u128::from(count.saturating_sub(was)) * 1_000_000_000_000 / ns;
            (labels.clone(), format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000))
        };
        let mut rates: Vec<_> = self.counts.iter().map(rate).collect();
        rates.sort();
        rates
    }
}

/// The least time between two looks, however many scrapers there are.
const LOOK_NS: u64 = 10_000_000_000;
