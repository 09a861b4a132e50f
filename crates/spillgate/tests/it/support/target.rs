//! Every implementation that a test can compare: the pure algorithm, the memory engine, Lua in a real Redis,
//! the Redis engine, and each algorithm's oracle.

use std::time::Duration;

use spillgate_core::algorithm::{Charge, Intent, LimitParams, Reading, Refund, State};
use spillgate_core::counter::{Change, PlannedCharge};
use spillgate_core::limit::{NamedLimit, RecordName};
use spillgate_core::memory::Memory;
use spillgate_core::plan::{RecordAction, Transaction};
use spillgate_core::subject::SubjectKey;
use spillgate_core::time::Clock;
use spillgate_redis::Redis;
use spillgate_redis::store::{Store, StoreOptions};
use spillgate_testkit::{Connection, RedisServer, Reply};

use crate::support::engine::Engine;
use crate::support::script;
use crate::support::step::{StepCounter, step};
use crate::support::world::runtime;

/// One operation on a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Charge if there is room; 0 peeks.
    Check(u64),
    /// Like [`Act::Check`], with a receipt that the target keeps under the next number.
    Reserve(u64),
    /// Read the effect of a cost without charging.
    Peek(u64),
    Force(u64),
    /// Refund this much of a receipt, by number, modulo the number of receipts.
    Refund {
        receipt: u64,
        unused: u64,
    },
    Lower(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub fits: bool,
    pub reading: Reading,
    pub returned: u64,
}

pub trait Target {
    fn name(&self) -> &'static str;
    fn act(&mut self, act: Act, limit: &NamedLimit, now_us: u64) -> Answer;
}

/// Receipts by number. A denied reservation keeps its number and refunds nothing.
#[derive(Default)]
pub struct Receipts(Vec<Option<Charge>>);

impl Receipts {
    pub fn keep(&mut self, charge: Option<Charge>) {
        self.0.push(charge);
    }

    pub fn refund(&self, act: Act) -> Refund {
        let nothing = Charge { incarnation: 0, at_us: 0, amount: 0, mark: 0 };
        match act {
            Act::Lower(amount) => Refund::Amount(amount),
            Act::Refund { receipt, unused } => {
                let place = receipt as usize % self.0.len().max(1);
                let charge = self.0.get(place).copied().flatten().unwrap_or(nothing);
                Refund::Unused { charge, unused: unused.min(charge.amount) }
            }
            other => panic!("{other:?} refunds nothing"),
        }
    }
}

/// The pure algorithm over one state.
#[derive(Default)]
pub struct Pure {
    state: Option<State>,
    receipts: Receipts,
    nonce: u64,
}

impl Target for Pure {
    fn name(&self) -> &'static str {
        "pure"
    }

    fn act(&mut self, act: Act, limit: &NamedLimit, now_us: u64) -> Answer {
        self.nonce += 1;
        let cost = cost_of(act);
        let mut counter = StepCounter::new(params(limit), cost, self.state.take());
        let mut returned = 0;
        match act {
            Act::Force(_) => counter.force(now_us),
            Act::Refund { .. } | Act::Lower(_) => {
                returned = counter.refund(self.receipts.refund(act), now_us);
            }
            _ => {
                let intent = intent_of(act, scattered(self.nonce));
                step(std::slice::from_mut(&mut counter), intent, now_us);
            }
        }
        if let Act::Reserve(_) = act {
            self.receipts.keep(counter.charge);
        }
        self.state = counter.state;
        Answer { fits: counter.fits, reading: counter.reading, returned }
    }
}

/// An engine, used for one subject.
pub struct OnEngine {
    engine: Engine,
    name: &'static str,
    clock: Clock,
    key: SubjectKey,
    receipts: Receipts,
    nonce: u64,
    runtime: tokio::runtime::Runtime,
}

impl OnEngine {
    pub fn memory(key: SubjectKey) -> OnEngine {
        let clock = Clock::given(0);
        let engine = Engine::Memory(Memory::new(1_000, clock.clone()));
        OnEngine::new("memory engine", engine, clock, key, runtime())
    }

    pub fn redis(server: &RedisServer, key: SubjectKey) -> OnEngine {
        let clock = Clock::given(0);
        let runtime = runtime();
        let engine = runtime.block_on(async {
            Redis::connect(&server.url(), Duration::from_secs(10)).await.unwrap()
        });
        let engine = Engine::Redis(engine.with_clock(clock.clone()));
        OnEngine::new("redis engine", engine, clock, key, runtime)
    }

    /// On a store that is opened with custom options.
    pub fn opened(store: &Store, options: &StoreOptions, key: SubjectKey) -> OnEngine {
        let (clock, runtime) = (Clock::given(0), runtime());
        let engine = runtime.block_on(Redis::open(store, options)).unwrap();
        let engine = Engine::Redis(engine.with_clock(clock.clone()));
        OnEngine::new("redis engine", engine, clock, key, runtime)
    }

    fn new(
        name: &'static str,
        engine: Engine,
        clock: Clock,
        key: SubjectKey,
        runtime: tokio::runtime::Runtime,
    ) -> OnEngine {
        OnEngine { engine, name, clock, key, receipts: Receipts::default(), nonce: 0, runtime }
    }
}

impl Target for OnEngine {
    fn name(&self) -> &'static str {
        self.name
    }

    fn act(&mut self, act: Act, limit: &NamedLimit, now_us: u64) -> Answer {
        self.clock.set(now_us);
        self.nonce += 1;
        let counter = PlannedCharge::new(self.key, limit.clone());
        let counter = PlannedCharge { cost: cost_of(act), attributes: 1, ..counter };
        let change = match act {
            Act::Force(cost) => Change::Force(cost),
            Act::Refund { .. } | Act::Lower(_) => Change::Refund(self.receipts.refund(act)),
            _ => {
                let transaction = Transaction {
                    intent: intent_of(act, scattered(self.nonce)),
                    record: RecordAction::None,
                    charges: [counter].into_iter().collect(),
                };
                let reply = self.runtime.block_on(self.engine.decide_one(&transaction)).unwrap();
                if let Act::Reserve(_) = act {
                    self.receipts.keep(reply.replies[0].charge);
                }
                let counter = reply.replies[0];
                return Answer { fits: counter.fits, reading: counter.reading, returned: 0 };
            }
        };
        let (returned, reply) =
            self.runtime.block_on(self.engine.change(&counter, change)).unwrap();
        Answer { fits: reply.fits, reading: reply.reading, returned }
    }
}

/// The script itself, with a hand-written program and no engine.
pub struct InLua<'s> {
    connection: Connection,
    script: String,
    keys: [String; 2],
    receipts: Receipts,
    nonce: u64,
    server: std::marker::PhantomData<&'s RedisServer>,
}

impl<'s> InLua<'s> {
    pub fn new(server: &'s RedisServer, id: u128) -> InLua<'s> {
        let mut connection = server.connect();
        let text = spillgate_redis::script_text();
        let script = match connection.command(&["SCRIPT", "LOAD", &text]).unwrap() {
            Reply::Bulk(sha) => String::from_utf8(sha).unwrap(),
            other => panic!("the script does not load: {other:?}"),
        };
        let keys = [format!("lua:{{{id}}}"), format!("lua:{{{id}}}:own")];
        let server = std::marker::PhantomData;
        InLua { connection, script, keys, receipts: Receipts::default(), nonce: 0, server }
    }

    fn call(&mut self, program: &[u64]) -> Vec<i64> {
        // One msgpack array of 64-bit numbers, written by another encoder than ours.
        let packed = script::packed(program);
        let command: [&[u8]; 6] = [
            b"EVALSHA",
            self.script.as_bytes(),
            b"2",
            self.keys[0].as_bytes(),
            self.keys[1].as_bytes(),
            &packed,
        ];
        match self.connection.command(&command).unwrap() {
            Reply::Array(integers) => integers.iter().map(Reply::integer).collect(),
            other => panic!("the script returned {other:?}"),
        }
    }
}

impl Target for InLua<'_> {
    fn name(&self) -> &'static str {
        "lua"
    }

    fn act(&mut self, act: Act, limit: &NamedLimit, now_us: u64) -> Answer {
        self.nonce += 1;
        let RecordName::Position(position) = limit.record() else {
            panic!("tests of the script name limits by position")
        };
        let algorithm = 1 + limit.algorithm() as u64;
        let mut program =
            vec![now_us, scattered(self.nonce), 0, 1, algorithm, u64::from(position), 0];
        params(limit).counting().words(&mut program, now_us);
        // Counted from 1: where the decisions begin.
        program[2] = program.len() as u64 + 1;
        let cost = cost_of(act);
        let own = u64::from(matches!(algorithm, 3 | 5));
        match act {
            Act::Check(_) => program.extend([0, 1, 1, own, 5, cost, 0]),
            Act::Reserve(_) => program.extend([1, 1, 1, own, 5, cost, 0]),
            Act::Peek(_) => program.extend([2, 1, 1, own, 5, cost, 0]),
            Act::Force(_) => program.extend([3, 1, own, 5, cost]),
            Act::Refund { .. } | Act::Lower(_) => match self.receipts.refund(act) {
                Refund::Unused { charge, unused } => {
                    let Charge { incarnation, at_us, amount, mark } = charge;
                    program.extend([4, 1, own, 5, incarnation, at_us, amount, mark, unused]);
                }
                Refund::Amount(amount) => program.extend([5, 1, own, 5, amount]),
            },
        }
        let reply = self.call(&program);
        assert_eq!(reply[0] as u64, now_us);
        let is_refund = matches!(act, Act::Refund { .. } | Act::Lower(_));
        let returned = if is_refund { reply[1] as u64 } else { 0 };
        let counter = &reply[1 + usize::from(is_refund)..];
        let read_cost = if is_refund || matches!(act, Act::Force(_)) { 1 } else { cost.max(1) };
        let mut reading = reading(params(limit), &counter[1..], read_cost);
        let fits = counter[0] == 1;
        if fits && !is_refund && !matches!(act, Act::Force(_)) {
            reading.retry_after_us = Some(0);
        }
        if let Act::Reserve(amount) = act {
            let [.., incarnation, mark] = *counter else { panic!("no receipt in {counter:?}") };
            let (incarnation, mark) = (incarnation as u64, mark as u64);
            let charge = Charge { incarnation, at_us: now_us, amount, mark };
            self.receipts.keep((incarnation != 0).then_some(charge));
        }
        Answer { fits, reading, returned }
    }
}

fn reading(params: &LimitParams, reply: &[i64], cost: u64) -> Reading {
    let counting = params.counting();
    let words = &reply[..counting.reply_width()];
    counting.reading(words, cost, 0).expect("the width is that of the reply")
}

pub fn params(limit: &NamedLimit) -> &LimitParams {
    limit.params().expect("tests use limits that count")
}

pub fn cost_of(act: Act) -> u64 {
    match act {
        Act::Check(cost) | Act::Reserve(cost) | Act::Peek(cost) | Act::Force(cost) => cost,
        Act::Refund { .. } | Act::Lower(_) => 0,
    }
}

/// Spread as an engine's random numbers are: lives with neighbouring names could be confused.
fn scattered(nonce: u64) -> u64 {
    nonce.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16
}

fn intent_of(act: Act, nonce: u64) -> Intent {
    match act {
        Act::Reserve(_) => Intent::Reserve { nonce },
        Act::Peek(_) => Intent::Peek,
        _ => Intent::Charge,
    }
}

/// A separate subject for each test, so that no two share a key.
pub fn subject(id: u128) -> SubjectKey {
    SubjectKey { tag: id, id, rule: 0 }
}
