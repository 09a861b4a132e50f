//! The subjects with the most use and with the most denials, by rule, over the last minute or two, in memory of a fixed
//! size. Subjects stay in this process.
//!
//! Decisions are sampled: the first 4,096 of a minute all count. Later ones are taken ever more rarely, and each stands for
//! those that were skipped.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use spillgate_core::random::random;

use super::sketch::{Name, Sketch};
use crate::decision::CounterOutcome;
use crate::policy::Policy;
use crate::request::Request;
use crate::subject::Secret;
use crate::time::counter_ns;

/// The subjects with the most use and with the most denials, as one instance saw them in the last minute or two.
///
/// [`Limiter::top`](crate::Limiter::top) returns it.
#[derive(Clone, Debug)]
pub struct Top {
    window: Duration,
    rules: Vec<TopOfRule>,
    left_out: u64,
}

/// The subjects of one rule with the most use and with the most denials.
///
/// [`Limiter::top`](crate::Limiter::top) has one for each rule.
#[derive(Clone, Debug)]
pub struct TopOfRule {
    rule: Option<String>,
    unit: String,
    consumed: u64,
    denied: u64,
    consumers: Vec<TopSubject>,
    most_denied: Vec<TopSubject>,
}

/// One subject and its count.
///
/// [`Limiter::top`](crate::Limiter::top) lists them.
#[derive(Clone, Debug)]
pub struct TopSubject {
    attributes: Vec<(String, Vec<u8>)>,
    whole: bool,
    count: u64,
}

/// The samples of one process, if it takes any.
#[derive(Debug)]
pub(crate) struct Tops {
    on: bool,
    /// One decision in `period` is sampled.
    period: AtomicU32,
    windows: Mutex<Windows>,
}

/// The present minute and the one before.
#[derive(Debug)]
struct Windows {
    began_ns: u64,
    /// The length of the minute before; 0 if there was none.
    before_ns: u64,
    drawn: u32,
    rules: Vec<Watched>,
    left_out: u64,
}

#[derive(Debug)]
struct Watched {
    /// `None` for inline limits.
    rule: Option<Arc<str>>,
    /// The key attributes of the rule.
    key: Box<[Box<str>]>,
    unit: Box<str>,
    now: Sketches,
    before: Sketches,
}

#[derive(Debug, Default)]
struct Sketches {
    consumed: Option<Box<Sketch>>,
    denied: Option<Box<Sketch>>,
}

/// The effect of one decision on the counts of one rule.
struct Seen<'s> {
    hash: u128,
    consumed: u64,
    denied: u64,
    unit: &'s str,
}

impl Top {
    /// Returns the time over which subjects were counted, up to now.
    pub fn window(&self) -> Duration {
        self.window
    }

    /// Returns the rules that decided within the window.
    pub fn rules(&self) -> &[TopOfRule] {
        &self.rules
    }

    /// Returns about how many decisions were by rules beyond the first 32, which are not counted.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

impl TopOfRule {
    /// Returns the rule; `None` for inline limits.
    pub fn rule(&self) -> Option<&str> {
        self.rule.as_deref()
    }

    /// Returns the unit of its first limit.
    pub fn unit(&self) -> &str {
        &self.unit
    }

    /// Returns the use of all its subjects, in that unit.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Returns the number of denials.
    pub fn denied(&self) -> u64 {
        self.denied
    }

    /// Returns the subjects with the most use, the heaviest first.
    pub fn consumers(&self) -> &[TopSubject] {
        &self.consumers
    }

    /// Returns the subjects with the most denials, the most denied first.
    pub fn most_denied(&self) -> &[TopSubject] {
        &self.most_denied
    }
}

impl TopSubject {
    /// Returns the names and values of the rule's key attributes.
    pub fn attributes(&self) -> impl ExactSizeIterator<Item = (&str, &[u8])> {
        self.attributes.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    /// Returns whether the values are complete; long ones are cut.
    pub fn whole(&self) -> bool {
        self.whole
    }

    /// Returns its use, or the number of its denials.
    pub fn count(&self) -> u64 {
        self.count
    }
}

impl Tops {
    pub fn new(on: bool) -> Tops {
        let windows = Windows {
            began_ns: counter_ns(),
            before_ns: 0,
            drawn: 0,
            rules: Vec::new(),
            left_out: 0,
        };
        Tops { on, period: AtomicU32::new(1), windows: Mutex::new(windows) }
    }

    /// Returns how many decisions this one stands for, if it is sampled.
    #[inline]
    pub fn draw(&self) -> Option<u64> {
        thread_local!(static DRAWS: Cell<Draws> = const { Cell::new(Draws::FIRST) });
        if !self.on {
            return None;
        }
        let mut draws = DRAWS.get();
        let drawn = draws.draw(|| self.period.load(Ordering::Relaxed));
        DRAWS.set(draws);
        drawn
    }

    /// Counts a decision by an inline limit, or by the rules of a policy. `allowed` is the result of the decision.
    #[cold]
    #[inline(never)]
    pub fn note(
        &self,
        weight: u64,
        policy: Option<&Policy>,
        request: &Request<'_>,
        secret: &Secret,
        counters: &[CounterOutcome],
        allowed: bool,
    ) {
        // What takes time comes before the lock.
        let (inline, typed) = (request.inline_limit(), policy.map(|policy| policy.typed(request)));
        let id = inline.map(|(key, _)| secret.inline_key_in(request.domain(), key).id);
        let mut windows = self.windows.lock();
        windows.turn(counter_ns());
        match (inline.zip(id), policy.zip(typed.as_deref())) {
            (Some(((key, limit), id)), _) => {
                windows.note_inline(weight, key, id, request.cost().of_limit(limit), allowed);
            }
            (None, Some((policy, request))) => {
                windows.note_rules(weight, policy, request, secret, counters, allowed);
            }
            (None, None) => {}
        }
        self.period.store(windows.next_period(), Ordering::Relaxed);
    }

    /// Reads rule by rule, so that no decision waits for the lock longer than one rule takes.
    pub fn read(&self, rule: Option<&str>, n: usize, now_ns: u64) -> Top {
        let (window_ns, left_out, count) = {
            let mut windows = self.windows.lock();
            windows.turn(now_ns);
            let window_ns = now_ns.saturating_sub(windows.began_ns) + windows.before_ns;
            (window_ns, windows.left_out, windows.rules.len())
        };
        let rules = (0..count).filter_map(|place| {
            let windows = self.windows.lock();
            let watched = windows.rules.get(place)?;
            let asked = rule.is_none() || watched.rule.as_deref() == rule;
            asked.then(|| watched.top(n))
        });
        Top { window: Duration::from_nanos(window_ns), rules: rules.collect(), left_out }
    }
}

impl Windows {
    /// Begins a new minute when this one is over.
    fn turn(&mut self, now_ns: u64) {
        let age_ns = now_ns.saturating_sub(self.began_ns);
        if age_ns < WINDOW_NS {
            return;
        }
        let is_stale = age_ns >= 2 * WINDOW_NS;
        for watched in &mut self.rules {
            watched.before =
                if is_stale { Sketches::default() } else { std::mem::take(&mut watched.now) };
            watched.now = Sketches::default();
        }
        self.rules.retain(|watched| !watched.before.is_empty());
        self.before_ns = if is_stale { 0 } else { age_ns };
        (self.began_ns, self.drawn, self.left_out) = (now_ns, 0, 0);
    }

    /// Counts a decision by the rules of a policy.
    fn note_rules(
        &mut self,
        weight: u64,
        policy: &Policy,
        request: &Request<'_>,
        secret: &Secret,
        counters: &[CounterOutcome],
        allowed: bool,
    ) {
        for of_rule in counters.chunk_by(|one, next| one.rule == next.rule) {
            let CounterOutcome { rule, shadow, advisory, .. } = of_rule[0];
            let Some(rule) = rule.number() else { continue };
            let rule = policy.rule_at(rule);
            // The rule's own limit, since the counts of all its subjects have one unit. An override may have another.
            let Some(limit) = rule.limits().next() else { continue };
            let denied = of_rule.iter().any(|counter| !counter.allows());
            let charged = advisory || allowed && !(shadow && denied);
            let cost = request.cost().of_limit(limit);
            let seen = Seen {
                hash: rule.subject_key(request, secret).id,
                consumed: if charged { cost.saturating_mul(weight) } else { 0 },
                denied: u64::from(denied && !advisory && (!shadow || allowed)) * weight,
                unit: limit.unit(),
            };
            let values = || rule.key().map(|name| rule.subject_value(request, name));
            let (name, key) = (rule.shared_name(), || rule.key());
            self.count(weight, Some(&name), &seen, key, || Name::from_values(values()));
        }
    }

    /// Counts a decision on an inline limit.
    fn note_inline(&mut self, weight: u64, key: &str, id: u128, cost: u64, allowed: bool) {
        let seen = Seen {
            hash: id,
            consumed: if allowed { cost.saturating_mul(weight) } else { 0 },
            denied: u64::from(!allowed) * weight,
            unit: crate::limit::REQUESTS,
        };
        let name = || Name::from_values([key.as_bytes()].into_iter());
        self.count(weight, None, &seen, || ["key"].into_iter(), name);
    }

    /// Counts a decision. A rule that has another key or unit than before begins anew.
    fn count<'k, K: Iterator<Item = &'k str>>(
        &mut self,
        weight: u64,
        rule: Option<&Arc<str>>,
        seen: &Seen<'_>,
        key: impl Fn() -> K,
        name: impl Fn() -> Name,
    ) {
        self.drawn = self.drawn.saturating_add(1);
        let known = self.rules.iter().position(|watched| watched.rule.as_ref() == rule);
        let place = match known {
            Some(place) => {
                if !self.rules[place].has(key(), seen.unit) {
                    self.rules[place] = Watched::new(rule.cloned(), key(), seen.unit);
                }
                place
            }
            None if self.rules.len() >= RULES_MAX => {
                self.left_out += weight;
                return;
            }
            None => {
                self.rules.push(Watched::new(rule.cloned(), key(), seen.unit));
                self.rules.len() - 1
            }
        };
        let sketches = &mut self.rules[place].now;
        if seen.consumed > 0 {
            sketches.consumed.get_or_insert_default().add(seen.hash, seen.consumed, &name);
        }
        if seen.denied > 0 {
            sketches.denied.get_or_insert_default().add(seen.hash, seen.denied, &name);
        }
    }

    /// Returns the period of sampling: the more decisions there are, the smaller a part of them shows the heavy subjects.
    fn next_period(&self) -> u32 {
        match self.drawn {
            0..4_096 => 1,
            4_096..8_192 => 8,
            8_192..16_384 => 32,
            16_384..32_768 => 64,
            32_768..65_536 => 128,
            _ => 256,
        }
    }
}

impl Watched {
    fn new<'k>(rule: Option<Arc<str>>, key: impl Iterator<Item = &'k str>, unit: &str) -> Watched {
        let key = key.map(Box::from).collect();
        let (now, before) = Default::default();
        Watched { rule, key, unit: unit.into(), now, before }
    }

    fn has<'k>(&self, key: impl Iterator<Item = &'k str>, unit: &str) -> bool {
        *self.unit == *unit && self.key.iter().map(|name| &**name).eq(key)
    }

    fn top(&self, n: usize) -> TopOfRule {
        let consumed = [&self.now.consumed, &self.before.consumed];
        let denied = [&self.now.denied, &self.before.denied];
        let total = |sketches: [&Option<Box<Sketch>>; 2]| {
            let totals = sketches.into_iter().flatten().map(|sketch| sketch.total());
            totals.fold(0, u64::saturating_add)
        };
        TopOfRule {
            rule: self.rule.as_deref().map(str::to_owned),
            unit: self.unit.to_string(),
            consumed: total(consumed),
            denied: total(denied),
            consumers: self.heaviest(consumed, n),
            most_denied: self.heaviest(denied, n),
        }
    }

    fn heaviest(&self, sketches: [&Option<Box<Sketch>>; 2], n: usize) -> Vec<TopSubject> {
        let mut counts: HashMap<u128, (u64, &Name)> = HashMap::new();
        for (hash, count, name) in sketches.into_iter().flatten().flat_map(|sketch| sketch.counts())
        {
            let (sum, _) = counts.entry(hash).or_insert((0, name));
            *sum = sum.saturating_add(count);
        }
        let mut counts: Vec<(u64, &Name)> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.values().cmp(b.1.values())));
        counts.truncate(n);
        counts.into_iter().map(|(count, name)| self.subject(count, name)).collect()
    }

    fn subject(&self, count: u64, name: &Name) -> TopSubject {
        let attributes = self.key.iter().zip(name.values());
        let attributes =
            attributes.map(|(name, value)| (name.to_string(), value.to_vec())).collect();
        TopSubject { attributes, whole: name.whole, count }
    }
}

impl Sketches {
    fn is_empty(&self) -> bool {
        self.consumed.is_none() && self.denied.is_none()
    }
}

/// Chooses the decisions of a thread that are sampled, at random, so that no pattern of callers evades it.
#[derive(Clone, Copy)]
struct Draws {
    /// The number of decisions to skip before the next sample.
    left: u32,
    /// The number of decisions that the next sample stands for.
    weight: u32,
    random: u64,
}

impl Draws {
    const FIRST: Draws = Draws { left: 0, weight: 1, random: 0 };

    #[inline]
    fn draw(&mut self, period: impl FnOnce() -> u32) -> Option<u64> {
        if self.left > 0 {
            self.left -= 1;
            return None;
        }
        Some(self.next(period()))
    }

    /// Skips between none and twice the period, the period on average.
    #[cold]
    fn next(&mut self, period: u32) -> u64 {
        let weight = u64::from(self.weight);
        if self.random == 0 {
            self.random = random() | 1;
        }
        // Xorshift: good enough to choose by, and a nanosecond.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.left = (self.random % u64::from(2 * period - 1)) as u32;
        self.weight = period;
        weight
    }
}

const WINDOW_NS: u64 = 60_000_000_000;
/// Each rule takes some 860 KB at most.
const RULES_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::SHARED_SECRET;

    fn windows() -> Windows {
        Windows { began_ns: 0, before_ns: 0, drawn: 0, rules: Vec::new(), left_out: 0 }
    }

    fn note(windows: &mut Windows, secret: &Secret, subject: &str, weight: u64) {
        let hash = secret.hash_bytes(subject.as_bytes());
        let seen = Seen { hash, consumed: weight, denied: 0, unit: "requests" };
        let name = || Name::from_values([subject.as_bytes()].into_iter());
        windows.count(weight, None, &seen, || ["key"].into_iter(), name);
    }

    fn read(windows: &Windows, n: usize) -> Vec<(String, u64)> {
        let top = windows.rules[0].top(n);
        let text = |subject: &TopSubject| {
            let value = subject.attributes().next().unwrap().1.to_vec();
            (String::from_utf8(value).unwrap(), subject.count())
        };
        top.consumers().iter().map(text).collect()
    }

    #[test]
    fn counts_cover_two_minutes_and_no_more() {
        let (mut windows, secret) = (windows(), Secret::new(&SHARED_SECRET));
        note(&mut windows, &secret, "ann", 1);
        windows.turn(WINDOW_NS);
        note(&mut windows, &secret, "ann", 1);
        note(&mut windows, &secret, "bob", 1);
        assert_eq!(read(&windows, 9), [("ann".to_owned(), 2), ("bob".to_owned(), 1)]);
        windows.turn(2 * WINDOW_NS);
        assert_eq!(read(&windows, 1), [("ann".to_owned(), 1)]);
        windows.turn(4 * WINDOW_NS);
        assert!(windows.rules.is_empty());
    }

    #[test]
    fn counts_of_two_minutes_stop_at_the_largest_number() {
        let (mut windows, secret) = (windows(), Secret::new(&SHARED_SECRET));
        for minute in 1..=2 {
            note(&mut windows, &secret, "ann", u64::MAX);
            assert_eq!(windows.rules[0].top(1).consumed(), u64::MAX);
            assert_eq!(read(&windows, 1), [("ann".to_owned(), u64::MAX)]);
            windows.turn(minute * WINDOW_NS);
        }
    }

    // Sampled as decisions are: a hundred with a thousandth of all and more, among a million others.
    #[test]
    fn drawing_some_decisions_finds_the_heavy_all_the_same() {
        let secret = Secret::new(&SHARED_SECRET);
        let (mut windows, mut period) = (windows(), 1);
        let mut draws = Draws { random: 0x5DEE_CE66, ..Draws::FIRST };
        let (heavy, rounds, others) = (100, 2_600, 385);
        let mut looked_at = 0;
        for round in 0..rounds {
            for subject in 0..heavy + others {
                let Some(weight) = draws.draw(|| period) else { continue };
                let text = match subject {
                    0..100 => format!("heavy-{subject}"),
                    _ => format!("{round}-{subject}"),
                };
                note(&mut windows, &secret, &text, weight);
                period = windows.next_period();
                looked_at += 1;
            }
        }
        let all = rounds * (heavy + others);
        assert!(rounds * 1_000 > all && looked_at * 16 < all, "{looked_at} of {all}");
        let found = read(&windows, heavy).into_iter().filter(|(name, _)| name.starts_with("heavy"));
        let found: Vec<u64> = found.map(|(_, count)| count).collect();
        assert!(found.len() >= 99, "{}", found.len());
        let sum: u64 = found.iter().sum();
        let (mean, rounds) = (sum / found.len() as u64, rounds as u64);
        assert!((rounds * 8 / 10..rounds * 11 / 10).contains(&mean), "{mean} of {rounds}");
    }

    #[test]
    fn rules_without_room_are_counted() {
        let (mut windows, secret) = (windows(), Secret::new(&SHARED_SECRET));
        for number in 0..=RULES_MAX {
            let rule: Arc<str> = number.to_string().into();
            let hash = secret.hash_bytes(b"ann");
            let seen = Seen { hash, consumed: 1, denied: 0, unit: "requests" };
            let name = || Name::from_values([b"ann".as_slice()].into_iter());
            windows.count(3, Some(&rule), &seen, || ["user"].into_iter(), name);
        }
        assert_eq!((windows.rules.len(), windows.left_out), (RULES_MAX, 3));
    }
}
