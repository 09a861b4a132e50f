//! The memory engine against governor's keyed check of one counter, by the processor time of the thread. Each shape of a
//! check is measured in each situation, for a check of a bucket in use is not the slowest.

use std::error::Error;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Instant;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use rustix::time::{ClockId, clock_gettime};
use spillgate::{Limit, LimitSpec, Limiter, Policy, Request, Rule};

use crate::Outcome;
use crate::load::{runtime, shuffled};
use crate::rounds::{Effort, Rounds, Run};
use crate::table::{Floor, Row, Table};

pub fn against_governor(effort: Effort) -> Outcome {
    let all = std::thread::available_parallelism()?.get();
    let few = checks(effort, 1_000, 1)?;
    let mut tables = vec![few.against_governor(Floors::FEW_KEYS), few.against_fastest()];
    tables.push(checks(effort, 100_000, 1)?.against_governor(Floors::MANY_KEYS));
    tables.push(checks(effort, 100_000, all)?.against_governor(Floors::NONE));
    Ok(tables)
}

/// What a request is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Inline,
    OneRule,
    ThreeLimits,
    /// Each with a subject of its own.
    ThreeRules,
}

/// The state that a check finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Situation {
    /// A bucket in use, in which no token drains between two checks.
    Slow,
    /// A bucket in use, in which tokens drain between two checks.
    Fast,
    /// A bucket that has drained since the last check.
    Idle,
    /// A subject that has not been checked before.
    New,
    FixedWindow,
    SlidingWindow,
    Denied,
    Log,
    /// A permit, with its release.
    Permit,
}

impl Shape {
    const ALL: [Shape; 4] = [Shape::Inline, Shape::OneRule, Shape::ThreeLimits, Shape::ThreeRules];

    fn name(self) -> &'static str {
        match self {
            Shape::Inline => "inline",
            Shape::OneRule => "one rule",
            Shape::ThreeLimits => "three limits",
            Shape::ThreeRules => "three rules",
        }
    }
}

impl Situation {
    const ALL: [Situation; 9] = [
        Situation::Slow,
        Situation::Fast,
        Situation::Idle,
        Situation::New,
        Situation::FixedWindow,
        Situation::SlidingWindow,
        Situation::Denied,
        Situation::Log,
        Situation::Permit,
    ];

    fn name(self) -> &'static str {
        match self {
            Situation::Slow => "10/second",
            Situation::Fast => "1000/second",
            Situation::Idle => "idle bucket",
            Situation::New => "new subject",
            Situation::FixedWindow => "fixed window",
            Situation::SlidingWindow => "sliding window",
            Situation::Denied => "denial",
            Situation::Log => "sliding log",
            Situation::Permit => "permit and release",
        }
    }

    /// Returns the limit at a position, which differs from those at the others.
    fn limit(self, position: u64) -> LimitSpec {
        match self {
            Situation::Slow => of_rate(10 + position).burst(ROOM),
            Situation::Fast => of_rate(1_000 + position).burst(ROOM),
            Situation::Idle => of_rate(1_000_000 + position).burst(10),
            // Gone after a millisecond, so that the sweep removes it before its name comes again.
            Situation::New => of_rate(1_000 + position).burst(1),
            Situation::FixedWindow => per_hour(ROOM - position).algorithm("fixed-window"),
            Situation::SlidingWindow => per_hour(ROOM - position).algorithm("sliding-window"),
            Situation::Denied => LimitSpec::new(format!("1/{}d", 1 + position)),
            Situation::Log => {
                LimitSpec::new(format!("{}/100ms", 10_000 - position)).algorithm("sliding-log")
            }
            Situation::Permit => LimitSpec::new(format!("{}", 1_000 + position))
                .algorithm("concurrency")
                .max_hold("30s"),
        }
    }

    /// Whether it is a bucket or a window, and allowed.
    fn is_common(self) -> bool {
        !matches!(self, Situation::Denied | Situation::Log | Situation::Permit)
    }
}

/// The measured times, as decisions in each second of the processor.
struct Checks {
    keys: u32,
    threads: usize,
    rounds: Rounds,
}

/// The floors of the shapes, in order.
struct Floors([Floor; 4]);

impl Floors {
    const FEW_KEYS: Floors = Floors([
        Floor::AtLeast(0.55),
        Floor::AtLeast(0.36),
        Floor::AtLeast(0.22),
        Floor::AtLeast(0.1),
    ]);
    const MANY_KEYS: Floors =
        Floors([Floor::AtLeast(0.9), Floor::AtLeast(0.8), Floor::AtLeast(0.4), Floor::Nothing]);
    const NONE: Floors = Floors([Floor::Nothing; 4]);
}

impl Checks {
    /// All rows, the slowest first.
    fn against_governor(&self, floors: Floors) -> Table {
        let mut rows: Vec<Row> = (0..)
            .zip(cases())
            .map(|(contender, (shape, situation))| {
                let floor = floors.0[shape as usize];
                let floor = if situation.is_common() { floor } else { Floor::Nothing };
                self.row(contender, (shape, situation), GOVERNOR, floor)
            })
            .collect();
        let median = |row: &Row| row.ratio.map_or(0.0, |ratio| ratio.median);
        rows.sort_by(|one, other| median(one).total_cmp(&median(other)));
        let title = format!(
            "Memory engine, {} keys, {} threads: a check; baseline: governor's keyed check of one counter",
            self.keys, self.threads
        );
        Table { title, rows }
    }

    /// Denials, logs and permits beside the fastest situation of their shape.
    fn against_fastest(&self) -> Table {
        let mut rows = Vec::new();
        for shape in Shape::ALL {
            let of_shape = || (0..).zip(cases()).filter(|(_, case)| case.0 == shape);
            let speed = |(place, _): &(usize, _)| self.rounds.figure(*place);
            let fastest = of_shape().max_by(|one, other| speed(one).total_cmp(&speed(other)));
            let Some((fastest, _)) = fastest else { continue };
            for (place, case) in of_shape().filter(|(_, case)| !case.1.is_common()) {
                let most = if case.1 == Situation::Denied { 1.6 } else { 2.5 };
                let row = self.row(fastest, case, place, Floor::AtMost(most));
                rows.push(Row { ours: row.baseline, baseline: row.ours, ..row });
            }
        }
        let title = format!(
            "Memory engine, {} keys, {} threads: a check; baseline: the fastest check of its shape",
            self.keys, self.threads
        );
        Table { title, rows }
    }

    /// Compares the rates of two contenders, and shows their times.
    fn row(&self, ours: usize, case: (Shape, Situation), to: usize, floor: Floor) -> Row {
        let time = |contender| format!("{:.1} ns", 1e9 / self.rounds.figure(contender));
        Row {
            measure: format!("{}, {}", case.0.name(), case.1.name()),
            ours: time(ours),
            baseline: time(to),
            ratio: Some(self.rounds.figure_ratio(ours, to)),
            floor,
        }
    }
}

/// Each shape in each situation, in the order in which they are measured. governor comes after them.
fn cases() -> impl Iterator<Item = (Shape, Situation)> + Clone {
    Shape::ALL.into_iter().flat_map(|shape| Situation::ALL.map(|situation| (shape, situation)))
}

fn checks(effort: Effort, keys: u32, threads: usize) -> Result<Checks, Box<dyn Error>> {
    let names: &[String] = &(0..NAMES).map(|number| format!("user:{number}")).collect::<Vec<_>>();
    let (order, unseen) = (&shuffled(keys)[..], &(0..NAMES).collect::<Vec<u32>>()[..]);
    let mut contenders: Vec<Box<dyn FnMut() -> Run + '_>> = Vec::new();
    for (shape, situation) in cases() {
        let limiter = runtime().block_on(limiter(shape, situation))?;
        let limit = situation.limit(0).build()?;
        let places = if situation == Situation::New { unseen } else { order };
        contenders.push(Box::new(move || {
            let is_allowed = situation != Situation::Denied;
            let passes = Passes { effort, order: places, threads, is_allowed };
            let name = |place: u32| &names[place as usize];
            match (shape, situation) {
                (_, Situation::Permit) => passes.run(&async |place| {
                    let decision = limiter.check(&request(shape, name(place), &limit)).await;
                    let receipt = decision.receipt().expect("permits have receipts");
                    limiter.release(receipt).await.is_ok()
                }),
                (Shape::Inline, _) => passes.run(&async |place| {
                    let request = Request::keyed(name(place), &limit);
                    black_box(limiter.check(&request).await).allowed()
                }),
                (Shape::OneRule | Shape::ThreeLimits, _) => passes.run(&async |place| {
                    let request = Request::new().with("user", name(place));
                    black_box(limiter.check(&request).await).allowed()
                }),
                (Shape::ThreeRules, _) => passes.run(&async |place| {
                    let request = request(Shape::ThreeRules, name(place), &limit);
                    black_box(limiter.check(&request).await).allowed()
                }),
            }
        }));
    }
    let quota = Quota::per_second(fits(10)).allow_burst(fits(ROOM));
    let theirs: DefaultKeyedRateLimiter<String> = RateLimiter::dashmap(quota);
    contenders.push(Box::new(move || {
        Passes { effort, order, threads, is_allowed: true }
            .run(&async |place| black_box(theirs.check_key(&names[place as usize])).is_ok())
    }));
    Ok(Checks { keys, threads, rounds: Rounds::of(effort, &mut contenders) })
}

fn request<'r>(shape: Shape, name: &'r str, limit: &'r Limit) -> Request<'r> {
    match shape {
        Shape::Inline => Request::keyed(name, limit),
        Shape::OneRule | Shape::ThreeLimits => Request::new().with("user", name),
        Shape::ThreeRules => {
            Request::new().with("user", name).with("account", name).with("route", "/x")
        }
    }
}

async fn limiter(shape: Shape, situation: Situation) -> Result<Limiter, Box<dyn Error>> {
    let by_user = Rule::new("api").key(["user"]).limit(situation.limit(0));
    let policy = match shape {
        Shape::Inline => Policy::builder(),
        Shape::OneRule => Policy::builder().rule(by_user),
        Shape::ThreeLimits => {
            Policy::builder().rule(by_user.limit(situation.limit(1)).limit(situation.limit(2)))
        }
        Shape::ThreeRules => {
            let route = Rule::new("route").key(["account", "user"]).matching("route", "/x");
            let account = Rule::new("account").key(["account"]);
            Policy::builder()
                .rule(by_user)
                .rule(route.limit(situation.limit(0)))
                .rule(account.limit(situation.limit(0)))
        }
    };
    Ok(Limiter::builder().policy(policy.build()?).build().await?)
}

/// How a contender calls, again and again over all places.
struct Passes<'o> {
    effort: Effort,
    order: &'o [u32],
    threads: usize,
    is_allowed: bool,
}

impl Passes<'_> {
    /// Calls on each thread, and returns the mean of their calls in each second of the processor.
    fn run(&self, call: &(impl AsyncFn(u32) -> bool + Sync)) -> Run {
        let run = |number| runtime().block_on(self.pass(number, call));
        let figures: f64 = std::thread::scope(|scope| {
            let run = &run;
            let others: Vec<_> =
                (1..self.threads).map(|number| scope.spawn(move || run(number))).collect();
            let own = run(0);
            own + others.into_iter().map(|other| other.join().expect("it only checks")).sum::<f64>()
        });
        Run { figure: figures / self.threads as f64, store_us: 0.0 }
    }

    /// The first pass is not timed. A thread begins at a place of its own.
    async fn pass(&self, thread: usize, call: &impl AsyncFn(u32) -> bool) -> f64 {
        let (before, after) = self.order.split_at(self.order.len() / self.threads * thread);
        let places = || after.iter().chain(before).copied();
        for place in places().take(KEYS_MAX) {
            call(place).await;
        }
        let (start, cpu, mut calls) = (Instant::now(), cpu_seconds(), 0_u64);
        while start.elapsed() < self.effort.span {
            for place in places() {
                let allowed = call(place).await;
                calls += 1;
                assert_eq!(allowed, self.is_allowed, "the limits are made so");
                if calls.is_multiple_of(KEYS_MAX as u64) && start.elapsed() >= self.effort.span {
                    break;
                }
            }
        }
        calls as f64 / (cpu_seconds() - cpu)
    }
}

/// Returns the processor time of this thread.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn of_rate(count: u64) -> LimitSpec {
    LimitSpec::new(format!("{count}/second"))
}

fn per_hour(count: u64) -> LimitSpec {
    LimitSpec::new(format!("{count}/hour"))
}

fn fits(number: u64) -> NonZeroU32 {
    u32::try_from(number).ok().and_then(NonZeroU32::new).expect("a constant of this file")
}

/// Lasts for the whole run.
const ROOM: u64 = 1_000_000_000;
/// The names of new subjects, each of which is forgotten before it comes again.
const NAMES: u32 = 1_000_000;
/// The most keys that are checked again and again.
const KEYS_MAX: usize = 100_000;
/// The place of governor behind all cases.
const GOVERNOR: usize = Shape::ALL.len() * Situation::ALL.len();
