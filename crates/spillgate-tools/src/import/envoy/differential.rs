//! Compares imported policies with the matching of envoyproxy/ratelimit, on random configurations.
//!
//! [`limit_of`] follows `GetLimit` and `wildcardMatch` of its `src/config/config_impl.go`. A configuration that is imported
//! without a difference must limit every descriptor as the original does: the same count, the same counters.

use std::fmt::Write;

use spillgate::testing::ManualClock;
use spillgate::{Cost, Limiter, Policy, Request};

use super::import;
use crate::random::Random;

/// A descriptor of a configuration.
struct Descriptor {
    key: &'static str,
    /// Empty if any value matches.
    value: &'static str,
    shares: bool,
    is_shadow: bool,
    limit: Option<Limit>,
    children: Vec<Descriptor>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Unlimited,
    PerHour(u64),
}

/// The decision on a further request of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Unlimited,
    Remaining(u64),
    Denied,
}

type Entries = [(&'static str, &'static str)];

const KEYS: [&str; 2] = ["a", "b"];
const CONFIGURED: [&str; 8] = ["", "", "x", "xy", "x*", "xy*", "*", "x*y"];
const REQUESTED: [&str; 6] = ["x", "xy", "xyy", "xzy", "yx", "z"];

#[test]
fn a_policy_without_differences_limits_as_the_configuration() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (mut exact, mut limited) = (0, 0);
    for seed in 0..4_000 {
        let mut random = Random::new(seed);
        let tree = descriptors(&mut random, 3);
        let mut text = String::from("domain: d\ndescriptors:\n");
        tree.iter().for_each(|descriptor| descriptor.write(1, &mut text));
        // A key and value may be there twice, which both programs refuse.
        let Ok(imported) = import(&text) else { continue };
        if imported.notes.iter().any(super::Note::is_difference) {
            continue;
        }
        exact += 1;
        limited += runtime.block_on(compare(&tree, &imported.policy, &mut random, seed));
    }
    println!("{exact} configurations without a difference, {limited} limited descriptors in them");
    assert!(exact > 500 && limited > 1_000, "{exact} configurations, {limited} descriptors");
}

/// Compares the decisions on random descriptors, before and after one of them has used its limit up. Returns how many of
/// them are limited.
async fn compare(tree: &[Descriptor], policy: &str, random: &mut Random, seed: u64) -> usize {
    let clock = ManualClock::new();
    let loaded = Policy::from_toml(policy).unwrap();
    let limiter = Limiter::builder().policy(loaded).manual_clock(&clock).build().await.unwrap();
    let all: Vec<Vec<(&str, &str)>> = (0..20)
        .map(|_| {
            (0..=random.below(3))
                .map(|_| (one_of(&KEYS, random), one_of(&REQUESTED, random)))
                .collect()
        })
        .collect();
    let charged = &all[0];
    let used_up = limit_of(tree, charged).filter(|(limit, _)| matches!(limit, Limit::PerHour(1..)));
    if let Some((Limit::PerHour(count), _)) = &used_up {
        let cost = Cost::requests(*count);
        assert!(limiter.check(&request(charged).costing(cost)).await.allowed(), "seed {seed}");
    }
    for entries in &all {
        let expected = match limit_of(tree, entries) {
            None | Some((Limit::Unlimited, _)) => Outcome::Unlimited,
            Some((Limit::PerHour(0), _)) => Outcome::Denied,
            Some((_, counter)) if used_up.as_ref().is_some_and(|(_, used)| *used == counter) => {
                Outcome::Denied
            }
            Some((Limit::PerHour(count), _)) => Outcome::Remaining(count),
        };
        let decision = limiter.check(&request(entries).costing(Cost::requests(0))).await;
        let found = match (decision.allowed(), decision.remaining()) {
            (false, _) => Outcome::Denied,
            (true, None) => Outcome::Unlimited,
            (true, Some(remaining)) => Outcome::Remaining(remaining),
        };
        assert_eq!(found, expected, "seed {seed}, {entries:?} after {charged:?}:\n{policy}");
    }
    all.iter().filter(|entries| limit_of(tree, entries).is_some()).count()
}

/// Returns the limit that envoyproxy/ratelimit applies to a descriptor, and the key of its counter. A limit in shadow mode
/// counts as none.
fn limit_of(tree: &[Descriptor], entries: &Entries) -> Option<(Limit, String)> {
    let mut level = tree;
    let mut counter = String::new();
    for (place, (key, value)) in entries.iter().enumerate() {
        let full = format!("{key}_{value}");
        let exact = level.iter().find(|descriptor| descriptor.full_key() == full);
        let wildcard = || {
            level.iter().find(|it| it.value.contains('*') && wildcard_match(&it.full_key(), &full))
        };
        let found = exact.or_else(wildcard);
        let found =
            found.or_else(|| level.iter().find(|descriptor| descriptor.full_key() == *key))?;
        let counted = if found.shares { found.value } else { value };
        write!(counter, "{key}_{counted}.").unwrap();
        if place + 1 == entries.len() {
            return found.limit.filter(|_| !found.is_shadow).map(|limit| (limit, counter));
        }
        level = &found.children;
    }
    None
}

/// Each `*` matches any number of characters.
fn wildcard_match(pattern: &str, value: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == value,
        Some((before, after)) => value.strip_prefix(before).is_some_and(|rest| {
            (0..=rest.len()).any(|skipped| wildcard_match(after, &rest[skipped..]))
        }),
    }
}

/// Returns the request that the gRPC API makes of a descriptor.
fn request(entries: &Entries) -> Request<'static> {
    let mut request = Request::new().in_domain("d");
    let mut names: Vec<String> = Vec::new();
    for (key, value) in entries {
        let numbered = (2..).map(|number| format!("{key}.{number}"));
        let mut free = std::iter::once((*key).to_owned()).chain(numbered);
        let name = free.find(|name| !names.contains(name)).unwrap();
        request = request.with(name.clone(), *value);
        names.push(name);
    }
    request.with("envoy.entries", names.join(","))
}

fn descriptors(random: &mut Random, depth: u64) -> Vec<Descriptor> {
    let descriptor = |random: &mut Random| {
        let value = one_of(&CONFIGURED, random);
        let children =
            if random.below(3) < depth - 1 { descriptors(random, depth - 1) } else { Vec::new() };
        let limit = match random.below(6) {
            0 => None,
            1 => Some(Limit::Unlimited),
            2 => Some(Limit::PerHour(0)),
            _ => Some(Limit::PerHour(1 + random.below(9))),
        };
        Descriptor {
            key: one_of(&KEYS, random),
            value,
            shares: value.contains('*') && random.below(2) == 0,
            is_shadow: random.below(10) == 0,
            limit,
            children,
        }
    };
    (0..1 + random.below(3)).map(|_| descriptor(random)).collect()
}

fn one_of<T: Copy>(all: &[T], random: &mut Random) -> T {
    all[random.below(all.len() as u64) as usize]
}

impl Descriptor {
    fn full_key(&self) -> String {
        match self.value {
            "" => self.key.to_owned(),
            value => format!("{}_{value}", self.key),
        }
    }

    fn write(&self, depth: usize, text: &mut String) {
        let indent = "  ".repeat(2 * depth);
        let Descriptor { key, value, shares, is_shadow, limit, children } = self;
        let first = &indent[2..];
        writeln!(text, "{first}- key: {key}").unwrap();
        if !value.is_empty() {
            writeln!(text, "{indent}value: '{value}'").unwrap();
        }
        writeln!(text, "{indent}share_threshold: {shares}\n{indent}shadow_mode: {is_shadow}")
            .unwrap();
        match limit {
            None => {}
            Some(Limit::Unlimited) => {
                writeln!(text, "{indent}rate_limit: {{ unlimited: true }}").unwrap()
            }
            Some(Limit::PerHour(count)) => {
                writeln!(text, "{indent}rate_limit: {{ unit: hour, requests_per_unit: {count} }}")
                    .unwrap();
            }
        }
        if !children.is_empty() {
            writeln!(text, "{indent}descriptors:").unwrap();
            children.iter().for_each(|child| child.write(depth + 1, text));
        }
    }
}
