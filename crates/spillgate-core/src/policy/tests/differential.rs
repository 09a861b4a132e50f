//! Compares the index and the override tables with the simplest correct implementation.

use proptest::prelude::*;

use crate::ip::Network;
use crate::policy::Policy;
use crate::request::Request;

const ATTRIBUTES: [&str; 4] = ["a", "b", "c", "d"];

/// The value of each of the four attributes, if it is present.
type Values = [Option<&'static str>; 4];

#[derive(Clone, Debug)]
enum Pattern {
    Exact(&'static str),
    Prefix(&'static str),
    Suffix(&'static str),
    Around(&'static str, &'static str),
    Absent,
    Not(&'static str),
}

#[derive(Clone, Debug)]
struct Rule {
    domain: &'static str,
    conditions: [Option<Vec<Pattern>>; 4],
    key: [bool; 4],
    off: bool,
}

impl Rule {
    fn is_matched_by(&self, domain: &str, values: &Values) -> bool {
        let holds = |i: usize| {
            let any_of = self.conditions[i].as_ref();
            any_of.is_none_or(|any_of| any_of.iter().any(|pattern| pattern.holds(values[i])))
        };
        let complete = (0..4).all(|i| !self.key[i] || values[i].is_some());
        !self.off && self.domain == domain && complete && (0..4).all(holds)
    }

    fn write(&self, name: usize) -> String {
        let key: Vec<&str> = (0..4).filter(|i| self.key[*i]).map(|i| ATTRIBUTES[i]).collect();
        let mode = if self.off { "off" } else { "shadow" };
        let domain = self.domain;
        let mut text = format!(
            "[[rule]]\nname = '{name}'\ndomain = '{domain}'\nkey = {key:?}\nmode = '{mode}'\nlimits = ['1/day']\n"
        );
        for (attribute, any_of) in ATTRIBUTES.iter().zip(&self.conditions) {
            let Some(any_of) = any_of else { continue };
            let written: Vec<String> = any_of.iter().map(Pattern::write).collect();
            text += &format!("match.{attribute} = [{}]\n", written.join(", "));
        }
        text
    }
}

impl Pattern {
    fn holds(&self, value: Option<&str>) -> bool {
        let is = |check: &dyn Fn(&str) -> bool| value.is_some_and(check);
        match self {
            Pattern::Exact(exact) => value == Some(*exact),
            Pattern::Prefix(prefix) => is(&|value| value.starts_with(prefix)),
            Pattern::Suffix(suffix) => is(&|value| value.ends_with(suffix)),
            Pattern::Around(head, tail) => is(&|value| {
                let is_long_enough = value.len() >= head.len() + tail.len();
                is_long_enough && value.starts_with(head) && value.ends_with(tail)
            }),
            Pattern::Absent => value.is_none(),
            Pattern::Not(exact) => value != Some(*exact),
        }
    }

    fn write(&self) -> String {
        match self {
            Pattern::Exact(text) if text.contains('*') => format!("{{ exact = '{text}' }}"),
            Pattern::Prefix(text) if text.contains('*') => format!("{{ prefix = '{text}' }}"),
            Pattern::Exact(text) => format!("'{text}'"),
            Pattern::Prefix(text) => format!("'{text}*'"),
            Pattern::Suffix(text) => format!("'*{text}'"),
            Pattern::Around(head, tail) => format!("'{head}*{tail}'"),
            Pattern::Absent => "{ absent = true }".to_owned(),
            Pattern::Not(text) => format!("{{ not = {{ exact = '{text}' }} }}"),
        }
    }
}

fn value() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec!["", "x", "y", "*", "xy", "x*", "yx", "xyx", "x*y"])
}

fn text() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec!["", "x", "y", "xy"])
}

fn values() -> impl Strategy<Value = Values> {
    proptest::array::uniform4(proptest::option::weighted(0.8, value()))
}

fn domain() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec!["default", "web"])
}

fn rule() -> impl Strategy<Value = Rule> {
    let pattern = prop_oneof![
        3 => value().prop_map(Pattern::Exact),
        3 => value().prop_map(Pattern::Prefix),
        1 => text().prop_map(Pattern::Suffix),
        1 => (text(), text()).prop_map(|(head, tail)| Pattern::Around(head, tail)),
        1 => Just(Pattern::Absent),
        1 => value().prop_map(Pattern::Not),
    ];
    let condition = proptest::option::weighted(0.4, proptest::collection::vec(pattern, 1..4));
    let keyed = proptest::array::uniform4(proptest::bool::weighted(0.2));
    let parts =
        (domain(), proptest::array::uniform4(condition), keyed, proptest::bool::weighted(0.1));
    parts.prop_map(|(domain, conditions, key, off)| Rule { domain, conditions, key, off })
}

fn request(values: &Values) -> Request<'static> {
    let present =
        ATTRIBUTES.into_iter().zip(values).filter_map(|(name, value)| Some((name, (*value)?)));
    present.fold(Request::new(), |request, (name, value)| request.with(name, value))
}

/// Returns whether an override of these values covers that subject.
fn covers(named: &Values, subject: &Values) -> bool {
    (0..4).all(|i| named[i].is_none() || named[i] == subject[i])
}

fn count(values: &Values) -> usize {
    values.iter().flatten().count()
}

fn tie(one: &Values, other: &Values) -> bool {
    let agree = (0..4).all(|i| one[i].is_none() || other[i].is_none() || one[i] == other[i]);
    count(one) == count(other) && agree
}

fn policy_with(overrides: &[Values]) -> String {
    let mut text = format!("[[rule]]\nname = 'r'\nkey = {ATTRIBUTES:?}\nlimits = ['1000/day']\n");
    for (i, named) in overrides.iter().enumerate() {
        text += &format!("[[override]]\nrule = 'r'\nlimits = ['{}/day']\n", i + 1);
        for (attribute, value) in ATTRIBUTES.iter().zip(named) {
            if let Some(value) = value {
                text += &format!("subject.{attribute} = {}\n", Pattern::Exact(value).write());
            }
        }
    }
    text
}

/// An override of a rule by tenant and address: its tenant and its network, if it names them.
type ByNetwork = (Option<&'static str>, Option<Network>);

fn address() -> impl Strategy<Value = Network> {
    let texts =
        ["10.0.0.1", "10.0.0.2", "10.0.1.1", "10.1.0.1", "11.0.0.1", "2001:db8::/64", "::/64"];
    proptest::sample::select(texts.map(|text| Network::parse(text).unwrap()).to_vec())
}

fn network() -> impl Strategy<Value = Network> {
    let texts = [
        "0.0.0.0/0",
        "10.0.0.0/8",
        "10.0.0.0/16",
        "10.0.0.0/24",
        "10.0.1.0/24",
        "::/0",
        "2001:db8::/48",
    ];
    let wide = proptest::sample::select(texts.map(|text| Network::parse(text).unwrap()).to_vec());
    prop_oneof![wide, address()]
}

fn tenant() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec!["a", "b"])
}

proptest! {
    #[test]
    fn the_smallest_network_of_the_most_attributes_wins(
        overrides in proptest::collection::vec(
            (proptest::option::of(tenant()), proptest::option::of(network())), 0..8,
        ),
        subjects in proptest::collection::vec((tenant(), address()), 1..8),
    ) {
        let mut text = String::from("[[rule]]\nname = 'r'\nkey = ['tenant', 'ip']\nlimits = ['1000/day']\n");
        for (i, (tenant, network)) in overrides.iter().enumerate() {
            text += &format!("[[override]]\nrule = 'r'\nlimits = ['{}/day']\nsubject = {{ ", i + 1);
            let tenant = tenant.map(|tenant| format!("tenant = '{tenant}'"));
            let network = network.map(|network| format!("ip = '{network}'"));
            text += &tenant.into_iter().chain(network).collect::<Vec<_>>().join(", ");
            text += " }\n";
        }
        let alike = |one: &ByNetwork, other: &ByNetwork| {
            let one_attribute = |of: &ByNetwork| of.0.is_some() != of.1.is_some();
            let apart = one.0.is_some() != other.0.is_some();
            one == other || one_attribute(one) && one_attribute(other) && apart
        };
        let ties = (0..overrides.len())
            .any(|i| overrides[..i].iter().any(|earlier| alike(earlier, &overrides[i])));
        let policy = Policy::from_toml(&text);
        prop_assert_eq!(policy.is_err(), ties, "{}", text);
        let Ok(policy) = policy else { return Ok(()) };
        for (tenant, address) in subjects {
            let covers = |(of, network): &ByNetwork| {
                of.is_none_or(|of| of == tenant) && network.is_none_or(|of| of.contains(address))
            };
            let rank = |(of, network): &ByNetwork| {
                let named = usize::from(of.is_some()) + usize::from(network.is_some());
                (named, network.map(Network::prefix))
            };
            let winner = (0..overrides.len())
                .filter(|i| covers(&overrides[*i]))
                .max_by_key(|i| rank(&overrides[*i]));
            let request = Request::new().with("tenant", tenant).with("ip", address.to_string());
            let matched = policy.matched(&policy.typed(&request));
            let expected = winner.map_or(1_000, |i| i as u64 + 1);
            prop_assert_eq!(matched[0].limits[0].limit().capacity(), Some(expected), "{} {}\n{}", tenant, address, text);
        }
    }

    #[test]
    fn a_request_matches_the_rules_that_a_linear_search_finds(
        rules in proptest::collection::vec(rule(), 0..24),
        requests in proptest::collection::vec((domain(), values()), 1..12),
    ) {
        let text: String = rules.iter().enumerate().map(|(name, rule)| rule.write(name)).collect();
        let policy = Policy::from_toml(&text).unwrap();
        for (domain, values) in &requests {
            let matched = policy.matched(&request(values).in_domain(*domain));
            let matched: Vec<usize> = matched.iter().map(|matched| matched.rule_index as usize).collect();
            let expected: Vec<usize> =
                (0..rules.len()).filter(|i| rules[*i].is_matched_by(domain, values)).collect();
            prop_assert_eq!(matched, expected, "{:?}\n{}", values, text);
        }
    }

    #[test]
    fn the_override_of_most_attributes_wins_and_ties_are_rejected(
        overrides in proptest::collection::vec(values().prop_filter("names an attribute", |named| count(named) > 0), 0..8),
        subjects in proptest::collection::vec(proptest::array::uniform4(value()), 1..12),
    ) {
        let text = policy_with(&overrides);
        let ties = (0..overrides.len()).any(|i| overrides[..i].iter().any(|earlier| tie(earlier, &overrides[i])));
        let policy = Policy::from_toml(&text);
        prop_assert_eq!(policy.is_err(), ties, "{}", text);
        let Ok(policy) = policy else { return Ok(()) };
        for subject in subjects {
            let subject = subject.map(Some);
            let winner = (0..overrides.len())
                .filter(|i| covers(&overrides[*i], &subject))
                .max_by_key(|i| count(&overrides[*i]));
            let matched = policy.matched(&request(&subject));
            let expected = winner.map_or(1_000, |i| i as u64 + 1);
            prop_assert_eq!(matched[0].limits[0].limit().capacity(), Some(expected), "{:?}\n{}", subject, text);
        }
    }
}

/// Generates a valid file with a part of it replaced.
fn damaged() -> impl Strategy<Value = String> {
    let sound = [
        "[[rule]]\nname = 'r'\nkey = ['a', 'b']\nanchor = ['a']\nlimits = ['5/day', { quota = '1/s', burst = 2 }]\n",
        "match = { a = ['x', 'y*'], b = { exact = '*' } }\nmode = 'off'\n",
        "[[override]]\nrule = 'r'\nsubject = { a = 'é' }\nlimits = ['6/day']\n[store]\nurl = \"x\"\n",
    ]
    .concat();
    Policy::from_toml(&sound).unwrap();
    let snippet = proptest::sample::select(vec![
        "", "'", "\"", "[", "]", "[[", "{", "}", "=", "\n", "\r", "'''", "\u{feff}", "\0", "é",
        "5", "-", ".", "*", "rule", "\\u",
    ]);
    (0..sound.len(), 0..20_usize, snippet).prop_map(move |(from, length, snippet)| {
        let mut bytes = sound.clone().into_bytes();
        let end = (from + length).min(bytes.len());
        bytes.splice(from..end, snippet.bytes());
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

proptest! {
    #[test]
    fn any_text_is_a_policy_or_has_a_problem_in_one_of_its_lines(text in damaged()) {
        let problems = Policy::problems_in("policy", &text);
        let refused = Policy::from_toml(&text).err();
        prop_assert_eq!(refused.as_ref(), problems.first());
        for problem in problems {
            prop_assert!((1..=text.lines().count() + 1).contains(&problem.line()), "{}", problem);
            prop_assert!(!problem.message().is_empty());
        }
    }
}
