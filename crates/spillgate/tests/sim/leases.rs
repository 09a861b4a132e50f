//! Fleets with leases: 1, 4 and 16 processes at one hot subject and many cold ones, with demand above the
//! limits. Connections fail, processes restart or pause for longer than a lease lasts, and the store restarts
//! with or without its data.
//!
//! In every interval all processes together admit at most the limit's bound plus the leased share, and that
//! once more for each state loss. Without faults they use nearly all of the limit.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use spillgate::{Decision, Limiter, Policy, Request, Source};
use spillgate_redis::simulation;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;

use super::ledger::{Ledger, START_US};
use super::lua::Host;
use super::network::{Line, Network, NextCall};
use super::play::Outcome;
use super::server::Server;
use super::support::random::Random;

struct World {
    network: Rc<Network>,
    ledger: Rc<Ledger>,
    random: RefCell<Random>,
    processes: RefCell<Vec<Process>>,
    lives: Cell<u32>,
    losses: Cell<u64>,
    is_over: Cell<bool>,
    accounts: RefCell<BTreeMap<(usize, u64), Account>>,
}

#[derive(Clone)]
struct Process {
    life: u32,
    limiter: Limiter,
    stands_still: bool,
}

/// The admissions of all processes to one subject of a rule.
#[derive(Default)]
struct Account {
    admitted: u64,
    by_lease: u64,
    /// Of a bucket: the admissions that have not drained, in thousandths of a token, and the time of that
    /// level.
    level: u64,
    at_ms: u64,
    /// Of a window: its number, and the admissions certainly in it.
    window: u64,
    in_window: u64,
}

/// Returns whether a seed has no faults: then the limit has to be used.
fn is_quiet(seed: u64) -> bool {
    (seed / 3).is_multiple_of(4)
}

/// Runs a fleet with leases on one server.
pub(crate) async fn run(seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    let fleet = FLEETS[seed as usize % FLEETS.len()];
    let ledger = Rc::new(Ledger::new());
    let servers = vec![("one".to_owned(), Server::new(&Rc::new(Host::new())))];
    let network = Network::new(servers, random.next(), &ledger);
    let inside = simulation::enter(random.next(), START_US, network.dial());
    let world = Rc::new(World {
        network,
        ledger: Rc::clone(&ledger),
        random: RefCell::new(random),
        processes: RefCell::default(),
        lives: Cell::new(0),
        losses: Cell::new(0),
        is_over: Cell::new(false),
        accounts: RefCell::default(),
    });
    let about = format!("{fleet} processes, quiet: {}", is_quiet(seed));
    ledger.note(|| format!("seed {seed}: {about}"));
    for number in 0..fleet {
        world.start(number).await;
    }
    let callers: Vec<_> = (0..callers_of(fleet))
        .map(|caller| {
            let random = Random::new(world.random.borrow_mut().next());
            spawn_local(call(Rc::clone(&world), caller % fleet, fleet, random))
        })
        .collect();
    if is_quiet(seed) {
        sleep(Duration::from_millis(SETTLED_MS)).await;
        // Runs in whole windows: the part of a window used at one instant is random.
        sleep(Duration::from_micros(PERIOD_US - ledger.now_us() % PERIOD_US)).await;
        let before = world.admitted();
        sleep(Duration::from_millis(USED_MS)).await;
        world.is_used(&before);
    } else {
        world.cause_faults().await;
    }
    world.is_over.set(true);
    for caller in callers {
        let _ = caller.await;
    }
    if !ledger.is_broken() {
        world.everything_is_returned().await;
    }
    world.processes.take();
    drop(inside);
    let (lines, broken, reached) = ledger.take();
    Outcome { seed, about, lines, broken, reached }
}

impl World {
    async fn start(&self, number: usize) {
        let life = self.lives.get() + 1;
        self.lives.set(life);
        self.ledger.note(|| format!("p{life} starts"));
        let builder =
            Limiter::builder().policy(policy()).redis(format!("redis://one.p{life}:6379"));
        let limiter = builder.connections(2).build().await.unwrap();
        let process = Process { life, limiter, stands_still: false };
        let mut processes = self.processes.borrow_mut();
        match processes.get_mut(number) {
            Some(place) => *place = process,
            None => processes.push(process),
        }
    }

    fn below(&self, end: u64) -> u64 {
        self.random.borrow_mut().below(end)
    }

    async fn cause_faults(&self) {
        for _ in 0..FAULTS {
            sleep(Duration::from_millis(300 + self.below(900))).await;
            if self.ledger.is_broken() {
                return;
            }
            let number = self.below(self.processes.borrow().len() as u64) as usize;
            let life = self.processes.borrow()[number].life;
            let lasts = Duration::from_millis(20 + self.below(3 * TTL_MS));
            let line = |line| {
                self.ledger.note(|| format!("p{life}: {line:?} for {lasts:?}"));
                self.network.set_line(life, "one", line);
            };
            match self.below(9) {
                0 => line(Line { later_ms: 2 + self.below(9), ..Line::default() }),
                1 => line(Line { later_ms: 30, ..Line::default() }),
                2 => line(Line { is_held: true, ..Line::default() }),
                3 => line(Line { next_call: NextCall::CutOffBefore, ..Line::default() }),
                4 => line(Line { next_call: NextCall::CutOffAfter, ..Line::default() }),
                5 => {
                    self.ledger.note(|| format!("p{life} pauses"));
                    self.ledger.sometimes("a process paused for longer than a lease");
                    line(Line { is_held: true, ..Line::default() });
                    self.processes.borrow_mut()[number].stands_still = true;
                    sleep(Duration::from_millis(TTL_MS + self.below(3 * TTL_MS))).await;
                    self.processes.borrow_mut()[number].stands_still = false;
                }
                6 => {
                    self.ledger.note(|| format!("p{life} is killed"));
                    self.ledger.sometimes("a process was killed");
                    self.start(number).await;
                }
                7 => {
                    self.ledger.note(|| "the store pauses".into());
                    self.network.pause("one", true);
                    sleep(lasts).await;
                    self.network.pause("one", false);
                }
                _ => self.restart_store(lasts).await,
            }
            sleep(lasts).await;
            self.network.fix_lines();
        }
    }

    async fn restart_store(&self, lasts: Duration) {
        let saved = self.below(2) == 0;
        self.ledger.note(|| format!("the store is restarted; data saved: {saved}"));
        self.ledger.sometimes(if saved { "a store restarted" } else { "state loss" });
        self.network.kill("one");
        if !saved {
            self.losses.set(self.losses.get() + 1);
        }
        sleep(lasts).await;
        self.network.start("one", saved);
    }

    fn read(&self, rule: usize, user: u64, began_us: u64, decision: &Decision) {
        if decision.reason().is_some() {
            return;
        }
        let now_us = self.ledger.now_us();
        let limits = 1 + self.losses.get();
        let mut accounts = self.accounts.borrow_mut();
        let account = accounts.entry((rule, user)).or_default();
        account.admitted += 1;
        if decision.source() == Source::Lease {
            account.by_lease += 1;
            self.ledger.sometimes("a lease decided");
        }
        let name = RULES[rule].0;
        // Replies of the store arrive later than the charges.
        let late = RATE * LATE_MS / 1_000;
        match name {
            "ages" => {
                let most = COUNT * limits + SHARE * (limits - 1);
                let admitted = account.admitted;
                self.ledger.always(admitted <= most, || {
                    format!("{name}/u{user}: {admitted} admitted, at most {most} allowed")
                });
            }
            "bucket" => {
                let now_ms = now_us / 1_000;
                account.level = account.level.saturating_sub(RATE * (now_ms - account.at_ms));
                (account.level, account.at_ms) = (account.level + 1_000, now_ms);
                let (level, most) = (account.level / 1_000, (COUNT + SHARE) * limits + late);
                self.ledger.always(level <= most, || {
                    format!("{name}/u{user}: {level} in one interval, at most {most} allowed")
                });
            }
            "fixed" => {
                let window = now_us / PERIOD_US;
                if account.window != window {
                    (account.window, account.in_window) = (window, 0);
                }
                // An admission by a lease counts now; one by the store counts when it was executed.
                let is_certain =
                    decision.source() == Source::Lease || began_us / PERIOD_US == window;
                account.in_window += u64::from(is_certain);
                let (admitted, most) = (account.in_window, COUNT * limits);
                self.ledger.always(admitted <= most, || {
                    format!("{name}/u{user}: {admitted} in one window, at most {most} allowed")
                });
            }
            _ => {
                let window = now_us / PERIOD_US;
                if account.window != window {
                    (account.window, account.in_window) = (window, 0);
                }
                account.in_window += 1;
                let (admitted, most) = (account.in_window, (2 * COUNT + SHARE) * limits + late);
                self.ledger.always(admitted <= most, || {
                    format!("{name}/u{user}: {admitted} in one period, at most {most} allowed")
                });
            }
        }
        if !account.admitted.is_multiple_of(8) {
            return;
        }
        // Only the hot subject of each rule is leased; the others are checked too rarely.
        let processes = self.processes.borrow();
        let held = processes.iter().map(|process| process.limiter.stats().lease_outstanding);
        let (held, most) = (held.sum::<u64>(), SHARE * RULES.len() as u64 * limits);
        self.ledger.always(held <= most, || format!("{held} held at once, at most {most} allowed"));
    }

    fn admitted(&self) -> BTreeMap<usize, (u64, u64)> {
        let accounts = self.accounts.borrow();
        let of_hot = accounts.iter().filter(|((_, user), _)| *user == HOT);
        of_hot.map(|((rule, _), it)| (*rule, (it.admitted, it.by_lease))).collect()
    }

    /// Asserts that nearly all of the limit was admitted since `before`, with demand above it.
    fn is_used(&self, before: &BTreeMap<usize, (u64, u64)>) {
        for (rule, (admitted, by_lease)) in self.admitted() {
            let (earlier, earlier_by_lease) = before.get(&rule).copied().unwrap_or_default();
            let (admitted, name) = (admitted - earlier, RULES[rule].0);
            let could = RATE * USED_MS / 1_000;
            self.ledger.note(|| {
                let by_lease = by_lease - earlier_by_lease;
                format!("{name}: {admitted} of {could} admitted, {by_lease} by leases")
            });
            let is_whole = ["bucket", "fixed"].contains(&name);
            self.ledger.always(!is_whole || admitted * 100 >= could * 99, || {
                format!("{name}: {admitted} of {could} admitted, with demand above that")
            });
        }
    }

    /// All faults have ended: leases are returned, and subjects in use are leased again.
    async fn everything_is_returned(&self) {
        sleep(Duration::from_secs(5)).await;
        let processes = self.processes.borrow().clone();
        for Process { life, limiter, .. } in &processes {
            let held = limiter.stats().lease_outstanding;
            self.ledger.always(held == 0, || format!("p{life} still holds {held}"));
        }
        let limiter = &processes[0].limiter;
        let mut leased = false;
        for _ in 0..200 {
            let began_us = self.ledger.now_us();
            let decision = limiter.check(&request("bucket", HOT).request()).await;
            self.read(1, HOT, began_us, &decision);
            leased |= decision.source() == Source::Lease;
            sleep(Duration::from_millis(4)).await;
        }
        self.ledger.always(leased, || "no lease long after the last fault".into());
    }
}

struct Call {
    rule: &'static str,
    user: String,
}

fn request(rule: &'static str, user: u64) -> Call {
    Call { rule, user: format!("u{user}") }
}

impl Call {
    fn request(&self) -> Request<'_> {
        Request::new().with("route", self.rule).with("user", &*self.user)
    }
}

/// One caller of a process: checks, waits a little, and repeats.
async fn call(world: Rc<World>, number: usize, fleet: usize, mut random: Random) {
    // All callers together request at least one and a half times the limits.
    let pause_us = callers_of(fleet) as u64 * 1_000_000 / (DEMAND * RULES.len() as u64);
    while !world.is_over.get() && !world.ledger.is_broken() {
        sleep(Duration::from_micros(random.below(2 * pause_us))).await;
        let Process { limiter, stands_still, .. } = world.processes.borrow()[number].clone();
        if stands_still {
            continue;
        }
        let rule = random.below(RULES.len() as u64) as usize;
        let user = if random.one_in(20) { 1 + random.below(500) } else { HOT };
        let began_us = world.ledger.now_us();
        let decision = limiter.check(&request(RULES[rule].0, user).request()).await;
        world.read(rule, user, began_us, &decision);
    }
}

/// Enough callers that demand exceeds the limits although each waits for its replies.
fn callers_of(fleet: usize) -> usize {
    fleet * CALLERS.div_ceil(fleet).max(2)
}

fn policy() -> Policy {
    let rules = RULES.iter().map(|(name, algorithm, quota)| {
        format!(
            "[[rule]]\nname = \"{name}\"\nmatch = {{ route = \"{name}\" }}\nkey = [\"user\"]\n\
             limits = [{{ quota = \"{quota}\", algorithm = \"{algorithm}\" }}]\non_outage = \"deny\"\n\
             lease = {{ share = 0.1, ttl = \"{TTL_MS}ms\" }}\n"
        )
    });
    Policy::from_toml(&rules.collect::<String>()).unwrap()
}

/// A lease's end is counted from the time its call was sent, because the reply may have been in flight for
/// long. The ledger counts from the execution.
#[test]
fn a_lease_ends_its_lifetime_after_its_call_was_sent() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let ledger = Rc::new(Ledger::new());
        let servers = vec![("one".to_owned(), Server::new(&Rc::new(Host::new())))];
        let network = Network::new(servers, 1, &ledger);
        let inside = simulation::enter(1, START_US, network.dial());
        let builder = Limiter::builder().policy(policy()).redis("redis://one.p1:6379");
        let limiter = builder.timeout(Duration::from_millis(300)).build().await.unwrap();
        let hot_call = request("ages", HOT);
        network.set_line(1, "one", Line { later_ms: ONE_WAY_MS, ..Line::default() });
        while limiter.stats().lease_outstanding == 0 {
            let limiter = limiter.clone();
            spawn_local(async move { limiter.check(&request("ages", HOT).request()).await });
            sleep(Duration::from_millis(1)).await;
            assert!(ledger.now_ms() < 5_000, "no lease was granted");
        }
        // No other lease replaces it, and it is in use, because an idle one would be returned.
        network.set_line(1, "one", Line { is_held: true, ..Line::default() });
        let (answered_ms, mut lasted_ms) = (ledger.now_ms(), 0);
        while limiter.check(&hot_call.request()).await.source() == Source::Lease {
            lasted_ms = ledger.now_ms() - answered_ms;
            sleep(Duration::from_millis(ONE_WAY_MS)).await;
        }
        let most_ms = TTL_MS - 2 * ONE_WAY_MS;
        assert!((ONE_WAY_MS..=most_ms).contains(&lasted_ms), "{lasted_ms} of {most_ms} ms");
        drop(inside);
    });
}

const RULES: [(&str, &str, &str); 4] = [
    ("ages", "token-bucket", "300/366d"),
    ("bucket", "token-bucket", "300/1s"),
    ("fixed", "fixed-window", "300/1s"),
    ("sliding", "sliding-window", "300/1s"),
];
const FLEETS: [usize; 3] = [1, 4, 16];
const CALLERS: usize = 24;
const COUNT: u64 = 300;
const RATE: u64 = 300;
const PERIOD_US: u64 = 1_000_000;
/// A tenth of `COUNT`.
const SHARE: u64 = 30;
const TTL_MS: u64 = 400;
/// Per second and rule, if replies took no time.
const DEMAND: u64 = 700;
const HOT: u64 = 0;
/// A decision takes at most 25 ms and a tick.
const LATE_MS: u64 = 30;
/// Of a slow connection.
const ONE_WAY_MS: u64 = 40;
const FAULTS: usize = 5;
const SETTLED_MS: u64 = 3_000;
const USED_MS: u64 = 5_000;
