//! `spillgate simulate`: a log, or made-up traffic, replayed against one policy or several.
//!
//! A thread reads lines into events ([`log`], [`order`]) or makes them ([`pattern`]); another puts them to a
//! limiter of each policy at their own instants ([`replay`]) and counts what came of it ([`tally`]). What is
//! known then is a [`report`]: words, JSON, charts, a page.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use spillgate::{Limit, LimitSpec, Policy};

use crate::{Failure, say};

mod args;
mod bins;
mod condition;
pub(crate) mod duration;
mod event;
pub(crate) mod log;
mod order;
mod pattern;
mod progress;
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
use log::{Found, Logs, Unreadable};
use order::Spread;
use pattern::{Pattern, Reference, Told, value_of};
pub(crate) use pattern::{Rate, SUBJECTS_MAX, Shape};
use progress::{Progress, Total};
use replay::{Contender, replay};
use report::{ConditionReport, Replayed, Report, charts, html};

/// Replays what the flags name, and reports what rules would refuse. `load` reads the policy of a file.
///
/// # Errors
///
/// If a policy does not load, a log cannot be read, or a file cannot be written.
pub fn run(
    args: &SimulateArgs,
    load: &dyn Fn(&Path) -> Result<Policy, Failure>,
) -> Result<ExitCode, Failure> {
    let contenders = contenders(args, load)?;
    let policies: Vec<Policy> =
        contenders.iter().map(|contender| contender.policy.clone()).collect();
    let rules: Vec<&str> = policies[0].rules().map(spillgate::Rule::name).collect();
    args.fail_if.iter().try_for_each(|condition| condition.check(&rules, policies.len()))?;

    let words = vocabulary(args, &policies);
    refuse_unasked(args, &words)?;
    let (outcome, replayed) = match args.pattern {
        Some(shape) => replay_pattern(args, shape, contenders, &words)?,
        None => replay_logs(args, contenders, &words)?,
    };
    let mut report = Report::new(replayed, outcome, &policies, &words, args.top.into());
    let conditions = args.fail_if.iter().map(|condition| ConditionReport {
        condition: condition.to_string(),
        holds: condition.holds(&report),
    });
    report.conditions = conditions.collect();

    if let Some(file) = &args.svg {
        write(file, &charts::figure(&report).to_string())?;
    }
    if let Some(file) = &args.html {
        write(file, &html::page(&report))?;
    }
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
) -> Result<(replay::Outcome, Replayed), Failure> {
    let bytes_read = Arc::new(AtomicU64::new(0));
    let logs = Logs {
        files: args.logs.clone(),
        format: args.format,
        mappings: args.map.clone(),
        cost_field: args.cost_from.as_deref().map(|told| cost(told).1.to_owned()),
        delay_us: args.delay,
        spread: if args.spread { Spread::OverTheSecond } else { Spread::No },
        unreadable: if args.strict { Unreadable::Refuse } else { Unreadable::Count },
        bytes_read: Arc::clone(&bytes_read),
    };
    let mut progress = Progress::new(bytes_read, bytes_of(&args.logs));
    let source = |give: &mut dyn FnMut(&mut event::Event)| logs.read(words, give);
    let replayed = replay(contenders, &args.follow, words, source, |events| progress.tell(events));
    progress.end();
    let (found, outcome) = replayed?;
    let names = args.logs.iter().map(|name| if name == "-" { "standard input" } else { name });
    let source = names.collect::<Vec<_>>().join(", ");
    Ok((outcome, Replayed { source, found, is_made_up: false, span_us: None }))
}

fn replay_pattern(
    args: &SimulateArgs,
    shape: Shape,
    contenders: Vec<Contender>,
    words: &Vocabulary,
) -> Result<(replay::Outcome, Replayed), Failure> {
    let told = Told {
        rate: args.rate,
        length_us: args.length_us,
        subjects: args.subjects,
        seed: args.seed,
        with: args.with.clone(),
    };
    let limit = reference(&contenders[0].policy).or_else(|| args.rate.map(Reference::of_rate));
    let limit = limit.ok_or("the policy has no limit to cut the traffic to; say a --rate")?;
    let pattern = Pattern::new(shape, limit, told)?;
    let follow = match args.follow.is_empty() {
        true => first_subject(args, words),
        false => args.follow.clone(),
    };
    let total = u64::try_from(pattern.count()).unwrap_or(u64::MAX);
    let mut progress = Progress::new(Arc::default(), Total::Events(total));
    let source = |give: &mut dyn FnMut(&mut event::Event)| {
        pattern.make(words, give);
        Ok(())
    };
    let replayed = replay(contenders, &follow, words, source, |events| progress.tell(events));
    progress.end();
    let ((), mut outcome) = replayed?;
    let span_us = pattern.span_us();
    outcome.judged.iter_mut().for_each(|judged| judged.tally.finish(span_us.1));
    let replayed = Replayed {
        source: pattern.for_people(),
        found: Found::default(),
        is_made_up: true,
        span_us: Some(span_us),
    };
    Ok((outcome, replayed))
}

/// The policies on trial, the one that conditions are about first.
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
    if contenders.len() > CONTENDERS_MAX {
        return Err(
            format!("more than {CONTENDERS_MAX} policies side by side; leave some out").into()
        );
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
            format!("{name} has no rules, so nothing would be refused; add a [[rule]]").into()
        );
    }
    Ok(Contender { name, policy })
}

/// A policy of one rule with one limit.
fn from_flags(args: &SimulateArgs, quota: &str, algorithm: &str) -> Result<Contender, Failure> {
    let mut spec = LimitSpec::new(quota).algorithm(algorithm);
    // A comparison of several is about their quota; only a bucket has a burst besides.
    let burst = args.burst.filter(|_| args.algorithm.len() < 2 || algorithm == "token-bucket");
    if let Some(burst) = burst {
        spec = spec.burst(burst);
    }
    let limit = spec.build().map_err(|error| format!("--{}: {error}", error.field()))?;
    let mut rule = format!("quota = {quota:?}, algorithm = {:?}", limit.algorithm().name());
    if let Some(burst) = burst {
        rule.push_str(&format!(", burst = {burst}"));
    }
    let key = match args.key.as_slice() {
        [] => vec!["ip"],
        names => names.iter().map(String::as_str).filter(|name| !name.is_empty()).collect(),
    };
    let domain = args.domain.as_deref().unwrap_or("default");
    let text = format!(
        "[[rule]]\nname = \"limit\"\ndomain = {domain:?}\nkey = {key:?}\nlimits = [{{ {rule} }}]\n"
    );
    let policy = Policy::from_toml_file("--quota", &text)?;
    Ok(Contender { name: format!("{algorithm} {limit}"), policy })
}

/// The attributes that any of the policies asks for.
fn vocabulary(args: &SimulateArgs, policies: &[Policy]) -> Vocabulary {
    let unit = args.cost_from.as_deref().map(|told| cost(told).0);
    let mut words = Vocabulary::new(args.domain.as_deref(), unit);
    for needed in policies.iter().flat_map(Policy::rules).flat_map(spillgate::Rule::needs) {
        words.learn(needed);
    }
    words
}

/// Refuses what is said of an attribute that no rule asks for: it would change nothing.
fn refuse_unasked(args: &SimulateArgs, words: &Vocabulary) -> Result<(), Failure> {
    let mapped = args.map.iter().map(|mapping| ("--map", &mapping.attribute));
    let with = args.with.iter().map(|(name, _)| ("--with", name));
    let followed = args.follow.iter().map(|(name, _)| ("--follow", name));
    let mapped = mapped.filter(|(_, name)| *name != log::TIME);
    for (flag, name) in mapped.chain(with).chain(followed) {
        if words.number(name).is_none() {
            let names = words.names().join(", ");
            return Err(format!("{flag}: no rule asks for {name}; they ask for {names}").into());
        }
    }
    Ok(())
}

/// The unit and the field of `--cost-from`: `tokens=usage.total`, or a field whose name, its last part,
/// is the unit.
fn cost(told: &str) -> (&str, &str) {
    told.split_once('=').unwrap_or_else(|| (told.rsplit('.').next().unwrap_or(told), told))
}

/// The first limit of the first rule that has numbers.
fn reference(policy: &Policy) -> Option<Reference> {
    let of_limit = |limit: &Limit| {
        let capacity = limit.capacity().filter(|capacity| *capacity > 0)?;
        let window = limit.window().or_else(|| limit.refill())?;
        let window_us = u64::try_from(window.as_micros()).ok()?;
        Some(Reference { capacity, window_us })
    };
    policy.rules().flat_map(spillgate::Rule::limits).find_map(of_limit)
}

/// The one whom made-up traffic is about most: its first.
fn first_subject(args: &SimulateArgs, words: &Vocabulary) -> Vec<(String, String)> {
    let value = |name: &String| {
        let told = args.with.iter().find(|(known, _)| known == name);
        told.map_or_else(|| value_of(name, 0), |(_, value)| value.clone())
    };
    words.names().iter().map(|name| (name.clone(), value(name))).collect()
}

impl Reference {
    fn of_rate(rate: Rate) -> Reference {
        Reference { capacity: rate.count, window_us: rate.period_us }
    }
}

/// Reads `--rate`, in the language of quotas.
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    let limit = Limit::parse(text).map_err(|error| error.to_string())?;
    let period_us = limit.window().map_or(0, |window: Duration| window.as_micros() as u64);
    match limit.capacity() {
        Some(count @ 1..) if period_us > 0 => Ok(Rate { count, period_us }),
        _ => Err("write so many in so long: 50/second".to_owned()),
    }
}

/// How much there is to read, if all of it is files.
fn bytes_of(logs: &[String]) -> Total {
    let length = |name: &String| {
        fs::metadata(name).ok().filter(fs::Metadata::is_file).map(|file| file.len())
    };
    logs.iter().map(length).sum::<Option<u64>>().map_or(Total::Unknown, Total::Bytes)
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    fs::write(file, text)
        .map_err(|error| format!("cannot write {}: {error}", file.display()).into())
}

/// The exit code of a run that a pipeline should not go on after.
const CONDITION_HOLDS: u8 = 1;
/// As many as a figure has room for.
const CONTENDERS_MAX: usize = 6;
