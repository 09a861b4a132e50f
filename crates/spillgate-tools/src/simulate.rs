//! `spillgate simulate`: replays a log against one or two policies.
//!
//! Lines become requests ([`log`]) in the order of their instants ([`order`]). Each request is passed, at its own
//! instant, to a limiter of each policy ([`replay`]), and the decisions are counted ([`tally`]). The [`report`] shows
//! them as text or JSON.

use std::path::Path;
use std::process::ExitCode;

use spillgate::{Policy, Rule};

use crate::{Failure, say};

mod args;
mod condition;
mod log;
mod order;
mod replay;
mod report;
mod tally;
#[cfg(test)]
mod tests;

pub use args::SimulateArgs;
use log::Wanted;
use order::{Order, Spread};
use replay::Replay;
use report::{ConditionReport, Input, Report};

/// Replays the logs that the flags name, and reports which requests each policy would deny. `load` reads the policy of a
/// file.
///
/// # Errors
///
/// If a policy does not load, a log cannot be read, or a file cannot be written.
pub fn run(
    args: &SimulateArgs,
    load: &dyn Fn(&Path) -> Result<Policy, Failure>,
) -> Result<ExitCode, Failure> {
    let mut policies = Vec::new();
    let mut names = Vec::new();
    // Conditions are about the first.
    for file in std::iter::once(&args.config).chain(&args.against) {
        let (name, policy) = (file.display().to_string(), load(file)?);
        if policy.rules().len() == 0 {
            let problem = "has no rules, so no request would be denied; add a [[rule]]";
            return Err(format!("{name} {problem}").into());
        }
        names.push(name);
        policies.push(policy);
    }
    let rules: Vec<&str> = policies[0].rules().map(Rule::name).collect();
    args.fail_if.iter().try_for_each(|condition| condition.check(&rules, policies.len()))?;

    let (input, replay) = replay_logs(args, &policies)?;
    let mut report = Report::new(input, replay, &policies, &names, args.top.into());
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

/// Passes every request of the logs to every policy, in order.
fn replay_logs(args: &SimulateArgs, policies: &[Policy]) -> Result<(Input, Replay), Failure> {
    let mut attributes: Vec<&str> = Vec::new();
    for name in policies.iter().flat_map(Policy::rules).flat_map(Rule::needs) {
        if !attributes.contains(&name) {
            attributes.push(name);
        }
    }
    let domain = args.domain.as_deref();
    let wanted = Wanted::new(domain, &attributes, &args.map, args.cost_from.as_deref())?;
    let mut replay = Replay::new(policies)?;
    let spread = if args.spread { Spread::OverTheSecond } else { Spread::No };
    let mut order = Order::new(args.delay, spread);
    let sources: Vec<&str> = args.logs.iter().map(|file| log::name_of(file)).collect();
    let mut input = Input { source: sources.join(", "), whole_seconds: true, ..Input::default() };
    for file in &args.logs {
        let format = log::read(file, args.format, &wanted, |line| {
            input.lines += 1;
            match line {
                Ok((at_us, request)) => {
                    input.whole_seconds &= at_us.is_multiple_of(1_000_000);
                    order.take(at_us, request, |at_us, request| replay.decide(at_us, &request));
                }
                Err(problem) => {
                    input.malformed += 1;
                    if input.malformed_examples.len() < EXAMPLES_MAX {
                        input.malformed_examples.push(problem);
                    }
                }
            }
        })?;
        let format = format.map(log::Format::name);
        input.formats.extend(format.filter(|name| !input.formats.contains(name)));
    }
    order.finish(|at_us, request| replay.decide(at_us, &request));
    (input.out_of_order, input.late) = (order.sorted, order.late);
    input.whole_seconds &= input.lines > 0;
    Ok((input, replay))
}

/// A few examples show the problem.
const EXAMPLES_MAX: usize = 5;
/// The exit code if a condition of --fail-if holds, so that a pipeline stops.
const CONDITION_HOLDS: u8 = 1;
