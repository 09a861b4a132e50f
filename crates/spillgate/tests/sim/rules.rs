//! The policy of the simulated fleets:
//!
//! - each algorithm with a period so long that nothing refills during a run, and with a short one;
//! - each `on_outage`;
//! - rules that match in pairs.

use std::fmt;

use spillgate::{Algorithm, Policy, Request};

use super::support::limits;
use super::support::random::Random;

/// A rule in the form that the policy and the ledger use.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    /// The route on which it also matches together with another rule.
    pair: Option<&'static str>,
    keys: &'static str,
    pub(crate) algorithm: Algorithm,
    pub(crate) count: u64,
    pub(crate) period: Period,
    on_outage: &'static str,
    /// Further lines of the rule.
    more: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Period {
    Ages,
    /// In µs.
    Short(u64),
}

/// The subject of a rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Subject {
    pub(crate) rule: usize,
    pub(crate) user: u64,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/u{}", RULES[self.rule].name, self.user)
    }
}

impl Rule {
    const fn new(name: &'static str, algorithm: Algorithm, count: u64, period: Period) -> Rule {
        Rule {
            name,
            pair: None,
            keys: "\"user\"",
            algorithm,
            count,
            period,
            on_outage: "local",
            more: "",
        }
    }

    const fn on_outage(self, on_outage: &'static str) -> Rule {
        Rule { on_outage, ..self }
    }

    const fn of_pair(self, pair: &'static str, keys: &'static str) -> Rule {
        Rule { pair: Some(pair), keys, ..self }
    }

    /// All users are placed with their tenant.
    const fn anchored(self) -> Rule {
        Rule { keys: "\"tenant\", \"user\"", more: "anchor = [\"tenant\"]\n", ..self }
    }

    /// The most that any interval of one period may hold.
    pub(crate) fn most_in_a_period(&self) -> u64 {
        match self.algorithm {
            Algorithm::SlidingLog | Algorithm::Concurrency => self.count,
            _ => 2 * self.count,
        }
    }

    /// How long an admission counts, plus a moment for a call to be sent.
    pub(crate) fn occupied_ms(&self) -> u64 {
        match self.period {
            Period::Ages => u64::MAX / 2,
            Period::Short(us) if self.algorithm == Algorithm::SlidingWindow => 2 * us / 1_000 + 50,
            Period::Short(us) => us / 1_000 + 50,
        }
    }

    fn written(&self) -> String {
        let Rule { name, pair, keys, algorithm, count, period, on_outage, more } = self;
        let pair = pair.map_or(String::new(), |pair| format!(", \"{pair}\""));
        let length = match period {
            Period::Ages => "366d".to_owned(),
            Period::Short(us) => format!("{}ms", us / 1_000),
        };
        let limit = limits::written(*algorithm, *count, &length);
        format!(
            "[[rule]]\nname = \"{name}\"\nmatch = {{ route = [\"{name}\"{pair}] }}\nkey = [{keys}]\n\
             limits = [{limit}]\non_outage = \"{on_outage}\"\n{more}"
        )
    }
}

pub(crate) fn policy() -> Policy {
    Policy::from_toml(&RULES.iter().map(Rule::written).collect::<String>()).unwrap()
}

pub(crate) fn rule_number(name: &str) -> usize {
    RULES.iter().position(|rule| rule.name == name).expect("a rule of ours")
}

/// Every subject.
pub(crate) fn subjects() -> impl Iterator<Item = Subject> {
    (0..RULES.len()).flat_map(|rule| {
        let users = if RULES[rule].keys.is_empty() { 1 } else { USERS };
        (0..users).map(move |user| Subject { rule, user })
    })
}

/// A request, and the subjects that it would charge.
pub(crate) struct Case {
    route: &'static str,
    user: String,
    pub(crate) costs: Vec<(Subject, u64)>,
}

impl Case {
    pub(crate) fn any(random: &mut Random) -> Case {
        let cost = 1 + random.below(5) / 3;
        let (rule, user) = (random.below(RULES.len() as u64 - 1) as usize, random.below(USERS));
        let subject = |rule: usize| Subject {
            rule,
            user: if RULES[rule].keys.is_empty() { 0 } else { user },
        };
        let Some(route) = RULES[rule].pair else { return Case::about(subject(rule), cost) };
        let pair = (0..RULES.len()).filter(|rule| RULES[*rule].pair == Some(route));
        let costs = pair.map(|rule| (subject(rule), cost)).collect();
        Case { route, user: format!("u{user}"), costs }
    }

    pub(crate) fn about(subject: Subject, cost: u64) -> Case {
        let route = RULES[subject.rule].name;
        Case { route, user: format!("u{}", subject.user), costs: vec![(subject, cost)] }
    }

    pub(crate) fn request(&self) -> Request<'_> {
        let cost = self.costs[0].1;
        let request = Request::new().with("route", self.route).with("tenant", "t");
        request.with("user", &*self.user).costing(cost)
    }
}

/// The routes on which several rules match.
const BUCKETS: &str = "buckets";
const OTHERS: &str = "others";
/// The rule that operators change during the run. It is the last, and callers do not use it.
pub(crate) const SWITCHED: &str = "switched";
const MOMENT: Period = Period::Short(2_000_000);
pub(crate) const USERS: u64 = 3;
pub(crate) const RULES: [Rule; 18] = [
    Rule::new("ages-bucket", Algorithm::TokenBucket, 24, Period::Ages),
    Rule::new("ages-fixed", Algorithm::FixedWindow, 24, Period::Ages),
    Rule::new("ages-log", Algorithm::SlidingLog, 24, Period::Ages),
    Rule::new("ages-sliding", Algorithm::SlidingWindow, 24, Period::Ages),
    Rule::new("ages-permits", Algorithm::Concurrency, 24, Period::Ages),
    Rule::new("bucket", Algorithm::TokenBucket, 9, MOMENT),
    Rule::new("fixed", Algorithm::FixedWindow, 9, MOMENT),
    Rule::new("log", Algorithm::SlidingLog, 9, MOMENT),
    Rule::new("sliding", Algorithm::SlidingWindow, 9, MOMENT),
    Rule::new("permits", Algorithm::Concurrency, 9, MOMENT),
    Rule::new("strict", Algorithm::TokenBucket, 9, MOMENT).on_outage("deny"),
    Rule::new("lax", Algorithm::SlidingLog, 9, MOMENT).on_outage("allow"),
    Rule::new("narrow", Algorithm::TokenBucket, 60, Period::Ages).of_pair(BUCKETS, "\"user\""),
    Rule::new("wide", Algorithm::TokenBucket, 9, MOMENT).of_pair(BUCKETS, ""),
    Rule::new("narrow-log", Algorithm::SlidingLog, 60, Period::Ages).of_pair(OTHERS, "\"user\""),
    Rule::new("wide-fixed", Algorithm::FixedWindow, 9, MOMENT).of_pair(OTHERS, ""),
    Rule::new("anchored", Algorithm::TokenBucket, 24, Period::Ages).anchored(),
    Rule::new(SWITCHED, Algorithm::TokenBucket, 9, Period::Ages),
];
