//! How many decisions there are in a second: what was counted since a look back, ten seconds ago or more.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::meter::{Meter, VERDICTS};

/// What was counted at two looks back.
#[derive(Debug, Default)]
pub(super) struct Rates(Mutex<[Option<Look>; 2]>);

#[derive(Clone, Debug)]
struct Look {
    at_ns: u64,
    counts: HashMap<Names, [u64; VERDICTS.len()]>,
}

/// Domain and rule.
type Names = [Box<str>; 2];

impl Rates {
    /// Domain, rule and verdict with their rates, written out; nothing at the first look.
    pub(super) fn read<'m>(
        &self,
        meters: impl Iterator<Item = &'m Meter>,
        now_ns: u64,
    ) -> Vec<([String; 2], &'static str, String)> {
        let counts =
            meters.map(|meter| ([meter.domain.clone(), meter.rule.clone()], meter.by_verdict()));
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
            for ((verdict, count), was) in VERDICTS.iter().zip(counts).zip(were) {
                if *count > 0 {
                    let thousandths =
                        u128::from(count.saturating_sub(was)) * 1_000_000_000_000 / ns;
                    let rate = format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000);
                    rates.push(([domain.to_string(), rule.to_string()], verdict.name(), rate));
                }
            }
        }
        rates.sort();
        rates
    }
}

/// Two scrapers do not shorten each other's looks below this.
const LOOK_NS: u64 = 10_000_000_000;
