//! An engine and its clock, both controlled by the test: the same operations in memory and on a real Redis.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use spillgate::StoreError;
use spillgate::store::Ring;
use spillgate::{Algorithm, Limit};
use spillgate_core::algorithm::{Charge, Intent, Refund};
use spillgate_core::counter::{Change, ChargeReply, PlannedCharge};
use spillgate_core::limit::NamedLimit;
use spillgate_core::memory::Memory;
use spillgate_core::plan::{RecordAction, Transaction, TransactionReply};
use spillgate_core::subject::SubjectKey;
use spillgate_core::time::Clock;
use spillgate_redis::Redis;
use spillgate_redis::store::{Store, StoreOptions};
use spillgate_testkit::{Cluster, RedisServer, Reply};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::given::Given;
use super::{limits, storm};
use crate::support::engine::Engine;

pub(crate) struct World {
    pub(crate) engine: Arc<Engine>,
    /// The single server, if there is one.
    pub(crate) server: Option<RedisServer>,
    name: &'static str,
    /// The servers that share the subjects, kept alive as long as needed.
    _servers: Vec<RedisServer>,
    runtime: Runtime,
    clock: Clock,
    nonce: Cell<u64>,
}

/// Subject, limit, and the cost to charge.
pub(crate) type Costs<'a> = (u128, &'a NamedLimit, u64);

impl World {
    /// One in memory, one on a Redis of its own, and one on a ring of three, or the store that the
    /// environment names. All start at `TODAY_US`.
    pub(crate) fn each() -> Vec<World> {
        match Given::emptied() {
            Some(given) => vec![World::on_given(&given)],
            None => vec![
                World::in_memory(MAX_KEYS),
                World::on_redis(RedisServer::start()),
                World::on_ring(),
            ],
        }
    }

    fn on_given(given: &Given) -> World {
        let (clock, runtime) = (Clock::given(TODAY_US), runtime());
        let redis = runtime.block_on(open(&given.store()));
        let engine = Engine::Redis(redis.with_clock(clock.clone()));
        World::new("on the given store", engine, clock, runtime)
    }

    pub(crate) fn in_memory(max_keys: usize) -> World {
        let clock = Clock::given(TODAY_US);
        let engine = Engine::Memory(Memory::new(max_keys, clock.clone()));
        World::new("in memory", engine, clock, runtime())
    }

    pub(crate) fn on_redis(server: RedisServer) -> World {
        let (clock, runtime) = (Clock::given(TODAY_US), runtime());
        let redis = runtime.block_on(open(&Store::Url(server.url())));
        let engine = Engine::Redis(redis.with_clock(clock.clone()));
        World { server: Some(server), ..World::new("on Redis", engine, clock, runtime) }
    }

    /// On Redis with coalescing: decisions that arrive while others are in flight are sent together, with one
    /// clock.
    pub(crate) fn queue() -> World {
        let (clock, runtime, server) = (Clock::given(TODAY_US), runtime(), RedisServer::start());
        let options = StoreOptions { connections: 1, ..StoreOptions::new(PATIENCE) };
        let redis = runtime.block_on(Redis::open(&Store::Url(server.url()), &options)).unwrap();
        let engine = Engine::Redis(redis.with_clock(clock.clone()));
        World { server: Some(server), ..World::new("coalescing on Redis", engine, clock, runtime) }
    }

    pub(crate) fn on_ring() -> World {
        let (clock, runtime) = (Clock::given(TODAY_US), runtime());
        let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
        let redis = runtime.block_on(open(&Store::Ring(ring_of(&servers))));
        let engine = Engine::Redis(redis.with_clock(clock.clone()));
        World { _servers: servers, ..World::new("on a ring", engine, clock, runtime) }
    }

    pub(crate) fn on_cluster(cluster: &Cluster) -> World {
        let (clock, runtime) = (Clock::given(TODAY_US), storm::threads());
        let redis = runtime.block_on(open(&Store::Cluster(cluster.urls())));
        let engine = Engine::Redis(redis.with_clock(clock.clone()));
        World::new("on a cluster", engine, clock, runtime)
    }

    /// For messages.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(*self.engine, Engine::Memory(_))
    }

    /// Sets the clock.
    pub(crate) fn at(&self, now_us: u64) -> &World {
        self.clock.set(now_us);
        self
    }

    /// Advances the clock.
    pub(crate) fn after(&self, us: u64) -> &World {
        self.at(self.now_us() + us)
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.clock.now_us()
    }

    /// Charges if there is room.
    pub(crate) fn check(&self, id: u128, limit: &NamedLimit, cost: u64) -> ChargeReply {
        self.decide_one(Intent::Charge, &[(id, limit, cost)]).replies[0]
    }

    /// Returns the reply that a check of this cost would get.
    pub(crate) fn peek(&self, id: u128, limit: &NamedLimit, cost: u64) -> ChargeReply {
        self.decide_one(Intent::Peek, &[(id, limit, cost)]).replies[0]
    }

    /// Returns the remaining quota.
    pub(crate) fn remaining(&self, id: u128, limit: &NamedLimit) -> u64 {
        self.peek(id, limit, 1).reading.remaining
    }

    /// Returns a receipt if there was room.
    pub(crate) fn reserve(&self, id: u128, limit: &NamedLimit, cost: u64) -> Option<Charge> {
        self.nonce.set(self.nonce.get() + 1);
        let intent = Intent::Reserve { nonce: self.nonce.get() };
        self.decide_one(intent, &[(id, limit, cost)]).replies[0].charge
    }

    /// Returns how much was refunded.
    pub(crate) fn refund(&self, id: u128, limit: &NamedLimit, charge: Charge, unused: u64) -> u64 {
        let change = Change::Refund(Refund::Unused { charge, unused });
        self.change(id, limit, change).0
    }

    pub(crate) fn lower(&self, id: u128, limit: &NamedLimit, amount: u64) -> u64 {
        self.change(id, limit, Change::Refund(Refund::Amount(amount))).0
    }

    pub(crate) fn force(&self, id: u128, limit: &NamedLimit, cost: u64) -> ChargeReply {
        self.change(id, limit, Change::Force(cost)).1
    }

    /// Charges all or none.
    pub(crate) fn decide(&self, costs: &[Costs<'_>]) -> TransactionReply {
        self.decide_one(Intent::Charge, costs)
    }

    pub(crate) fn decide_one(&self, intent: Intent, costs: &[Costs<'_>]) -> TransactionReply {
        self.runtime.block_on(self.engine.decide_one(&transaction(intent, costs))).unwrap()
    }

    /// Decides in one call of the engine.
    pub(crate) fn decide_all(&self, transactions: &[Transaction]) -> Vec<TransactionReply> {
        let reply = self.runtime.block_on(self.engine.decide(transactions));
        reply.into_iter().collect::<Result<_, _>>().unwrap()
    }

    /// Makes `times` checks of one counter in one call of the engine. Returns how many were allowed.
    pub(crate) fn check_times(&self, times: usize, costs: Costs<'_>) -> usize {
        let transactions = vec![transaction(Intent::Charge, &[costs]); times];
        self.decide_all(&transactions).iter().filter(|reply| reply.allowed).count()
    }

    /// Runs on the single thread of this engine's connections.
    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Runs many callers with one decision each. They arrive in this order before the first reply.
    pub(crate) fn decide_at_once(
        &self,
        transactions: &[Transaction],
    ) -> Vec<Result<TransactionReply, StoreError>> {
        let mut callers = JoinSet::new();
        for (place, transaction) in transactions.iter().cloned().enumerate() {
            let engine = self.engine.clone();
            let decide = async move { (place, engine.decide_one(&transaction).await) };
            callers.spawn_on(decide, self.runtime.handle());
        }
        let mut reply = self.runtime.block_on(callers.join_all());
        reply.sort_unstable_by_key(|(place, _)| *place);
        reply.into_iter().map(|(_, reply)| reply).collect()
    }

    /// Makes one check after another, each at an instant of its own, without waiting for earlier replies.
    /// This is the only fast way to a long history on Redis.
    pub(crate) fn check_at(
        &self,
        limit: &NamedLimit,
        calls: impl IntoIterator<Item = (u64, u128, u64)>,
    ) -> Vec<ChargeReply> {
        let mut reply = Vec::new();
        let mut calls = calls.into_iter().peekable();
        while calls.peek().is_some() {
            let mut under_way = JoinSet::new();
            for (place, (now_us, id, cost)) in calls.by_ref().take(IN_FLIGHT).enumerate() {
                let (engine, clock, limit) =
                    (self.engine.clone(), self.clock.clone(), limit.clone());
                under_way.spawn_on(
                    async move {
                        // One thread runs these in order, and the engine reads its clock before its first
                        // await.
                        clock.set(now_us);
                        let reply = engine
                            .decide_one(&transaction(Intent::Charge, &[(id, &limit, cost)]))
                            .await;
                        (place, reply)
                    },
                    self.runtime.handle(),
                );
            }
            let mut answers = self.runtime.block_on(under_way.join_all());
            answers.sort_unstable_by_key(|(place, _)| *place);
            reply.extend(answers.into_iter().map(|(_, reply)| reply.unwrap().replies[0]));
        }
        reply
    }

    pub(crate) fn reset(&self, id: u128, limits: &[NamedLimit]) {
        self.runtime.block_on(self.engine.reset(subject(id), limits)).unwrap();
    }

    /// Returns how many replies of the store could not be used, as the metrics count them.
    pub(crate) fn unusable_replies(&self) -> u64 {
        let Engine::Redis(redis) = &*self.engine else { return 0 };
        let meters = redis.meters();
        let errors = meters.iter().flat_map(|meter| meter.errors());
        errors.filter(|(class, _)| *class == "bug").map(|(_, count)| count).sum()
    }

    pub(crate) fn try_check(
        &self,
        id: u128,
        limit: &NamedLimit,
        cost: u64,
    ) -> Result<TransactionReply, StoreError> {
        let transaction = transaction(Intent::Charge, &[(id, limit, cost)]);
        self.runtime.block_on(self.engine.decide_one(&transaction))
    }

    /// Returns every key on Redis with the bytes of its value; in memory nothing.
    pub(crate) fn stored(&self) -> Vec<(String, Vec<u8>)> {
        let Some(server) = &self.server else { return Vec::new() };
        let mut connection = server.connect();
        keys(server)
            .into_iter()
            .filter_map(|key| match connection.command(&["DUMP", &key]).unwrap() {
                Reply::Bulk(bytes) => Some((key, bytes)),
                _ => None,
            })
            .collect()
    }

    fn change(&self, id: u128, limit: &NamedLimit, change: Change) -> (u64, ChargeReply) {
        let counter = counter(id, limit, 0);
        self.runtime.block_on(self.engine.change(&counter, change)).unwrap()
    }

    fn new(name: &'static str, engine: Engine, clock: Clock, runtime: Runtime) -> World {
        let (engine, nonce) = (Arc::new(engine), Cell::new(0));
        World { engine, server: None, name, _servers: Vec::new(), runtime, clock, nonce }
    }
}

/// Uses one connection, so that calls are executed in the order of sending. Coalescing is off, so that each
/// call has an instant of its own.
async fn open(store: &Store) -> Redis {
    let options =
        StoreOptions { connections: 1, group_commit: false, ..StoreOptions::new(PATIENCE) };
    Redis::open(store, &options).await.unwrap()
}

/// A ring of nodes named by letters.
pub(crate) fn ring_of(servers: &[RedisServer]) -> Ring {
    let named = servers.iter().zip('a'..);
    named.fold(Ring::new(), |ring, (server, name)| ring.node(name, server.url()))
}

/// Returns all keys of a server in order, except its records of the processes that use it.
pub(crate) fn keys(server: &RedisServer) -> Vec<String> {
    let Reply::Array(keys) = server.command(&["KEYS", "*"]) else { panic!("KEYS returns a list") };
    let mut keys: Vec<String> = keys.iter().map(|key| key.text().to_owned()).collect();
    keys.retain(|key| !key.starts_with("sg1:"));
    keys.sort();
    keys
}

/// In its last millisecond a key has a TTL of 0, and a key that expired meanwhile has ended too.
#[track_caller]
pub(crate) fn assert_every_key_ends(server: &RedisServer) {
    const STAYS: i64 = -1;
    for key in keys(server) {
        let ttl_ms = server.command(&["PTTL", &key]).integer();
        assert_ne!(ttl_ms, STAYS, "{key} has no TTL");
    }
}

/// A single decision with all counters enforced.
pub(crate) fn transaction(intent: Intent, costs: &[Costs<'_>]) -> Transaction {
    let charges = costs.iter().map(|(id, limit, cost)| counter(*id, limit, *cost)).collect();
    Transaction { intent, record: RecordAction::None, charges }
}

fn counter(id: u128, limit: &NamedLimit, cost: u64) -> PlannedCharge {
    PlannedCharge { cost, attributes: 1, ..PlannedCharge::new(subject(id), limit.clone()) }
}

/// A subject by number, spread as a hash would.
pub(crate) fn subject(id: u128) -> SubjectKey {
    let id = (id + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    SubjectKey { tag: id, id, rule: 1 }
}

/// Returns a limit of the same count and period for each algorithm, all under one name. For concurrency
/// limits the period is `max_hold`.
pub(crate) fn each_algorithm(count: u64, period: &str) -> Vec<NamedLimit> {
    Algorithm::ALL.map(|algorithm| limit(algorithm, count, period)).into()
}

pub(crate) fn limit(algorithm: Algorithm, count: u64, period: &str) -> NamedLimit {
    named(limits::spec(algorithm, count, period).build().unwrap())
}

pub(crate) fn named(limit: Limit) -> NamedLimit {
    NamedLimit::new(limit, 0)
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A multiple of 1,000 s, so that windows of `PERIOD` begin with it.
pub(crate) const TODAY_US: u64 = 1_795_000_000_000_000;
/// Long enough that nothing expires in Redis while a test runs, at any setting of the test's own clock.
pub(crate) const PERIOD: &str = "1000s";
pub(crate) const PERIOD_US: u64 = 1_000_000_000;
/// For tests on the store's own clock: nothing refills meanwhile, and no window ends.
pub(crate) const AGES: &str = "366d";
/// The one subject of most tests.
pub(crate) const ME: u128 = 0;
/// Tests of exactness wait on a busy machine rather than fail.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
const MAX_KEYS: usize = 100_000;
const IN_FLIGHT: usize = 500;
