//! `spillgate simulate`: replays a log, or made-up traffic, against one or several policies.
//!
//! One thread reads lines into events ([`log`], [`order`]) or makes them ([`pattern`]). Another passes each event, at
//! its own instant, to a limiter of each policy ([`replay`]) and counts the decisions ([`tally`]). The [`report`]
//! shows them as text or JSON.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use spillgate::{Limit, LimitSpec, Policy, Rule};

use crate::{Failure, say};

mod args;
mod bins;
mod condition;
pub(crate) mod duration;
mod event;
pub(crate) mod log;
mod order;
mod pattern;
pub(crate) mod random;
mod replay;
mod report;
mod tally;
#[cfg(test)]
mod tests;

pub use args::SimulateArgs;
pub(crate) use condition::{Condition, condition};
use event::Vocabulary;
pub(crate) use log::{Format, Mapping, mapping};
use log::{Logs, Unreadable};
use order::Spread;
use pattern::{Options, Pattern, Reference, value_of};
pub(crate) use pattern::{Rate, SUBJECTS_MAX, Shape};
use replay::{Contender, Outcome, replay};
use report::{ConditionReport, Input, Report};

/// Replays the traffic that the flags name, and reports which requests each policy would deny. `load` reads the
/// policy of a file.
///
/// # Errors
///
/// If a policy does not load, or a log cannot be read.
pub fn run(
    args: &SimulateArgs,
    load: &dyn Fn(&Path) -> Result<Policy, Failure>,
) -> Result<ExitCode, Failure> {
    let contenders = contenders(args, load)?;
    let policies: Vec<Policy> =
        contenders.iter().map(|contender| contender.policy.clone()).collect();
    let rules: Vec<&str> = policies[0].rules().map(Rule::name).collect();
    args.fail_if.iter().try_for_each(|condition| condition.check(&rules, policies.len()))?;

    let words = vocabulary(args, &policies);
    refuse_unused_attributes(args, &words)?;
    let (input, outcome) = match args.pattern {
        Some(shape) => replay_pattern(args, shape, contenders, &words)?,
        None => replay_logs(args, contenders, &words)?,
    };
    let mut report = Report::new(input, outcome, &policies, &words, args.top.into());
    let conditions = args.fail_if.iter().map(|condition| ConditionReport {
        condition: condition.to_string(),
        holds: condition.holds(&report),
    });
    report.conditions = conditions.collect();

    match args.json {
        true => say(&serde_json::to_string(&report)?)?,
        false => say(&report)?,
    }
    let fails = report.conditions.iter().any(|condition| condition.holds);
    Ok(if fails { ExitCode::from(CONDITION_HOLDS) } else { ExitCode::SUCCESS })
}

fn replay_logs(
    args: &SimulateArgs,
    contenders: Vec<Contender>,
    words: &Vocabulary,
) -> Result<(Input, Outcome), Failure> {
    let logs = Logs {
        files: args.logs.clone(),
        format: args.format,
        mappings: args.map.clone(),
        cost_field: args.cost_from.as_deref().map(|flag| cost(flag).1.to_owned()),
        delay_us: args.delay,
        spread: if args.spread { Spread::OverTheSecond } else { Spread::No },
        unreadable: if args.strict { Unreadable::Refuse } else { Unreadable::Count },
    };
    replay(contenders, &args.follow, words, |emit| logs.read(words, emit))
}

fn replay_pattern(
    args: &SimulateArgs,
    shape: Shape,
    contenders: Vec<Contender>,
    words: &Vocabulary,
) -> Result<(Input, Outcome), Failure> {
    let options = Options {
        rate: args.rate,
        length_us: args.length_us,
        subjects: args.subjects,
        seed: args.seed,
        with: args.with.clone(),
    };
    let limit = reference(&contenders[0].policy).or_else(|| args.rate.map(Reference::of_rate));
    let limit =
        limit.ok_or("the policy has no limit that could size the traffic; write a --rate")?;
    let pattern = Pattern::new(shape, limit, options)?;
    let follow = match args.follow.is_empty() {
        true => first_subject(args, words),
        false => args.follow.clone(),
    };
    let span_us = pattern.span_us();
    let (input, mut outcome) = replay(contenders, &follow, words, |emit| {
        pattern.make(words, emit);
        let (source, span_us) = (pattern.for_people(), Some(span_us));
        Ok(Input { source, span_us, ..Input::default() })
    })?;
    outcome.policies.iter_mut().for_each(|policy| policy.tally.finish(span_us.1));
    Ok((input, outcome))
}

/// Returns the policies to compare. Conditions are about the first.
fn contenders(
    args: &SimulateArgs,
    load: &dyn Fn(&Path) -> Result<Policy, Failure>,
) -> Result<Vec<Contender>, Failure> {
    let mut contenders = Vec::new();
    if let Some(file) = &args.config {
        contenders.push(from_file(file, load)?);
    }
    if let Some(quota) = &args.quota {
        let bucket = [spillgate::Algorithm::TokenBucket.name().to_owned()];
        let names = if args.algorithm.is_empty() { &bucket[..] } else { &args.algorithm };
        for name in names {
            contenders.push(from_flags(args, quota, name)?);
        }
    }
    if let Some(file) = &args.against {
        contenders.push(from_file(file, load)?);
    }
    Ok(contenders)
}

fn from_file(
    file: &Path,
    load: &dyn Fn(&Path) -> Result<Policy, Failure>,
) -> Result<Contender, Failure> {
    let name = file.display().to_string();
    let policy = load(file)?;
    if policy.rules().len() == 0 {
        return Err(
            format!("{name} has no rules, so no request would be denied; add a [[rule]]").into()
        );
    }
    Ok(Contender { name, policy })
}

/// Returns a policy of one rule with one limit.
fn from_flags(args: &SimulateArgs, quota: &str, algorithm: &str) -> Result<Contender, Failure> {
    let mut spec = LimitSpec::new(quota).algorithm(algorithm);
    // Algorithms are compared by their quota. Only a token bucket has a burst too, so the others do without it.
    let burst = args.burst.filter(|_| args.algorithm.len() < 2 || algorithm == "token-bucket");
    if let Some(burst) = burst {
        spec = spec.burst(burst);
    }
    let limit = spec.build().map_err(|error| format!("--{}: {error}", error.field()))?;
    let key = match args.key.as_slice() {
        [] => vec!["ip"],
        names => names.iter().map(String::as_str).filter(|name| !name.is_empty()).collect(),
    };
    let domain = args.domain.as_deref().unwrap_or("default");
    let rule = Rule::new("limit").domain(domain).key(key).limit(spec);
    let policy = Policy::builder().rule(rule).build()?;
    Ok(Contender { name: format!("{algorithm} {limit}"), policy })
}

/// Returns the attributes that any of the policies needs.
fn vocabulary(args: &SimulateArgs, policies: &[Policy]) -> Vocabulary {
    let unit = args.cost_from.as_deref().map(|flag| cost(flag).0);
    let mut words = Vocabulary::new(args.domain.as_deref(), unit);
    for needed in policies.iter().flat_map(Policy::rules).flat_map(Rule::needs) {
        words.learn(needed);
    }
    words
}

/// Refuses flags for an attribute that no rule needs, since they would change nothing.
fn refuse_unused_attributes(args: &SimulateArgs, words: &Vocabulary) -> Result<(), Failure> {
    let mapped = args.map.iter().map(|mapping| ("--map", &mapping.attribute));
    let with = args.with.iter().map(|(name, _)| ("--with", name));
    let followed = args.follow.iter().map(|(name, _)| ("--follow", name));
    let mapped = mapped.filter(|(_, name)| *name != log::TIME);
    for (flag, name) in mapped.chain(with).chain(followed) {
        if words.number(name).is_none() {
            let names = words.names().join(", ");
            return Err(
                format!("{flag}: no rule uses attribute {name}; the rules use {names}").into()
            );
        }
    }
    Ok(())
}

/// Returns the unit and the field of `--cost-from`: `tokens=usage.total`, or a field whose last part is the unit.
fn cost(flag: &str) -> (&str, &str) {
    flag.split_once('=').unwrap_or_else(|| (flag.rsplit('.').next().unwrap_or(flag), flag))
}

/// Returns the first limit of the first rule that has a capacity and a window.
fn reference(policy: &Policy) -> Option<Reference> {
    let of_limit = |limit: &Limit| {
        let capacity = limit.capacity().filter(|capacity| *capacity > 0)?;
        let window = limit.window().or_else(|| limit.refill())?;
        let window_us = u64::try_from(window.as_micros()).ok()?;
        Some(Reference { capacity, window_us })
    };
    policy.rules().flat_map(Rule::limits).find_map(of_limit)
}

/// Returns the attributes of the first subject of made-up traffic, which has the most requests.
fn first_subject(args: &SimulateArgs, words: &Vocabulary) -> Vec<(String, String)> {
    let value = |name: &String| {
        let given = args.with.iter().find(|(known, _)| known == name);
        given.map_or_else(|| value_of(name, 0), |(_, value)| value.clone())
    };
    words.names().iter().map(|name| (name.clone(), value(name))).collect()
}

impl Reference {
    fn of_rate(rate: Rate) -> Reference {
        Reference { capacity: rate.count, window_us: rate.period_us }
    }
}

/// Reads `--rate`, which is written like a quota.
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    let limit = Limit::parse(text).map_err(|error| error.to_string())?;
    let period_us = limit.window().map_or(0, |window: Duration| window.as_micros() as u64);
    match limit.capacity() {
        Some(count @ 1..) if period_us > 0 => Ok(Rate { count, period_us }),
        _ => Err("write a count and a period: 50/second".to_owned()),
    }
}

/// The exit code if a condition of --fail-if holds, so that a pipeline stops.
const CONDITION_HOLDS: u8 = 1;
