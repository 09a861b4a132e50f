//! Decisions per second: the growth of the counts since a look at them ten seconds ago or more.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::meter::{DECISIONS, Meter};

/// The counts at two looks in the past.
#[derive(Debug, Default)]
pub struct Rates(Mutex<[Option<Look>; 2]>);

#[derive(Clone, Debug)]
struct Look {
    at_ns: u64,
    counts: HashMap<Names, [u64; DECISIONS.len()]>,
}

/// Domain and rule.
type Names = [Arc<str>; 2];

impl Rates {
    /// Returns domain, rule and decision with their rates as text; nothing at the first look.
    pub fn read<'m>(
        &self,
        meters: impl Iterator<Item = &'m Meter>,
        now_ns: u64,
    ) -> Vec<([String; 2], &'static str, String)> {
        let counts =
            meters.map(|meter| ([meter.domain.clone(), meter.rule.clone()], meter.by_decision()));
        let now = Look { at_ns: now_ns, counts: counts.collect() };
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
    fn since(&self, before: &Look) -> Vec<([String; 2], &'static str, String)> {
        let ns = u128::from(self.at_ns.saturating_sub(before.at_ns).max(1));
        let mut rates = Vec::new();
        for ([domain, rule], counts) in &self.counts {
            let were =
                before.counts.get(&[domain.clone(), rule.clone()]).copied().unwrap_or_default();
            for ((decision, count), was) in DECISIONS.into_iter().zip(counts).zip(were) {
                if *count > 0 {
                    let thousandths =
                        u128::from(count.saturating_sub(was)) * 1_000_000_000_000 / ns;
                    let rate = format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000);
                    rates.push(([domain.to_string(), rule.to_string()], decision, rate));
                }
            }
        }
        rates.sort();
        rates
    }
}

/// The least time between two looks, however many scrapers there are.
const LOOK_NS: u64 = 10_000_000_000;
