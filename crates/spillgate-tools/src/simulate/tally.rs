//! Counts the decisions of one policy: by rule, by limit, by subject, by minute.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use spillgate::{Decision, LimitDecision, Policy, Reason, Request, Rule};

use crate::printable;

/// The counts of one policy.
#[derive(Debug, Default)]
pub struct Tally {
    pub(crate) requests: u64,
    pub(crate) denied: u64,
    /// Of these, the requests that cost more than a limit can ever hold.
    pub(crate) cost_exceeds_limit: u64,
    /// Requests that matched no rule, and so were allowed.
    pub(crate) unmatched: u64,
    pub(crate) rules: Vec<RuleTally>,
    /// The denied subjects.
    pub(crate) subjects: Denied,
    /// The requests of each minute since 1970, and those of them that were denied.
    pub(crate) minutes: BTreeMap<u64, [u64; 2]>,
    /// The answer to each request.
    #[cfg(test)]
    pub(crate) answers: Vec<super::tests::Answer>,
}

/// The counts of one rule.
#[derive(Debug)]
pub struct RuleTally {
    pub(crate) name: String,
    /// The attributes that name the subject.
    key: Vec<String>,
    /// Requests that matched it.
    pub(crate) matched: u64,
    pub(crate) denied: u64,
    /// Of these, the requests that cost more than a limit can ever hold.
    pub(crate) cost_exceeds_limit: u64,
    /// Requests that a shadow or post-paid limit had no room for.
    pub(crate) would_deny: u64,
    pub(crate) limits: Vec<LimitTally>,
}

/// The counts of one limit.
#[derive(Clone, Debug)]
pub struct LimitTally {
    pub(crate) denied: u64,
    /// The sum of the charges, in the limit's unit.
    pub(crate) charged: u64,
    /// How often it had each fill after a decision, in hundredths of its capacity.
    fill: [u64; FILL_STEPS + 1],
}

/// How often each subject of each rule was denied, for the first million subjects.
#[derive(Debug, Default)]
pub struct Denied(HashMap<(usize, u64), DeniedSubject>);

/// A denied subject of a rule.
#[derive(Clone, Debug)]
pub struct DeniedSubject {
    pub(crate) name: Box<str>,
    pub(crate) count: u64,
}

/// The result of one decision for one rule.
#[derive(Clone, Copy, Default)]
struct RuleResult {
    denies: bool,
    cost_exceeds_limit: bool,
    would_deny: bool,
}

impl Tally {
    pub fn new(policy: &Policy) -> Tally {
        Tally { rules: policy.rules().map(RuleTally::new).collect(), ..Tally::default() }
    }

    /// Counts a decision.
    pub fn note(&mut self, at_us: u64, request: &Request<'_>, decision: &Decision) {
        let allowed = decision.allowed();
        #[cfg(test)]
        self.answers.push(super::tests::answer(at_us, decision));
        self.requests += 1;
        self.denied += u64::from(!allowed);
        self.cost_exceeds_limit += u64::from(decision.reason() == Some(Reason::CostExceedsLimit));
        let minute = self.minutes.entry(at_us / MINUTE_US).or_default();
        minute[0] += 1;
        minute[1] += u64::from(!allowed);
        let mut counters = decision.limits().peekable();
        if counters.peek().is_none() {
            self.unmatched += 1;
        }
        while let Some(counter) = counters.peek() {
            let number = counter.rule_index();
            let mut result = RuleResult::default();
            while let Some(counter) = counters.next_if(|counter| counter.rule_index() == number) {
                self.rules[number].note_counter(request, &counter, allowed, &mut result);
            }
            self.note_rule(number, request, result);
        }
    }

    /// Counts a denied subject elsewhere, under the name that this tally gives it.
    pub fn name_denied(&self, rule: usize, request: &Request<'_>, denied: &mut Denied) {
        let named = &self.rules[rule];
        denied.add((rule, named.hash(request)), || named.subject(request));
    }

    fn note_rule(&mut self, number: usize, request: &Request<'_>, result: RuleResult) {
        let rule = &mut self.rules[number];
        rule.matched += 1;
        rule.denied += u64::from(result.denies);
        rule.cost_exceeds_limit += u64::from(result.cost_exceeds_limit);
        rule.would_deny += u64::from(result.would_deny);
        if result.denies {
            self.subjects.add((number, rule.hash(request)), || rule.subject(request));
        }
    }
}

impl RuleTally {
    fn new(rule: &Rule) -> RuleTally {
        RuleTally {
            name: rule.name().to_owned(),
            key: rule.key().map(str::to_owned).collect(),
            matched: 0,
            denied: 0,
            cost_exceeds_limit: 0,
            would_deny: 0,
            limits: vec![LimitTally::EMPTY; rule.limits().len()],
        }
    }

    fn note_counter(
        &mut self,
        request: &Request<'_>,
        counter: &LimitDecision<'_>,
        allowed: bool,
        result: &mut RuleResult,
    ) {
        // An override may have more limits than its rule.
        let place = counter.limit_index();
        self.limits.resize(self.limits.len().max(place + 1), LimitTally::EMPTY);
        let limit = &mut self.limits[place];
        let denies = !counter.allowed();
        // Shadow and post-paid rules count only if the enforced decision is allowed.
        if counter.shadow() || counter.advisory() {
            result.would_deny |= denies && allowed;
        } else {
            result.denies |= denies;
            result.cost_exceeds_limit |= counter.reason() == Some(Reason::CostExceedsLimit);
            limit.denied += u64::from(denies);
        }
        if allowed && (!denies || counter.advisory()) {
            limit.charged = limit.charged.saturating_add(request.cost().amount(counter.unit()));
        }
        if let (Some(capacity @ 1..), Some(remaining)) = (counter.capacity(), counter.remaining()) {
            let used = u128::from(capacity.saturating_sub(remaining)) * FILL_STEPS as u128;
            limit.fill[(used / u128::from(capacity)) as usize] += 1;
        }
    }

    fn values<'r>(&'r self, request: &'r Request<'_>) -> impl Iterator<Item = (&'r str, &'r [u8])> {
        let names = self.key.iter().map(String::as_str);
        names.map(move |name| (name, request.attribute(name).unwrap_or_default()))
    }

    fn hash(&self, request: &Request<'_>) -> u64 {
        // A fixed key, so that a run can be repeated.
        let mut hasher = DefaultHasher::new();
        self.values(request).for_each(|(_, value)| value.hash(&mut hasher));
        hasher.finish()
    }

    /// Returns the subject's name, `ip=203.0.113.7 user=ann`, with long values cut.
    fn subject(&self, request: &Request<'_>) -> String {
        let named = self.values(request).map(|(name, value)| {
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
    const EMPTY: LimitTally = LimitTally { denied: 0, charged: 0, fill: [0; FILL_STEPS + 1] };

    /// Returns the fill, in hundredths, that `percentile` of a hundred decisions did not exceed; `None` if no
    /// decision had a fill.
    pub fn fill_at(&self, percentile: u64) -> Option<usize> {
        let total: u64 = self.fill.iter().sum();
        let wanted = (u128::from(total) * u128::from(percentile)).div_ceil(100) as u64;
        let mut seen = 0;
        self.fill.iter().position(|count| {
            seen += count;
            seen >= wanted.max(1)
        })
    }
}

impl Denied {
    /// Counts a denial of the subject with this rule and hash. `name` is called only if the subject is new.
    fn add(&mut self, subject: (usize, u64), name: impl FnOnce() -> String) {
        if let Some(known) = self.0.get_mut(&subject) {
            known.count += 1;
        } else if !self.is_full() {
            self.0.insert(subject, DeniedSubject { name: name().into(), count: 1 });
        }
    }

    /// Returns how many subjects a rule denied.
    pub fn subjects_of(&self, rule: usize) -> u64 {
        self.0.keys().filter(|(known, _)| *known == rule).count() as u64
    }

    /// Returns how many subjects were denied by any rule, each counted once for each rule.
    pub fn subjects(&self) -> u64 {
        self.0.len() as u64
    }

    /// Returns whether there may be more subjects than are counted.
    pub fn is_full(&self) -> bool {
        self.0.len() == SUBJECTS_MAX
    }

    /// Returns the subjects that were denied most often, each with its rule.
    pub fn most(&self, number: usize) -> Vec<(usize, &DeniedSubject)> {
        let mut all: Vec<_> = self.0.iter().map(|((rule, _), subject)| (*rule, subject)).collect();
        all.sort_by_key(|&(rule, subject)| (Reverse(subject.count), rule, &subject.name));
        all.truncate(number);
        all
    }
}

/// A fill is counted in hundredths.
const FILL_STEPS: usize = 100;
pub const MINUTE_US: u64 = 60_000_000;
/// Some 100 MB.
const SUBJECTS_MAX: usize = 1_000_000;
/// The most characters of a value in a subject's name.
const VALUE_MAX: usize = 80;
/// The name of the subject of a rule without key attributes.
const ALL_REQUESTS: &str = "all requests";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_fill_that_the_given_share_of_decisions_did_not_exceed() {
        let mut limit = LimitTally::EMPTY;
        assert_eq!(limit.fill_at(50), None);
        limit.fill[10] = 98;
        limit.fill[70] = 1;
        limit.fill[100] = 1;
        let fills = [50, 98, 99, 100].map(|percentile| limit.fill_at(percentile));
        assert_eq!(fills, [Some(10), Some(10), Some(70), Some(100)]);
    }

    #[test]
    fn the_subjects_denied_most_come_first_and_each_rule_has_its_own() {
        let mut denied = Denied::default();
        for subject in 1..=300 {
            for _ in 0..subject {
                denied.add((subject as usize % 2, subject), || subject.to_string());
            }
        }
        assert_eq!(
            (denied.subjects_of(0), denied.subjects_of(1), denied.subjects()),
            (150, 150, 300)
        );
        let most = denied.most(3);
        let most: Vec<_> =
            most.iter().map(|(rule, subject)| (*rule, &*subject.name, subject.count)).collect();
        assert_eq!(most, [(0, "300", 300), (1, "299", 299), (0, "298", 298)]);
    }
}
