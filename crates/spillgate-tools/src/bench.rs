//! `spillgate bench`: calls a limiter, a server or a baseline ([`target`]) for subjects ([`subjects`]) at a fixed rate
//! or with a fixed number of callers ([`load`]), counts the answers ([`tally`]) and reports them ([`report`]).

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use spillgate::Limiter;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::{Failure, say};

mod args;
mod load;
mod progress;
mod report;
mod subjects;
mod tally;
mod target;

pub use args::BenchArgs;
use load::Load;
use report::{Ratio, Report, Run, TargetReport};
use subjects::Subjects;
use tally::{Answer, Recorder};
use target::{Checks, Target};

/// A limiter in this process, and where its state is.
#[derive(Clone, Debug)]
pub struct OpenLimiter {
    /// The limiter that is measured.
    pub limiter: Limiter,
    /// The store's name in reports, without passwords; `memory` without a store.
    pub store: String,
    /// The store's URL, if it is one server: the baseline connects to it too.
    pub url: Option<String>,
}

/// Makes the calls that the flags describe, and reports how fast the target answered and how it decided. Without
/// `--url` the target is `opened`. Once `stop` is true, no more calls are made.
///
/// # Errors
///
/// If the flags contradict each other, or the target cannot be reached.
pub async fn run(
    args: &BenchArgs,
    opened: Option<OpenLimiter>,
    stop: watch::Receiver<bool>,
) -> Result<ExitCode, Failure> {
    let checks = Checks::new(args)?;
    let targets = targets(args, opened, &checks).await?;
    let subjects = args.subjects.unwrap_or(args.scenario.default_subjects());
    let rounds = if targets.len() > 1 { ROUNDS } else { 1 };
    let load = Load {
        pace: args.rate,
        subjects: Subjects::new(args.scenario, subjects),
        callers: args.callers as usize,
        length: args.duration / rounds,
        patience: args.timeout,
        stop: stop.clone(),
    };
    let runs = in_turns(&targets, &load, rounds).await;
    progress::end();
    for target in &targets {
        // Unspent lease tokens go back to the store.
        let _ = timeout(CLOSING, target.close()).await;
    }
    let runs = runs?;
    let reports = targets.iter().zip(&runs);
    let report = Report {
        scenario: args.scenario,
        subjects,
        rate: args.rate,
        duration_ms: args.duration.as_millis() as u64,
        callers: args.callers,
        checks: checks.to_string(),
        stopped: *stop.borrow(),
        targets: reports.map(|(it, runs)| TargetReport::new(it.name(), it.place(), runs)).collect(),
        ratio: runs.get(1).map(|baseline| Ratio::new(&runs[0], baseline)),
    };
    match args.json {
        true => say(&serde_json::to_string(&report)?)?,
        false => say(&report)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens every target, the limiter or server first, and waits until each has answered one check.
async fn targets(
    args: &BenchArgs,
    opened: Option<OpenLimiter>,
    checks: &Checks,
) -> Result<Vec<Arc<Target>>, Failure> {
    let url = opened.as_ref().and_then(|opened| opened.url.clone());
    let mut targets = match opened {
        Some(opened) => vec![Target::library(opened, checks.clone()).await?],
        None => vec![Target::http(args)?],
    };
    // --by excludes --against.
    if let (Some(_), Checks::InlineLimit(limit)) = (args.against, checks) {
        targets.push(Target::evalsha(url.as_deref(), limit, args.timeout).await?);
    }
    for target in &targets {
        let patience = args.timeout.max(FIRST_ANSWER);
        let why = match timeout(patience, target.ask(0)).await.unwrap_or(Answer::TimedOut) {
            Answer::Allowed(_) | Answer::Denied(_) => continue,
            Answer::Failed(why) => why,
            Answer::TimedOut => format!("no answer within {patience:?}; is it busy?"),
        };
        return Err(format!("{}: {why}", target.place()).into());
    }
    Ok(targets.into_iter().map(Arc::new).collect())
}

/// Lets the targets take turns, so that a change of the machine's speed affects all of them alike. Returns the runs of
/// each target.
async fn in_turns(
    targets: &[Arc<Target>],
    load: &Load,
    rounds: u32,
) -> Result<Vec<Vec<Run>>, Failure> {
    let mut runs: Vec<Vec<Run>> = targets.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..targets.len()).collect();
        // Every second round is reversed, so that no target always runs after the same one.
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            if *load.stop.borrow() {
                return Ok(runs);
            }
            let load = Load { subjects: load.subjects.seeded(round.into()), ..load.clone() };
            runs[index].push(one_run(&targets[index], load).await?);
        }
    }
    Ok(runs)
}

async fn one_run(target: &Arc<Target>, load: Load) -> Result<Run, Failure> {
    let recorder = Arc::new(Recorder::new());
    let (begun, length) = (Instant::now(), load.length);
    let mut over = load::start(target, load, &recorder)?;
    loop {
        tokio::select! {
            _ = &mut over => break,
            () = sleep(BETWEEN_LOOKS) => {
                progress::show(target.name(), begun.elapsed(), length, || recorder.total());
            }
        }
    }
    Ok(Run { tally: recorder.total(), length: begun.elapsed().min(length) })
}

/// Rounds in which the targets take turns. An odd number has a median, and five show the spread.
const ROUNDS: u32 = 5;
/// The first answer may load scripts and open connections.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// Leases that are not returned by then expire by themselves.
const CLOSING: Duration = Duration::from_secs(30);
/// How often progress is shown.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);
