//! Counts the decisions of one policy: by rule, by limit, by subject, over time.

use std::hash::{DefaultHasher, Hash, Hasher};

use spillgate::{Decision, LimitDecision, Policy, Reason, Rule};

use super::bins::{Bins, Join};
use super::event::{Event, Vocabulary};
use crate::printable;

mod denied;
mod followed;

pub(super) use denied::{Denied, Place};
pub(super) use followed::Followed;

/// The counts of one policy.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) requests: u64,
    pub(super) denied: u64,
    /// Of these, the requests that cost more than a limit can ever hold.
    pub(super) cost_exceeds_limit: u64,
    /// Requests that matched no rule, and so were allowed.
    pub(super) unmatched: u64,
    pub(super) rules: Vec<RuleTally>,
    /// The denied subjects.
    pub(super) subjects: Denied,
    /// Requests over time, and those of them that were denied.
    pub(super) over_time: Bins,
    pub(super) followed: Vec<Followed>,
    follow: Vec<(String, String)>,
    /// The answer to each event.
    #[cfg(test)]
    pub(super) answers: Vec<super::tests::Answer>,
}

/// The counts of one rule.
#[derive(Debug)]
pub(super) struct RuleTally {
    pub(super) name: String,
    /// The attributes that name the subject.
    key: Vec<String>,
    /// The key's numbers in the vocabulary; `None` if an attribute is not in it.
    key_numbers: Option<Vec<usize>>,
    /// Requests that matched it.
    pub(super) matched: u64,
    pub(super) denied: u64,
    /// Of these, the requests that cost more than a limit can ever hold.
    pub(super) cost_exceeds_limit: u64,
    /// Requests that a shadow or post-paid limit had no room for.
    pub(super) would_deny: u64,
    /// Empty until a request matches the rule.
    pub(super) limits: Vec<LimitTally>,
}

/// The counts of one limit.
#[derive(Clone, Debug)]
pub(super) struct LimitTally {
    pub(super) denied: u64,
    /// The sum of the charges, in the limit's unit.
    pub(super) charged: u64,
    /// How often it had each fill after a decision, in hundredths of its capacity.
    fill: Vec<u64>,
}

/// The result of one decision for one rule.
#[derive(Clone, Copy, Default)]
struct RuleResult {
    denies: bool,
    cost_exceeds_limit: bool,
    would_deny: bool,
}

impl Tally {
    /// Returns a tally for a policy. It follows the subjects with all values of `follow`, and the subject of each
    /// rule without key attributes.
    pub(super) fn new(policy: &Policy, words: &Vocabulary, follow: &[(String, String)]) -> Tally {
        let rules: Vec<RuleTally> =
            policy.rules().map(|rule| RuleTally::new(rule, words)).collect();
        Tally {
            requests: 0,
            denied: 0,
            cost_exceeds_limit: 0,
            unmatched: 0,
            subjects: Denied::new(rules.len()),
            rules,
            over_time: Bins::new(Join::Sum),
            followed: Vec::new(),
            follow: follow.to_vec(),
            #[cfg(test)]
            answers: Vec::new(),
        }
    }

    /// Counts a decision.
    pub(super) fn note(&mut self, event: &Event, decision: &Decision, words: &Vocabulary) {
        let allowed = decision.allowed();
        #[cfg(test)]
        self.answers.push(super::tests::answer(event.at_us, decision));
        self.requests += 1;
        self.denied += u64::from(!allowed);
        self.cost_exceeds_limit += u64::from(decision.reason() == Some(Reason::CostExceedsLimit));
        self.over_time.add(event.at_us, [1, u64::from(!allowed)]);
        let mut counters = decision.limits().peekable();
        if counters.peek().is_none() {
            self.unmatched += 1;
        }
        while let Some(counter) = counters.peek() {
            let number = counter.rule_index();
            let mut result = RuleResult::default();
            while let Some(counter) = counters.next_if(|counter| counter.rule_index() == number) {
                self.note_counter(event, &counter, allowed, words, &mut result);
            }
            self.note_rule(number, event, result);
        }
    }

    /// Counts a denied subject elsewhere, under the name that this tally gives it.
    pub(super) fn name_denied(&self, rule: usize, event: &Event, denied: &mut Denied) {
        let named = &self.rules[rule];
        denied.add(rule, named.hash(rule, event), || named.subject(event));
    }

    /// Ends the traffic at this instant.
    pub(super) fn finish(&mut self, at_us: u64) {
        self.followed.iter_mut().for_each(|followed| followed.advance(at_us));
    }

    fn note_counter(
        &mut self,
        event: &Event,
        counter: &LimitDecision<'_>,
        allowed: bool,
        words: &Vocabulary,
        result: &mut RuleResult,
    ) {
        let (number, place) = (counter.rule_index(), counter.limit_index());
        let cost = event.cost_in(counter.unit(), words);
        let rule = &mut self.rules[number];
        while rule.limits.len() <= place {
            rule.limits.push(LimitTally { denied: 0, charged: 0, fill: vec![0; FILL_STEPS + 1] });
        }
        let limit = &mut rule.limits[place];
        let denies = !counter.allowed();
        // Shadow and post-paid rules count only if the enforced decision is allowed.
        if counter.shadow() || counter.advisory() {
            result.would_deny |= denies && allowed;
        } else {
            result.denies |= denies;
            result.cost_exceeds_limit |= counter.reason() == Some(Reason::CostExceedsLimit);
            limit.denied += u64::from(denies);
        }
        let charged = allowed && (!denies || counter.advisory());
        if charged {
            limit.charged = limit.charged.saturating_add(cost);
        }
        if let (Some(capacity @ 1..), Some(remaining)) = (counter.capacity(), counter.remaining()) {
            let used = u128::from(capacity.saturating_sub(remaining)) * FILL_STEPS as u128;
            limit.fill[(used / u128::from(capacity)) as usize] += 1;
        }
        if cost > 0 && self.is_followed(number, event) {
            self.note_followed(event, counter, cost, charged);
        }
    }

    fn note_rule(&mut self, number: usize, event: &Event, result: RuleResult) {
        let rule = &mut self.rules[number];
        rule.matched += 1;
        rule.denied += u64::from(result.denies);
        rule.cost_exceeds_limit += u64::from(result.cost_exceeds_limit);
        rule.would_deny += u64::from(result.would_deny);
        if result.denies {
            let hash = rule.hash(number, event);
            self.subjects.add(number, hash, || rule.subject(event));
        }
    }

    fn is_followed(&self, number: usize, event: &Event) -> bool {
        let rule = &self.rules[number];
        let Some(key) = &rule.key_numbers else { return false };
        rule.key.iter().zip(key).all(|(name, number)| {
            let given = self.follow.iter().find(|(known, _)| known == name);
            given.is_some_and(|(_, value)| event.value(*number) == Some(value.as_bytes()))
        })
    }

    fn note_followed(
        &mut self,
        event: &Event,
        counter: &LimitDecision<'_>,
        cost: u64,
        charged: bool,
    ) {
        let place = (counter.rule_index(), counter.limit_index());
        let known = self.followed.iter().position(|known| (known.rule, known.limit) == place);
        let known = known.or_else(|| {
            let (window, capacity) = (counter.definition().window()?, counter.capacity()?);
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
            matched: 0,
            denied: 0,
            cost_exceeds_limit: 0,
            would_deny: 0,
            limits: Vec::new(),
        }
    }

    fn values<'e>(&'e self, event: &'e Event) -> impl Iterator<Item = (&'e str, &'e [u8])> {
        let numbers = self.key_numbers.iter().flatten();
        let names = self.key.iter().map(String::as_str);
        names.zip(numbers.map(|number| event.value(*number).unwrap_or_default()))
    }

    fn hash(&self, number: usize, event: &Event) -> u64 {
        // A fixed key, so that a run can be repeated.
        let mut hasher = DefaultHasher::new();
        number.hash(&mut hasher);
        self.values(event).for_each(|(_, value)| value.hash(&mut hasher));
        hasher.finish()
    }

    /// Returns the subject's name, `ip=203.0.113.7 user=ann`, with long values cut.
    fn subject(&self, event: &Event) -> String {
        let named = self.values(event).map(|(name, value)| {
            let text = String::from_utf8_lossy(value);
            let kept: String = text.chars().take(VALUE_MAX).collect();
            let end = if kept.len() < text.len() { "…" } else { "" };
            let kept = printable(&kept);
            format!("{name}={kept}{end}")
        });
        let named: Vec<String> = named.collect();
        if named.is_empty() { ALL_REQUESTS.to_owned() } else { named.join(" ") }
    }
}

impl LimitTally {
    /// Returns the fill, in hundredths, that `percentile` of a hundred decisions did not exceed; `None` if no
    /// decision had a fill.
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

/// A fill is counted in hundredths.
const FILL_STEPS: usize = 100;
/// As many windows as a person compares.
const FOLLOWED_MAX: usize = 8;
/// The most characters of a value in a subject's name.
const VALUE_MAX: usize = 80;
/// The name of the subject of a rule without key attributes.
const ALL_REQUESTS: &str = "all requests";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_fill_that_the_given_share_of_decisions_did_not_exceed() {
        let mut limit = LimitTally { denied: 0, charged: 0, fill: vec![0; 101] };
        assert_eq!(limit.fill_at(50), None);
        limit.fill[10] = 98;
        limit.fill[70] = 1;
        limit.fill[100] = 1;
        let fills = [50, 98, 99, 100].map(|percentile| limit.fill_at(percentile));
        assert_eq!(fills, [Some(10), Some(10), Some(70), Some(100)]);
    }
}
