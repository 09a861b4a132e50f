//! One run: a fleet on simulated servers, callers, and a nemesis, all from one seed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use spillgate::control::WriteReport;
use spillgate::store::{OnStateLoss, Ring, ShardStatus};
use spillgate::{Decision, Limiter, LimiterBuilder, Request};
use spillgate_redis::simulation;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use super::ledger::{Ledger, PROCESSES, START_US};
use super::lua::Host;
use super::nemesis;
use super::network::Network;
use super::rules::{Case, Period, RULES, SWITCHED, Subject, policy, subjects};
use super::server::{Node, Server};
use super::support::random::Random;

/// How the servers of a run are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    One,
    Ring,
    Sentinels,
    Cluster,
}

/// The result of a run: its history, the violated invariant, and the events that were reached.
pub(crate) struct Outcome {
    pub(crate) seed: u64,
    /// The kind of fleet, for messages.
    pub(crate) about: String,
    pub(crate) lines: Vec<String>,
    pub(crate) broken: Option<String>,
    pub(crate) reached: BTreeMap<&'static str, u64>,
}

/// Everything that a nemesis can reach.
pub(crate) struct World {
    pub(crate) shape: Shape,
    pub(crate) network: Rc<Network>,
    pub(crate) ledger: Rc<Ledger>,
    pub(crate) random: RefCell<Random>,
    processes: RefCell<Vec<Process>>,
    lives: Cell<u32>,
    /// How many moods servers have had. Each seed begins with another mood.
    pub(crate) moods: Cell<usize>,
    /// The last limit that an operator set.
    set: Cell<u64>,
    /// Whether callers pause.
    pub(crate) is_quiet: Cell<bool>,
    is_over: Cell<bool>,
}

#[derive(Clone)]
struct Process {
    life: u32,
    limiter: Limiter,
}

/// Runs a seed in a world of its own.
pub(crate) fn play<F: Future<Output = Outcome>>(seed: u64, run: impl Fn(u64) -> F) -> Outcome {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    let outcome = LocalSet::new().block_on(&runtime, run(seed));
    // Running tasks belong to the world of this seed.
    drop(runtime);
    outcome
}

/// Runs a fleet without leases on one of the topologies.
pub(crate) async fn run(seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    // In turn, so that a few seeds cover all shapes.
    let shape = SHAPES[seed as usize % SHAPES.len()];
    let ledger = Rc::new(Ledger::new());
    let network = Network::new(servers(shape), random.next(), &ledger);
    let inside = simulation::enter(random.next(), START_US, network.dial());
    let world = Rc::new(World {
        shape,
        network,
        ledger: Rc::clone(&ledger),
        random: RefCell::new(random),
        processes: RefCell::default(),
        lives: Cell::new(0),
        moods: Cell::new(seed as usize / SHAPES.len()),
        set: Cell::new(SET_FIRST),
        is_quiet: Cell::new(true),
        is_over: Cell::new(false),
    });
    let may_begin_empty = matches!(shape, Shape::One | Shape::Ring | Shape::Sentinels);
    let begins_exhausted = may_begin_empty && world.random.borrow_mut().one_in(3);
    world.ledger.begins_exhausted.set(begins_exhausted);
    let empty = if begins_exhausted { ", limits begin exhausted" } else { "" };
    let about = format!("{shape:?}{empty}");
    world.ledger.note(|| format!("seed {seed}: {about}"));
    for number in 0..PROCESSES as usize {
        world.start(number).await;
    }
    world.introduce().await;
    let callers: Vec<_> = (0..PROCESSES as usize * CALLERS)
        .map(|caller| {
            let random = Random::new(world.random.borrow_mut().next());
            spawn_local(call(Rc::clone(&world), caller % PROCESSES as usize, random))
        })
        .collect();
    nemesis::cause_faults(&world).await;
    world.is_over.set(true);
    for caller in callers {
        let _ = caller.await;
    }
    if !ledger.is_broken() {
        world.everything_recovers().await;
    }
    world.processes.take();
    drop(inside);
    let (lines, broken, reached) = world.ledger.take();
    Outcome { seed, about, lines, broken, reached }
}

fn servers(shape: Shape) -> Vec<(String, Server)> {
    let host = Rc::new(Host::new());
    let names: &[&str] = match shape {
        Shape::One => &["one"],
        Shape::Ring | Shape::Cluster => &["a", "b", "c"],
        Shape::Sentinels => &["one", "two", "s1", "s2"],
    };
    let owners =
        Rc::new(RefCell::new((0..16_384).map(|slot| slot * 3 / 16_384).collect::<Vec<_>>()));
    let moving = Rc::default();
    let server = |(me, name): (usize, &&str)| {
        let mut server = Server::new(&host);
        if shape == Shape::Cluster {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let (owners, moving) = (Rc::clone(&owners), Rc::clone(&moving));
            server.cluster = Some(Node { me, owners, moving, names });
        }
        server.primary = name.starts_with('s').then(|| "one".to_owned());
        ((*name).to_owned(), server)
    };
    names.iter().enumerate().map(server).collect()
}

impl World {
    /// Starts a process in place of the one before it.
    pub(crate) async fn start(&self, number: usize) {
        let life = self.lives.get() + 1;
        self.lives.set(life);
        let before = self.processes.borrow().get(number).map(|process| process.life);
        self.ledger.note(|| format!("p{life} starts in place of {before:?}"));
        let on_state_loss = match self.ledger.begins_exhausted.get() {
            true => OnStateLoss::Exhausted,
            false => OnStateLoss::Fresh,
        };
        let builder = Limiter::builder().policy(policy()).on_state_loss(on_state_loss);
        let builder = builder.connections(2).expected_instances(PROCESSES as u32);
        let limiter = self.on_store(builder, life).build().await.unwrap();
        let process = Process { life, limiter };
        let mut processes = self.processes.borrow_mut();
        match processes.get_mut(number) {
            Some(place) => *place = process,
            None => processes.push(process),
        }
    }

    fn on_store(&self, builder: LimiterBuilder, life: u32) -> LimiterBuilder {
        let url = |name: &str| format!("redis://{name}.p{life}:6379");
        match self.shape {
            Shape::One => builder.redis(url("one")),
            Shape::Cluster => builder.cluster([url("a"), url("b")]),
            Shape::Sentinels => builder.sentinel("limits", [url("s1"), url("s2")]),
            Shape::Ring => {
                let nodes = ["a", "b", "c"].into_iter();
                builder.ring(nodes.fold(Ring::new(), |ring, name| ring.node(name, url(name))))
            }
        }
    }

    /// Every server that holds state.
    pub(crate) fn stores(&self) -> &'static [&'static str] {
        match self.shape {
            Shape::One => &["one"],
            Shape::Ring | Shape::Cluster => &["a", "b", "c"],
            Shape::Sentinels => &["one", "two"],
        }
    }

    /// The lives of all processes.
    pub(crate) fn lives(&self) -> Vec<u32> {
        self.processes.borrow().iter().map(|process| process.life).collect()
    }

    fn process(&self, number: usize) -> Process {
        self.processes.borrow()[number].clone()
    }

    /// Peeks at each subject once, so that the ledger knows its keys.
    async fn introduce(&self) {
        let process = self.process(0);
        for subject in subjects() {
            let case = Case::about(subject, 1);
            self.ledger.introduce(Some(subject));
            let peeked = process.limiter.peek(&case.request()).await;
            self.ledger.always(!peeked.degraded(), || format!("{subject:?} at first: {peeked:?}"));
        }
        self.ledger.introduce(None);
    }

    /// Pauses callers until everything in flight has ended and is accounted for.
    pub(crate) async fn rest(&self) {
        self.is_quiet.set(true);
        while !self.ledger.is_idle() {
            sleep(Duration::from_millis(5)).await;
        }
        sleep(SETTLED).await;
        self.ledger.calm();
        self.ledger.note(|| "calm".into());
        self.is_quiet.set(false);
    }

    /// An operator sets a limit at one process. One second later it applies at every process.
    pub(crate) async fn set_a_limit(&self) {
        sleep(RECONNECTED).await;
        let number = self.random.borrow_mut().below(PROCESSES) as usize;
        let Process { life, limiter, .. } = self.process(number);
        let most = self.set.get() + 1;
        self.set.set(most);
        self.ledger.note(|| format!("at p{life} a limit of {most} is set"));
        let set =
            limiter.set_override(SWITCHED, &some_request(), [format!("{most}/day")], None).await;
        self.ledger.always(set.as_ref().is_ok_and(WriteReport::is_saved), || format!("{set:?}"));
        sleep(HOLDS_AFTER).await;
        self.operator_limit_holds().await;
        self.ledger.sometimes("a change by an operator");
    }

    /// Asserts that the limit applies at every process, whatever faults came since it was set.
    async fn operator_limit_holds(&self) {
        for number in 0..PROCESSES as usize {
            let Process { life, limiter, .. } = self.process(number);
            let peeked = limiter.peek(&some_request().with("route", SWITCHED)).await;
            let most = peeked.limits().next().and_then(|counter| counter.capacity());
            self.ledger.always(self.set.get() == SET_FIRST || most == Some(self.set.get()), || {
                format!("at p{life} the limit is {most:?}, expected {}", self.set.get())
            });
        }
    }

    /// Checks every limit that comes back soon, one after the other.
    async fn check_all(&self, number: usize, judge: impl Fn(Subject, &Decision, &[ShardStatus])) {
        let Process { life, limiter, .. } = self.process(number);
        for subject in subjects().filter(|it| RULES[it.rule].period != Period::Ages) {
            let case = Case::about(subject, 1);
            let pending = self.ledger.begin(life, case.costs.clone());
            let decision = limiter.check(&case.request()).await;
            self.ledger.read(pending, &decision);
            judge(subject, &decision, &limiter.shards());
        }
    }

    /// All faults have ended: a subject that has waited for the limit's longest wait is admitted by the
    /// store.
    async fn everything_recovers(&self) {
        sleep(HEALED).await;
        self.operator_limit_holds().await;
        if self.ledger.has_stepped() {
            // Timestamps ahead of the clock begin to pass at the next check.
            self.check_all(0, |_, _, _| ()).await;
        }
        for number in 0..PROCESSES as usize {
            sleep(LONGEST_WAIT).await;
            let process = self.process(number);
            self.check_all(number, |subject, decision, shards| {
                self.ledger.always(decision.allowed() && !decision.degraded(), || {
                    format!("long after the last fault {subject:?} got {decision:?}: {shards:?}")
                });
            })
            .await;
            let stats = process.limiter.stats();
            for (count, event) in [
                (stats.state_losses, "state loss was noticed"),
                (
                    process.limiter.shards().iter().map(|shard| shard.clock_steps).sum(),
                    "a clock step was noticed",
                ),
            ] {
                if count > 0 {
                    self.ledger.sometimes(event);
                }
            }
        }
        for store in self.stores() {
            self.network.server(store, |server| {
                let keys = server.keys.borrow();
                // Counters have keys of 51 and more characters; keys without a TTL are shorter.
                let mut endless = keys.keys().filter(|(key, ends)| !ends && key.len() > 50);
                let found =
                    endless.next().map(|(key, _)| String::from_utf8_lossy(key).into_owned());
                self.ledger.always(found.is_none(), || format!("{store}: no TTL: {found:?}"));
            });
        }
    }
}

fn some_request() -> Request<'static> {
    Request::new().with("user", "u0")
}

/// One caller of a process: checks, waits a little, and repeats.
async fn call(world: Rc<World>, number: usize, mut random: Random) {
    while !world.is_over.get() && !world.ledger.is_broken() {
        // In ticks, so that callers meet.
        sleep(Duration::from_millis(TICK_MS * random.below(10))).await;
        if world.is_quiet.get() {
            continue;
        }
        let Process { life, limiter, .. } = world.process(number);
        let case = Case::any(&mut random);
        let pending = world.ledger.begin(life, case.costs.clone());
        let request = case.request();
        let check = limiter.check(&request);
        if random.one_in(40) {
            match timeout(Duration::from_millis(random.below(5)), check).await {
                Ok(decision) => world.ledger.read(pending, &decision),
                Err(_) => world.ledger.left(pending),
            }
        } else {
            world.ledger.read(pending, &check.await);
        }
        if limiter.shards().iter().any(|shard| !shard.asked) {
            world.ledger.sometimes("an open circuit breaker");
        }
    }
}

const SHAPES: [Shape; 4] = [Shape::One, Shape::Ring, Shape::Sentinels, Shape::Cluster];
const CALLERS: usize = 4;
const TICK_MS: u64 = 20;
/// Longer than any call is in flight after the connections are fixed.
const SETTLED: Duration = Duration::from_millis(150);
/// By then deferred charges have been sent, too.
const HEALED: Duration = Duration::from_secs(5);
/// By then connections are reopened, and a Cluster's map is read again.
const RECONNECTED: Duration = Duration::from_secs(3);
/// A change at one process reaches all others within a second.
const HOLDS_AFTER: Duration = Duration::from_secs(1);
const SET_FIRST: u64 = 10;
/// Two periods, because forced charges drain no sooner.
const LONGEST_WAIT: Duration = Duration::from_secs(4);
