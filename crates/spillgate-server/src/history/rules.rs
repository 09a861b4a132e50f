//! Which rules have a series of their own: the busiest. All others share one series, so that sums stay right.

use std::collections::HashMap;
use std::sync::Arc;

use spillgate::metrics::{Decisions, RuleCounts};

use super::RuleSum;
use super::window::{OTHERS, SLOTS, SOURCES, Window};

/// The rules that have decided, and the slots of those with a series.
pub struct Rules {
    /// By domain and name.
    known: HashMap<String, RuleRecord>,
    free: Vec<usize>,
    samples: u64,
}

/// A rule that has decided.
struct RuleRecord {
    rule: Arc<str>,
    before: Option<RuleCounts>,
    own: Option<Own>,
    /// Decisions of the present minute.
    minute: u64,
    /// Decisions of the minutes before, each counting half as much as the next.
    busy: u64,
    /// The last sample that had the rule.
    seen: u64,
}

/// The series of a rule.
#[derive(Clone, Copy)]
pub struct Own {
    pub(crate) slot: usize,
    /// The time from which it has the rule's decisions; `None` if from the first.
    pub(crate) since_ms: Option<u64>,
}

/// The decisions of one rule between two samples.
#[derive(Clone, Debug)]
pub(crate) struct Rate {
    pub(crate) rule: Arc<str>,
    pub(crate) decisions: Decisions,
}

/// The growth of all rules' counts between two samples.
#[derive(Default)]
pub struct Growth {
    pub(crate) rates: Vec<Rate>,
    pub(crate) sources: [u32; SOURCES.len()],
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { known: HashMap::new(), free: (0..SLOTS).rev().collect(), samples: 0 }
    }
}

impl Rules {
    /// Counts the growth of each rule in both windows.
    pub fn note(
        &mut self,
        rules: &[RuleCounts],
        seconds: &mut Window,
        minutes: &mut Window,
    ) -> Growth {
        self.samples += 1;
        let mut growth = Growth::default();
        let mut name = String::new();
        for counts in rules {
            name.clear();
            name.extend([counts.domain(), "\0", counts.rule()]);
            let Some(known) = self.known_as(&name, counts) else { continue };
            let decisions = counts.since(known.before.as_ref());
            if decisions.all() == 0 {
                continue;
            }
            known.minute += decisions.all();
            let before = known.before.replace(counts.clone());
            counts.add_sources_since(before.as_ref(), &mut growth.sources);
            let slot = known.own.map_or(OTHERS, |own| own.slot);
            seconds.count(slot, decisions);
            minutes.count(slot, decisions);
            growth.rates.push(Rate { rule: Arc::clone(&known.rule), decisions });
        }
        // A rule that is gone keeps its series until another rule needs the slot. Its counts are gone: if it comes back,
        // they begin anew.
        let samples = self.samples;
        self.known.retain(|_, known| {
            let is_there = known.seen == samples;
            if !is_there {
                known.before = None;
            }
            is_there || known.own.is_some()
        });
        growth
    }

    /// Returns the series of a rule, if it has one. A rule that moved to another domain is known in both, and was last
    /// seen in the new one.
    pub fn series_of(&self, rule: &str) -> Option<Own> {
        let named = self.known.values().filter(|known| &*known.rule == rule);
        named.max_by_key(|known| known.seen)?.own
    }

    /// Returns the decisions of each rule over some points, those with most denials first. The rules without a series are
    /// one entry, the last.
    pub fn sums(&self, points: &[(&Window, usize)]) -> Vec<RuleSum> {
        let own = self.known.values().filter_map(|known| Some((known, known.own?.slot)));
        let slots = own.map(|(known, slot)| (Some(Arc::clone(&known.rule)), slot));
        let sum = |(rule, slot): (Option<Arc<str>>, usize)| {
            let each = || points.iter().map(|(window, at)| window.decisions(slot, *at));
            let sum = |of: fn(&Decisions) -> u64| each().map(|one| of(&one)).sum();
            RuleSum {
                rule,
                allowed: sum(Decisions::allowed),
                denied: sum(Decisions::denied),
                would_deny: sum(Decisions::would_deny),
            }
        };
        RuleSum::ranked(slots.chain([(None, OTHERS)]).map(sum).collect())
    }

    /// Returns a rule; `None` as long as it has decided nothing.
    fn known_as(&mut self, name: &str, counts: &RuleCounts) -> Option<&mut RuleRecord> {
        if !self.known.contains_key(name) {
            if counts.since(None).all() == 0 {
                return None;
            }
            let own = self.free.pop().map(|slot| Own { slot, since_ms: None });
            let (rule, before) = (counts.shared_rule(), None);
            let known = RuleRecord { rule, before, own, minute: 0, busy: 0, seen: 0 };
            self.known.insert(name.to_owned(), known);
        }
        let known = self.known.get_mut(name)?;
        known.seen = self.samples;
        Some(known)
    }

    /// At the end of a minute, gives the slots of idle rules to busier rules. A rule must be twice as busy, so that equal
    /// rules do not take turns.
    pub fn choose_busiest(&mut self, seconds: &mut Window, minutes: &mut Window, now_ms: u64) {
        for known in self.known.values_mut() {
            known.busy = known.busy / 2 + std::mem::take(&mut known.minute);
        }
        for _ in 0..SLOTS {
            let with = self.known.iter().filter(|(_, known)| known.own.is_some());
            let idlest = with.min_by_key(|(_, known)| known.busy);
            let without = self.known.iter().filter(|(_, known)| known.own.is_none());
            let busiest = without.max_by_key(|(_, known)| known.busy);
            let (Some((idle, idlest)), Some((busy, busiest))) = (idlest, busiest) else { return };
            if busiest.busy <= 2 * idlest.busy {
                return;
            }
            let (idle, busy) = (idle.clone(), busy.clone());
            let freed = self.known.get_mut(&idle).and_then(|idlest| idlest.own.take());
            let own = freed.map(|own| Own { since_ms: Some(now_ms), ..own });
            if let Some(Own { slot, .. }) = own {
                seconds.free(slot);
                minutes.free(slot);
            }
            if let Some(busiest) = self.known.get_mut(&busy) {
                busiest.own = own;
            }
        }
    }
}
