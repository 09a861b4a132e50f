//! What became of the traffic under one policy: by rule, by limit, by subject, over time.

use std::hash::{DefaultHasher, Hash, Hasher};

use spillgate::{Decision, LimitDecision, Policy, Reason, Rule};

use super::bins::{Bins, Join};
use super::event::{Event, Vocabulary};

mod followed;
mod refused;

pub(super) use followed::Followed;
pub(super) use refused::{Place, Refused};

/// The counts of one policy.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) requests: u64,
    pub(super) denied: u64,
    pub(super) never: u64,
    /// Requests that met no rule, and so were allowed.
    pub(super) unmatched: u64,
    pub(super) rules: Vec<RuleTally>,
    pub(super) refused: Refused,
    /// Requests, and those of them that were refused.
    pub(super) over_time: Bins,
    pub(super) followed: Vec<Followed>,
    follow: Vec<(String, String)>,
}

/// The counts of one rule.
#[derive(Debug)]
pub(super) struct RuleTally {
    pub(super) name: String,
    /// The attributes that say who is limited.
    key: Vec<String>,
    /// The same in the vocabulary's numbers; nothing if one of them is not in it.
    key_numbers: Option<Vec<usize>>,
    /// Requests that met it.
    pub(super) met: u64,
    pub(super) refused: u64,
    /// Of these, those that cost more than a limit can ever hold.
    pub(super) never: u64,
    /// What it would have refused, or was charged for without room, where it has no say.
    pub(super) would_refuse: u64,
    /// None before it is met.
    pub(super) limits: Vec<LimitTally>,
}

/// The counts of one limit.
#[derive(Clone, Debug)]
pub(super) struct LimitTally {
    pub(super) refused: u64,
    /// What was charged, in the limit's unit.
    pub(super) charged: u64,
    /// How often it was so full, in hundredths of its capacity, right after a decision.
    fill: Vec<u64>,
}

/// How one decision came out for one rule.
#[derive(Clone, Copy, Default)]
struct Outcome {
    refuses: bool,
    never: bool,
    would_refuse: bool,
}

impl Tally {
    /// Of a policy. Subjects are followed who have all values of `follow`, and the one subject of each rule
    /// that is for all together.
    pub(super) fn new(policy: &Policy, words: &Vocabulary, follow: &[(String, String)]) -> Tally {
        let rules: Vec<RuleTally> =
            policy.rules().map(|rule| RuleTally::new(rule, words)).collect();
        Tally {
            requests: 0,
            denied: 0,
            never: 0,
            unmatched: 0,
            refused: Refused::new(rules.len()),
            rules,
            over_time: Bins::new(Join::Sum),
            followed: Vec::new(),
            follow: follow.to_vec(),
        }
    }

    /// Counts a decision.
    pub(super) fn note(&mut self, event: &Event, decision: &Decision, words: &Vocabulary) {
        let allowed = decision.allowed();
        self.requests += 1;
        match decision.reason() {
            None => {}
            Some(reason) if reason.is_permanent() => self.never += 1,
            Some(_) => self.denied += 1,
        }
        self.over_time.add(event.at_us, [1, u64::from(!allowed)]);
        let mut tiers = decision.limits().peekable();
        if tiers.peek().is_none() {
            self.unmatched += 1;
        }
        while let Some(tier) = tiers.peek() {
            let (number, _) = tier.position();
            let mut outcome = Outcome::default();
            while let Some(tier) = tiers.next_if(|tier| tier.position().0 == number) {
                self.note_tier(event, &tier, allowed, words, &mut outcome);
            }
            self.note_rule(number, event, outcome);
        }
    }

    /// Counts somebody elsewhere as this tally would under a rule.
    pub(super) fn name_refused(&self, rule: usize, event: &Event, refused: &mut Refused) {
        let named = &self.rules[rule];
        refused.add(rule, named.hash(rule, event), || named.subject(event));
    }

    /// The traffic ended at this instant.
    pub(super) fn finish(&mut self, at_us: u64) {
        self.followed.iter_mut().for_each(|followed| followed.advance(at_us));
    }

    fn note_tier(
        &mut self,
        event: &Event,
        tier: &LimitDecision<'_>,
        allowed: bool,
        words: &Vocabulary,
        outcome: &mut Outcome,
    ) {
        let (number, place) = tier.position();
        let cost = event.cost_in(tier.unit(), words);
        let rule = &mut self.rules[number];
        while rule.limits.len() <= place {
            rule.limits.push(LimitTally { refused: 0, charged: 0, fill: vec![0; FILL_STEPS + 1] });
        }
        let limit = &mut rule.limits[place];
        let refuses = !tier.allowed();
        // A rule in the shadow is judged only where all others allow.
        if tier.shadow() || tier.advisory() {
            outcome.would_refuse |= refuses && allowed;
        } else {
            outcome.refuses |= refuses;
            outcome.never |= tier.reason().is_some_and(Reason::is_permanent);
            limit.refused += u64::from(refuses);
        }
        let charged = allowed && (!refuses || tier.advisory());
        if charged {
            limit.charged = limit.charged.saturating_add(cost);
        }
        if let (Some(capacity @ 1..), Some(remaining)) = (tier.capacity(), tier.remaining()) {
            let used = u128::from(capacity.saturating_sub(remaining)) * FILL_STEPS as u128;
            limit.fill[(used / u128::from(capacity)) as usize] += 1;
        }
        if cost > 0 && self.is_followed(number, event) {
            self.note_followed(event, tier, cost, charged);
        }
    }

    fn note_rule(&mut self, number: usize, event: &Event, outcome: Outcome) {
        let rule = &mut self.rules[number];
        rule.met += 1;
        rule.refused += u64::from(outcome.refuses);
        rule.never += u64::from(outcome.never);
        rule.would_refuse += u64::from(outcome.would_refuse);
        if outcome.refuses {
            let hash = rule.hash(number, event);
            self.refused.add(number, hash, || rule.subject(event));
        }
    }

    fn is_followed(&self, number: usize, event: &Event) -> bool {
        let rule = &self.rules[number];
        let Some(key) = &rule.key_numbers else { return false };
        rule.key.iter().zip(key).all(|(name, number)| {
            let told = self.follow.iter().find(|(known, _)| known == name);
            told.is_some_and(|(_, value)| event.value(*number) == Some(value.as_bytes()))
        })
    }

    fn note_followed(&mut self, event: &Event, tier: &LimitDecision<'_>, cost: u64, charged: bool) {
        let place = tier.position();
        let known = self.followed.iter().position(|known| (known.rule, known.limit) == place);
        let known = known.or_else(|| {
            let (window, capacity) = (tier.definition().window()?, tier.capacity()?);
            let window_us = u64::try_from(window.as_micros()).ok()?;
            let subject = self.rules[place.0].subject(event);
            let followed = Followed::new(place, subject, capacity, window_us);
            (self.followed.len() < FOLLOWED_MAX).then(|| {
                self.followed.push(followed);
                self.followed.len() - 1
            })
        });
        if let Some(known) = known {
            self.followed[known].note(event.at_us, cost, charged);
        }
    }
}

impl RuleTally {
    fn new(rule: &Rule, words: &Vocabulary) -> RuleTally {
        let key: Vec<String> = rule.key().map(str::to_owned).collect();
        RuleTally {
            name: rule.name().to_owned(),
            key_numbers: key.iter().map(|name| words.number(name)).collect(),
            key,
            met: 0,
            refused: 0,
            never: 0,
            would_refuse: 0,
            limits: Vec::new(),
        }
    }

    fn values<'e>(&'e self, event: &'e Event) -> impl Iterator<Item = (&'e str, &'e [u8])> {
        let numbers = self.key_numbers.iter().flatten();
        let names = self.key.iter().map(String::as_str);
        names.zip(numbers.map(|number| event.value(*number).unwrap_or_default()))
    }

    fn hash(&self, number: usize, event: &Event) -> u64 {
        // Of a fixed key, so that a run can be repeated.
        let mut hasher = DefaultHasher::new();
        number.hash(&mut hasher);
        self.values(event).for_each(|(_, value)| value.hash(&mut hasher));
        hasher.finish()
    }

    /// Who it is about: `ip=203.0.113.7 user=ann`, the long cut short.
    fn subject(&self, event: &Event) -> String {
        let named = self.values(event).map(|(name, value)| {
            let text = String::from_utf8_lossy(value);
            let kept: String = text.chars().take(VALUE_MAX).collect();
            let end = if kept.len() < text.len() { "…" } else { "" };
            let kept = kept.replace(char::is_control, "\u{FFFD}");
            format!("{name}={kept}{end}")
        });
        let named: Vec<String> = named.collect();
        if named.is_empty() { EVERYBODY.to_owned() } else { named.join(" ") }
    }
}

impl LimitTally {
    /// How full it was at so many of a hundred decisions, at most, in hundredths; nothing if no decision told.
    pub(super) fn fill_at(&self, percentile: u64) -> Option<usize> {
        let total: u64 = self.fill.iter().sum();
        let wanted = (u128::from(total) * u128::from(percentile)).div_ceil(100) as u64;
        let mut seen = 0;
        self.fill.iter().position(|count| {
            seen += count;
            seen >= wanted.max(1)
        })
    }
}

/// Hundredths.
const FILL_STEPS: usize = 100;
/// Charts that a page still shows well.
const FOLLOWED_MAX: usize = 8;
/// Of a value, in what people read.
const VALUE_MAX: usize = 80;
/// The subject of a rule without key attributes.
const EVERYBODY: &str = "everybody";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_fill_that_so_many_decisions_did_not_exceed() {
        let mut limit = LimitTally { refused: 0, charged: 0, fill: vec![0; 101] };
        assert_eq!(limit.fill_at(50), None);
        limit.fill[10] = 98;
        limit.fill[70] = 1;
        limit.fill[100] = 1;
        let fills = [50, 98, 99, 100].map(|percentile| limit.fill_at(percentile));
        assert_eq!(fills, [Some(10), Some(10), Some(70), Some(100)]);
    }
}
