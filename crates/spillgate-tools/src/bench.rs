//! `spillgate bench`: makes the calls of a schedule ([`schedule`]) to a limiter, a service or a baseline
//! ([`target`]), in an open or a closed loop ([`load`]), counts the answers ([`tally`]) and reports them
//! ([`report`]).

use std::path::Path;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use spillgate::Limiter;
use tokio::sync::watch;

use crate::{Failure, say, token};

mod args;
mod load;
mod own_redis;
mod progress;
mod report;
mod run;
pub(crate) mod schedule;
mod tally;
mod target;

pub use args::BenchArgs;
use load::Terms;
use own_redis::OwnRedis;
use progress::Progress;
use report::{Fault, Figures, Ratio, Report, TargetReport, charts};
use run::{Ran, Slice, is_stopped};
use schedule::Schedule;
pub(crate) use schedule::{Pace, SUBJECTS_MAX, Scenario};
use tally::{Answer, Tally};
pub(crate) use target::Baseline;
use target::{ByRules, Checks, Endpoint, InlineLimit, Target};

/// The store of the limiter in this process, as the flags name it.
#[derive(Clone, Copy, Debug)]
pub struct StoreFlags<'a> {
    /// The URL of a Redis or Valkey. Without it, the settings file decides where state is.
    pub redis: Option<&'a str>,
    /// A file of settings and rules.
    pub config: Option<&'a Path>,
    /// Connections to the store. Without it, the settings file decides.
    pub connections: Option<u32>,
    /// How many instances share the limits of the store, if that is known.
    pub expected_instances: Option<u32>,
}

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

/// Opens a limiter from flags.
pub type Open = for<'f> fn(StoreFlags<'f>) -> Opening<'f>;

/// The future that [`Open`] returns.
pub type Opening<'f> = Pin<Box<dyn Future<Output = Result<OpenLimiter, Failure>> + 'f>>;

/// The future of one run of the bench.
pub type Running<'a> = Pin<Box<dyn Future<Output = Result<ExitCode, Failure>> + 'a>>;

/// Makes the calls that the flags describe, and reports how fast the target answered and how it decided. `open` opens the
/// limiter in this process. Once `stop` is true, no more calls are made.
///
/// # Errors
///
/// If the flags contradict each other, the target cannot be reached, or a file cannot be written.
pub fn run(args: &BenchArgs, stop: watch::Receiver<bool>, open: Open) -> Running<'_> {
    // Boxed, so that the caller's crate does not compile another copy of everything below.
    Box::pin(run_scenario(args, stop, open))
}

async fn run_scenario(
    args: &BenchArgs,
    stop: watch::Receiver<bool>,
    open: Open,
) -> Result<ExitCode, Failure> {
    let BenchArgs { scenario, rate, duration_us, subjects, seed, .. } = *args;
    let schedule = Schedule::new(scenario, rate, duration_us, subjects, seed)?;
    let checks = checks(args)?;
    let names_another_store = args.url.is_some() || args.redis.is_some() || args.config.is_some();
    if scenario == Scenario::Outage && args.by.is_some() {
        return Err("the scenario outage checks an inline limit, not rules; leave out --by".into());
    }
    if scenario == Scenario::Outage && names_another_store {
        return Err("the scenario outage kills and restarts a redis-server that it started, never yours; leave out \
                    --url, --redis and --config"
            .into());
    }
    let report = measure(args, &schedule, &checks, stop, open).await?;
    if let Some(file) = &args.svg {
        std::fs::write(file, charts::figure(&report).to_string())
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    match args.json {
        true => say(&serde_json::to_string(&report)?)?,
        false => say(&report)?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn measure(
    args: &BenchArgs,
    schedule: &Schedule,
    checks: &Checks,
    stop: watch::Receiver<bool>,
    open: Open,
) -> Result<Report, Failure> {
    let own = match args.scenario {
        Scenario::Outage => Some(OwnRedis::start().await?),
        _ => None,
    };
    let targets = Targets { args, checks, own: own.as_ref().map(OwnRedis::url) };
    let targets = targets.open(open).await?;
    let mut runs: Vec<Runs> = targets.into_iter().map(Runs::new).collect();
    let mut bench = Bench {
        args,
        schedule,
        stop,
        events: Vec::new(),
        progress: Progress::new(args.duration_us * runs.len() as u64),
    };
    let measured = match own {
        Some(own) => bench.through_an_outage(&mut runs, own).await,
        None => bench.in_turn(&mut runs).await,
    };
    bench.progress.end();
    for run in &runs {
        // Unspent lease tokens go back to the store.
        let _ = tokio::time::timeout(CLOSING, run.target.close()).await;
    }
    measured?;
    Ok(bench.report(&runs, checks))
}

/// The targets that the flags name, not opened yet.
struct Targets<'a> {
    args: &'a BenchArgs,
    checks: &'a Checks,
    /// The URL of the store that the outage scenario kills.
    own: Option<String>,
}

/// A target, and its results so far.
struct Runs {
    target: Arc<Target>,
    tally: Tally,
    figures: Vec<Figures>,
    slices: Vec<Slice>,
    length_us: u64,
}

/// The targets take turns under the same schedule.
struct Bench<'a> {
    args: &'a BenchArgs,
    schedule: &'a Schedule,
    stop: watch::Receiver<bool>,
    events: Vec<Fault>,
    progress: Progress,
}

impl Targets<'_> {
    /// Opens every target, the limiter or service first, and waits until each has answered one check.
    async fn open(self, open: Open) -> Result<Vec<Arc<Target>>, Failure> {
        let mut targets = Vec::new();
        let endpoint = match &self.args.url {
            Some(url) => {
                targets.push(Target::service(self.service(url)?, self.checks.clone()).await?);
                None
            }
            None => {
                let opened = open(self.store()).await?;
                let endpoint = opened.url.clone().map(|url| self.endpoint(url, 1));
                targets.push(Target::library(opened, self.checks.clone()).await?);
                endpoint
            }
        };
        // --by excludes --against.
        if let (Some(Baseline::Evalsha), Checks::InlineLimit(inline)) =
            (self.args.against, self.checks)
        {
            targets.push(Target::evalsha(endpoint, inline)?);
        }
        for target in &targets {
            let patience = Duration::from_micros(self.args.timeout_us).max(FIRST_ANSWER);
            let answer = tokio::time::timeout(patience, target.ask(0)).await;
            match answer.unwrap_or(Answer::TimedOut) {
                Answer::Allowed(_) | Answer::Denied(_) => {}
                Answer::Failed(why) => {
                    return Err(format!("{}: {why}", target.place()).into());
                }
                Answer::TimedOut => {
                    let place = target.place();
                    return Err(
                        format!("{place}: no answer within {patience:?}; is it busy?").into()
                    );
                }
            }
        }
        Ok(targets.into_iter().map(Arc::new).collect())
    }

    fn store(&self) -> StoreFlags<'_> {
        StoreFlags {
            redis: self.own.as_deref().or(self.args.redis.as_deref()),
            config: self.args.config.as_deref(),
            connections: self.args.connections,
            // No other instance knows this store, so the local share during the outage is the whole limit.
            expected_instances: self.own.as_ref().map(|_| 1),
        }
    }

    fn service(&self, url: &str) -> Result<Endpoint, Failure> {
        let default = match url.starts_with("http://") {
            // HTTP/1.1 carries one check at a time.
            true => self.args.callers,
            false => CONNECTIONS.min(self.args.callers),
        };
        let token = token(self.args.token_file.as_deref())?;
        let connections = self.args.connections.unwrap_or(default) as usize;
        Ok(Endpoint { token, ..self.endpoint(url.to_owned(), connections) })
    }

    fn endpoint(&self, url: String, connections: usize) -> Endpoint {
        let patience = Duration::from_micros(self.args.timeout_us);
        Endpoint { url, connections, patience, token: None }
    }
}

impl Bench<'_> {
    /// Runs a single target for the whole duration. Several targets take short turns, so that a change of the
    /// machine's speed affects all of them alike.
    async fn in_turn(&mut self, runs: &mut [Runs]) -> Result<(), Failure> {
        let rounds = if runs.len() > 1 { ROUNDS } else { 1 };
        for round in 0..rounds {
            let mut order: Vec<usize> = (0..runs.len()).collect();
            // Every second round is reversed, so that no target always runs after the same one.
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                if is_stopped(&self.stop) {
                    return Ok(());
                }
                self.one(&mut runs[index], &self.schedule.part(rounds, round)).await?;
            }
        }
        Ok(())
    }

    /// Runs each target for the whole duration. The store is killed at two fifths of it and restarted at three
    /// fifths.
    async fn through_an_outage(
        &mut self,
        runs: &mut [Runs],
        mut own: OwnRedis,
    ) -> Result<(), Failure> {
        let length = Duration::from_micros(self.schedule.length_us);
        let (killed, back) = (length * 2 / 5, length * 3 / 5);
        self.events = [(killed, "the store is killed"), (back, "it is started again, empty")]
            .map(|(at, event)| Fault { at_ms: at.as_millis() as u64, event })
            .into();
        for run in runs {
            if is_stopped(&self.stop) {
                return Ok(());
            }
            let begun = tokio::time::Instant::now();
            let mut stop = self.stop.clone();
            let outage = async {
                let stopped = load::stopped(&mut stop);
                let fault = async {
                    tokio::time::sleep_until(begun + killed).await;
                    own.kill();
                    tokio::time::sleep_until(begun + back).await;
                    own.restart().await
                };
                tokio::select! {
                    restarted = fault => restarted,
                    () = stopped => Ok(()),
                }
            };
            let schedule = self.schedule;
            let (ran, restarted) = tokio::join!(self.one(run, schedule), outage);
            ran.and(restarted)?;
        }
        Ok(())
    }

    async fn one(&mut self, run: &mut Runs, schedule: &Schedule) -> Result<(), Failure> {
        let terms = Terms {
            callers: self.args.callers as usize,
            length: Duration::from_micros(schedule.length_us),
            patience: Duration::from_micros(self.args.timeout_us),
            stop: self.stop.clone(),
        };
        let name = run.target.name();
        let ran = run::run(&run.target, schedule, terms, |slice| self.progress.show(name, slice));
        run.add(ran.await?);
        self.progress.next(schedule.length_us);
        Ok(())
    }

    fn report(self, runs: &[Runs], checks: &Checks) -> Report {
        let BenchArgs { rate, callers, .. } = *self.args;
        let target = |run: &Runs| {
            let (name, place) = (run.target.name(), run.target.place());
            TargetReport::new(name, place, &run.tally, run.length_us, run.slices.clone())
        };
        let ours = runs.first().map(|run| run.figures.as_slice()).unwrap_or_default();
        let baselines = runs.iter().skip(1);
        Report {
            scenario: self.schedule.scenario.to_string(),
            subjects: self.schedule.subjects,
            seed: self.schedule.seed,
            kind: if rate == Pace::Max { "closed" } else { "open" },
            rate: rate.to_string(),
            duration_ms: self.schedule.length_us / 1_000,
            callers: callers as usize,
            checks: checks.to_string(),
            stopped: is_stopped(&self.stop),
            events: self.events,
            targets: runs.iter().map(target).collect(),
            ratios: baselines.map(|it| Ratio::new(it.target.name(), ours, &it.figures)).collect(),
        }
    }
}

impl Runs {
    fn new(target: Arc<Target>) -> Runs {
        let (figures, slices) = (Vec::new(), Vec::new());
        Runs { target, tally: Tally::new(), figures, slices, length_us: 0 }
    }

    /// Adds the results of one more run. Its slices follow those of the runs before it.
    fn add(&mut self, mut ran: Ran) {
        self.figures.push(Figures::of(&ran.tally, ran.length_us));
        self.tally.take(&mut ran.tally);
        let behind = self.slices.last().map_or(0, |slice| slice.until_us);
        self.slices.extend(ran.slices.iter().map(|slice| Slice {
            from_us: behind + slice.from_us,
            until_us: behind + slice.until_us,
            ..*slice
        }));
        self.length_us += ran.length_us;
    }
}

/// Returns the checks that the flags describe.
fn checks(args: &BenchArgs) -> Result<Checks, Failure> {
    if let Some(by) = &args.by {
        let domain = args.domain.clone().unwrap_or_else(|| DOMAIN.to_owned());
        return Ok(Checks::ByRules(ByRules { domain, by: by.clone(), with: args.with.clone() }));
    }
    let quota = args.quota.as_deref().unwrap_or(QUOTA);
    InlineLimit::new(quota, args.burst, args.algorithm.as_deref()).map(Checks::InlineLimit)
}

/// The limit without --quota: most of steady traffic passes, most calls of a hot key are denied.
const QUOTA: &str = "100/second";
/// The domain of rules that name none, at every API of the service.
const DOMAIN: &str = "default";
/// Connections to an API that carries many checks at once on each.
const CONNECTIONS: u32 = 8;
/// Rounds in which the targets take turns. An odd number has a median, and five show the spread.
const ROUNDS: u64 = 5;
/// The first answer may load scripts and open connections.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// Leases that are not returned by then expire by themselves.
const CLOSING: Duration = Duration::from_secs(30);
