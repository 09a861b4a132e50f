//! Growth of a policy: rules that no request matches, overrides, networks.

use std::error::Error;
use std::hint::black_box;

use spillgate::{Limiter, Policy, Request};

use super::{Bound, Grown, in_turns, measured};
use crate::load::{runtime, shuffled};
use crate::output::grouped;
use crate::rounds::{Effort, Run};

/// A policy with a number of rules for other routes, beside the one that matches.
pub(super) fn idle_rules(effort: Effort) -> Result<Grown, Box<dyn Error>> {
    let counts = [0, 10, 100, 1_000, 10_000];
    let file = |rules: u32| {
        let idle: String = (0..rules).map(|number| rule(&format!("idle-{number}"))).collect();
        idle + &rule("met")
    };
    Ok(Grown {
        title: "Rules that do not match the request",
        counts: IN_MEMORY,
        heads: vec!["rules", "Spillgate"],
        points: counts.map(|rules| grouped(rules.into())).into(),
        values: vec![checks_under(effort, counts.map(file))?],
        bound: Some(Bound { most: 1.2, beside_last: false }),
    })
}

/// A rule with a number of overrides, one of which covers the request.
pub(super) fn overrides(effort: Effort) -> Result<Grown, Box<dyn Error>> {
    let counts = [1_000, 10_000, 100_000, 1_000_000];
    let file = |overrides: u32| {
        let overrides = (0..overrides).map(|number| {
            format!(
                "[[override]]\nrule = \"met\"\nsubject = {{ user = \"user:{number}\" }}\n\
                 limits = [\"240/hour\"]\n"
            )
        });
        rule("met") + &overrides.collect::<String>()
    };
    Ok(Grown {
        title: "Overrides of the rule that matches",
        counts: IN_MEMORY,
        heads: vec!["overrides", "Spillgate"],
        points: counts.map(|overrides| grouped(overrides.into())).into(),
        values: vec![checks_under(effort, counts.map(file))?],
        bound: Some(Bound { most: 1.2, beside_last: false }),
    })
}

/// A rule for a number of networks, one of which has the address of the request.
pub(super) fn networks(effort: Effort) -> Result<Grown, Box<dyn Error>> {
    let counts = [1, 100, 10_000, 100_000];
    let file = |networks: u32| {
        // The last one, 203.0.113.0/24, has the addresses of all requests.
        let others = (1..networks).map(|number| {
            let [_, a, b, c] = number.to_be_bytes();
            format!("\"10.{}.{b}.{c}/32\", ", a + 1)
        });
        rule("met").replace(
            "route = \"/met\"",
            &format!("ip = {{ cidr = [{}\"203.0.113.0/24\"] }}", others.collect::<String>()),
        )
    };
    Ok(Grown {
        title: "Networks of the rule that matches",
        counts: IN_MEMORY,
        heads: vec!["networks", "Spillgate"],
        points: counts.map(|networks| grouped(networks.into())).into(),
        values: vec![checks_under(effort, counts.map(file))?],
        // The prefix tree is some 17 levels deep for 100,000 networks.
        bound: Some(Bound { most: 1.5, beside_last: false }),
    })
}

/// Measures checks of a thousand users under each policy. The rule "met" of each matches all of them.
fn checks_under<const N: usize>(
    effort: Effort,
    files: [String; N],
) -> Result<Vec<f64>, Box<dyn Error>> {
    let runtime = runtime();
    let subjects: Vec<(String, String)> =
        (0..1_000).map(|key| (format!("user:{key}"), format!("203.0.113.{}", key % 250))).collect();
    let order = shuffled(1_000);
    let mut contenders: Vec<Box<dyn FnMut() -> Run + '_>> = Vec::new();
    for file in files {
        let policy = Policy::from_toml(&file)?;
        let limiter = runtime.block_on(Limiter::builder().policy(policy).build())?;
        let (runtime, subjects, order) = (&runtime, &subjects, &order);
        contenders.push(Box::new(move || {
            runtime.block_on(measured(effort, order, async |place: &u32| {
                let (user, ip) = &subjects[*place as usize];
                let request =
                    Request::new().with("user", user).with("route", "/met").with("ip", ip);
                let decision = black_box(limiter.check(&request).await);
                assert!(!decision.is_unmatched(), "the rule does not match");
            }))
        }));
    }
    Ok(in_turns(effort, &mut contenders))
}

fn rule(name: &str) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\nkey = [\"user\"]\nmatch = {{ route = \"/{name}\" }}\n\
         limits = [{{ quota = \"120/hour\", burst = 100000000 }}]\n"
    )
}

const IN_MEMORY: &str = "thousand checks a second, in memory, one thread";
