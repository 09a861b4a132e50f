//! `spillgate bench`: a load with a schedule ([`schedule`]), put to a limiter, a door or a yardstick
//! ([`target`]) by callers in an open or a closed loop ([`load`]), counted ([`tally`]) and told ([`report`]).

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
use report::{Contender, Event, Figures, Ratio, Report, charts};
use run::{Ran, Slice, is_stopped};
use schedule::Schedule;
pub(crate) use schedule::{Pace, SUBJECTS_MAX, Scenario};
use tally::{Answer, Tally};
pub(crate) use target::Yardstick;
use target::{AdHoc, ByRules, Question, Target, Way};

/// The store of the limiter in this process, as the flags name it.
#[derive(Clone, Copy, Debug)]
pub struct StoreFlags<'a> {
    /// The URL of a Redis or Valkey; without one, state is where the file says.
    pub redis: Option<&'a str>,
    /// A file of settings and rules.
    pub config: Option<&'a Path>,
    /// Connections to the store, instead of those that the settings say.
    pub connections: Option<u32>,
    /// How many processes share the limits of the store, if that is known.
    pub expected_instances: Option<u32>,
}

/// A limiter in this process, and where its state is.
#[derive(Clone, Debug)]
pub struct OpenLimiter {
    /// The limiter that is measured.
    pub limiter: Limiter,
    /// The store as people know it, without passwords; `memory` without a store.
    pub store: String,
    /// The store's URL, if it is one server: baselines connect to it too.
    pub url: Option<String>,
}

/// Opens a limiter by these flags.
pub type Open = for<'f> fn(StoreFlags<'f>) -> Opening<'f>;

/// A limiter that is being opened.
pub type Opening<'f> = Pin<Box<dyn Future<Output = Result<OpenLimiter, Failure>> + 'f>>;

/// A bench that runs.
pub type Running<'a> = Pin<Box<dyn Future<Output = Result<ExitCode, Failure>> + 'a>>;

/// Puts a load to what the flags name, and reports how fast it answered, and what. `open` opens the limiter in this
/// process; once `stop` is true, no more calls are made.
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
    let question = question(args)?;
    let names_another = args.url.is_some() || args.redis.is_some() || args.config.is_some();
    if scenario == Scenario::Failover && names_another {
        return Err("failover kills and restarts a redis-server of its own, never yours; leave --url, --redis \
                    and --config out"
            .into());
    }
    let report = measure(args, &schedule, &question, stop, open).await?;
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
    question: &Question,
    stop: watch::Receiver<bool>,
    open: Open,
) -> Result<Report, Failure> {
    let own = match args.scenario {
        Scenario::Failover => Some(OwnRedis::start().await?),
        _ => None,
    };
    let targets = Targets { args, question, own: own.as_ref().map(OwnRedis::url) };
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
        // Whoever is asked no more gives back what it holds, in no more time than a call has.
        let closed = run.target.close(schedule.subjects);
        let _ = tokio::time::timeout(CLOSING, closed).await;
    }
    measured?;
    Ok(bench.report(&runs, question))
}

/// Who is to be asked.
struct Targets<'a> {
    args: &'a BenchArgs,
    question: &'a Question,
    /// The store that is to be killed.
    own: Option<String>,
}

/// A target, and what came of it so far.
struct Runs {
    target: Arc<Target>,
    tally: Tally,
    figures: Vec<Figures>,
    slices: Vec<Slice>,
    length_us: u64,
}

/// Contenders that take turns.
struct Bench<'a> {
    args: &'a BenchArgs,
    schedule: &'a Schedule,
    stop: watch::Receiver<bool>,
    events: Vec<Event>,
    progress: Progress,
}

impl Targets<'_> {
    /// Ours first. Each has answered once when this returns.
    async fn open(self, open: Open) -> Result<Vec<Arc<Target>>, Failure> {
        let mut targets = Vec::new();
        let way = match &self.args.url {
            Some(url) => {
                targets.push(Target::door(self.door(url)?, self.question.clone()).await?);
                None
            }
            None => {
                let opened = open(self.store()).await?;
                let way = opened.url.clone().map(|url| self.way(url, 1));
                targets.push(Target::library(opened, self.question.clone()).await?);
                way
            }
        };
        for yardstick in &self.args.against {
            let way = way.clone().filter(|_| yardstick.is_remote());
            let limit = self.question.limit().ok_or("--against takes a --quota, and no rules")?;
            targets.push(Target::yardstick(*yardstick, way, limit).await?);
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
            // No other process can know of a store of our own, so nobody shares a limit during the outage.
            expected_instances: self.own.as_ref().map(|_| 1),
        }
    }

    fn door(&self, url: &str) -> Result<Way, Failure> {
        let default = match url.starts_with("http://") {
            // HTTP/1.1 carries one question at a time.
            true => self.args.callers,
            false => CONNECTIONS.min(self.args.callers),
        };
        let token = token(self.args.token_file.as_deref())?;
        let connections = self.args.connections.unwrap_or(default) as usize;
        Ok(Way { token, ..self.way(url.to_owned(), connections) })
    }

    fn way(&self, url: String, connections: usize) -> Way {
        let patience = Duration::from_micros(self.args.timeout_us);
        Way { url, connections, patience, token: None }
    }
}

impl Bench<'_> {
    /// One alone has all the time; several have it in short turns, so that whatever else the machine does
    /// meets them all alike.
    async fn in_turn(&mut self, runs: &mut [Runs]) -> Result<(), Failure> {
        let rounds = if runs.len() > 1 { ROUNDS } else { 1 };
        for round in 0..rounds {
            let mut order: Vec<usize> = (0..runs.len()).collect();
            // Nobody always comes after the same.
            if round % 2 == 1 {
                order.reverse();
            }
            for who in order {
                if is_stopped(&self.stop) {
                    return Ok(());
                }
                self.one(&mut runs[who], &self.schedule.part(rounds, round)).await?;
            }
        }
        Ok(())
    }

    /// Each has all the time, in the middle of which the store is killed and comes back.
    async fn through_an_outage(
        &mut self,
        runs: &mut [Runs],
        mut own: OwnRedis,
    ) -> Result<(), Failure> {
        let length = Duration::from_micros(self.schedule.length_us);
        let (killed, back) = (length * 2 / 5, length * 3 / 5);
        self.events = [(killed, "the store is killed"), (back, "it is started again, empty")]
            .map(|(at, what)| Event { at_ms: at.as_millis() as u64, what })
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
        let ran = run::run(&run.target, schedule, terms, |slice| self.progress.tell(name, slice));
        run.add(ran.await?);
        self.progress.next(schedule.length_us);
        Ok(())
    }

    fn report(self, runs: &[Runs], question: &Question) -> Report {
        let BenchArgs { rate, callers, .. } = *self.args;
        let contender = |run: &Runs| {
            let (name, place) = (run.target.name(), run.target.place());
            Contender::new(name, place, &run.tally, run.length_us, &run.slices)
        };
        let ours = runs.first().map(|run| run.figures.as_slice()).unwrap_or_default();
        let yardsticks = runs.iter().skip(1);
        Report {
            scenario: self.schedule.scenario.name(),
            subjects: self.schedule.subjects,
            seed: self.schedule.seed,
            kind: if rate == Pace::Max { "closed" } else { "open" },
            rate: rate.to_string(),
            duration_ms: self.schedule.length_us / 1_000,
            callers: callers as usize,
            question: question.to_string(),
            stopped: is_stopped(&self.stop),
            events: self.events,
            contenders: runs.iter().map(contender).collect(),
            ratios: yardsticks.map(|it| Ratio::new(it.target.name(), ours, &it.figures)).collect(),
        }
    }
}

impl Runs {
    fn new(target: Arc<Target>) -> Runs {
        let (figures, slices) = (Vec::new(), Vec::new());
        Runs { target, tally: Tally::new(), figures, slices, length_us: 0 }
    }

    /// One run more, drawn behind those before.
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

/// What is asked of each subject, as the flags say.
fn question(args: &BenchArgs) -> Result<Question, Failure> {
    if let Some(by) = &args.by {
        let domain = args.domain.clone().unwrap_or_else(|| DOMAIN.to_owned());
        return Ok(Question::ByRules(ByRules { domain, by: by.clone(), with: args.with.clone() }));
    }
    let quota = args.quota.as_deref().unwrap_or(QUOTA);
    AdHoc::new(quota, args.burst, args.algorithm.as_deref()).map(Question::AdHoc)
}

/// What is asked, unless told otherwise: most of steady traffic passes, a hot key does not.
const QUOTA: &str = "100/second";
/// The domain of rules that name none, at every API of the service.
const DOMAIN: &str = "default";
/// To a door that takes many questions at once on each.
const CONNECTIONS: u32 = 8;
/// Pairs of runs whose median is told: odd, and enough for a spread.
const ROUNDS: u64 = 5;
/// The first answer may load scripts and open connections.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// What is not given back by then ends by itself.
const CLOSING: Duration = Duration::from_secs(30);
