//! Counter state in Redis or Valkey: one script, one round trip for any number of decisions at one location.
//!
//! Applications use the crate `spillgate`, which depends on this one. The API of this crate serves
//! that one and may change with every version.
//!
//! Longer than 450 lines because it is the whole interface of the store: each call finds its shard here.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Value};
use smallvec::SmallVec;
use spillgate_core::{
    algorithm, counter, decision, error, limit, memory, plan, policy, reservation, subject,
};
use tracing::Instrument;

use crate::algorithm::{Charge, Refund};
use crate::counter::{Change, ChargeReply, PlannedCharge};
use crate::error::{BuildError, StoreError};
use crate::limit::NamedLimit;
use crate::meter::ShardMeter;
use crate::plan::{RecordAction, Transaction, TransactionReply};
use crate::store::{OnStateLoss, ShardStatus, Store, StoreOptions};
use crate::subject::SubjectKey;
use crate::time::{Clock, Deadline};

mod access;
pub mod acl;
mod address;
mod breaker;
mod cluster;
pub mod control;
pub mod denial_cache;
mod failure;
pub mod fallback;
mod fingerprint;
mod guard;
mod heartbeat;
pub mod jitter;
mod keys;
pub mod lease;
mod leasing;
mod link;
pub mod meter;
mod nonces;
mod offset;
mod polls;
pub mod probe;
mod probing;
mod program;
mod records;
pub mod redis_store;
pub mod ring;
mod script;
mod sentinel;
mod server;
mod shard;
#[cfg(feature = "simulation")]
pub mod simulation;
mod slot;
pub mod spread;
pub mod store;
pub mod time;
mod tls;
mod topology;
mod traced;
mod wire;

use access::Access;
use failure::{Failure, NotHere};
use fingerprint::Instance;
use link::Redirect;
use nonces::Nonces;
use program::{Call, Header, Reply};
pub use script::text as script_text;
use shard::{Route, together};
use topology::{Location, Topology};

/// The Redis engine. Clones share connections, queues and state.
#[derive(Clone, Debug)]
pub struct Redis {
    topology: Arc<Topology>,
    access: Arc<Access>,
    settings: Arc<CallSettings>,
    timeout: Duration,
    patience: Patience,
    /// Identifies this instance in the fleet: a random number, unique in practice.
    instance_id: u64,
}

/// How long a decision waits for a store that works.
#[derive(Clone, Copy, Debug)]
struct Patience {
    wait: Duration,
    /// How long a leg waits at least after another server was silent.
    of_each_leg: Duration,
    /// Whether the caller's own deadline is shorter than a decision's, so that the local share decides after it.
    admits_itself: bool,
}

/// Settings and state that all calls of this instance share.
#[derive(Debug)]
struct CallSettings {
    /// A clock that a test passes in; scripts read the store's if it is absent.
    given_clock: Option<Clock>,
    nonces: Nonces,
    on_state_loss: OnStateLoss,
    instance: Instance,
}

/// The terms of one call to a shard.
#[derive(Clone, Copy, Debug)]
struct CallTerms<'a> {
    settings: &'a Arc<CallSettings>,
    deadline: Deadline,
    redirect: Redirect,
}

/// A primary, and the hash tag of keys that live on it.
#[derive(Clone, Debug)]
pub struct ShardTag {
    /// The shard's name, as in settings, logs and metrics.
    pub name: String,
    /// The text between the braces of a key.
    pub tag: String,
}

impl Redis {
    /// Creates an engine on the server at `url`.
    ///
    /// An unreachable server is no error: calls fail until it can be reached.
    pub async fn connect(url: &str, timeout: Duration) -> Result<Redis, BuildError> {
        Redis::open(&Store::Url(url.into()), &StoreOptions::new(timeout)).await
    }

    /// Creates an engine on a store, whether the store can be reached or not.
    pub async fn open(store: &Store, options: &StoreOptions) -> Result<Redis, BuildError> {
        let access = Access::from_store(store, options.tls.as_ref())?;
        let topology = Topology::new(store, &access, options)?;
        topology.warm_up().await;
        let settings = CallSettings {
            given_clock: None,
            nonces: Nonces::begin(),
            on_state_loss: options.on_state_loss,
            instance: Instance::new(store, options),
        };
        Ok(Redis {
            topology: Arc::new(topology),
            access: Arc::new(access),
            settings: Arc::new(settings),
            timeout: options.timeout,
            patience: Patience {
                wait: options.patience(),
                of_each_leg: 2 * options.timeout,
                admits_itself: false,
            },
            instance_id: jitter::random(),
        })
    }

    /// Returns this engine with another clock, which decides in place of the store's. For an engine that has no clones
    /// yet: calls that wait together are sent by the clock of the first.
    pub fn with_clock(self, clock: Clock) -> Redis {
        let CallSettings { on_state_loss, instance, .. } = *self.settings;
        let (given_clock, nonces) = (Some(clock), Nonces::begin());
        let settings = CallSettings { given_clock, nonces, on_state_loss, instance };
        Redis { settings: Arc::new(settings), ..self }
    }

    /// Returns this engine for a caller that waits at most `wait`, and admits by itself afterwards.
    ///
    /// If `wait` is less than a decision may wait, the local share decides what the store does not answer in time.
    pub fn within(&self, wait: Duration) -> Redis {
        let is_less = wait < self.patience.wait;
        let admits_itself = is_less || self.patience.admits_itself;
        Redis { patience: Patience { admits_itself, ..self.patience }, ..self.clone() }
            .left_with(wait)
    }

    /// Returns this engine for the rest of a decision that has `left` of its time.
    pub(crate) fn left_with(&self, left: Duration) -> Redis {
        let wait = self.patience.wait.min(left);
        Redis { patience: Patience { wait, ..self.patience }, ..self.clone() }
    }

    /// Reads the counters of a transaction that charges nothing: it peeks, or all its costs are 0.
    pub async fn read(&self, transaction: &Transaction) -> Result<TransactionReply, StoreError> {
        match self.only_location(transaction) {
            Some(location) => self.decide_one_at(location, transaction, self.deadline()).await,
            None => spread::read(self, transaction).await,
        }
    }

    /// Changes one counter without a decision. Returns the whole units refunded, and the counter's state afterwards.
    pub async fn change(
        &self,
        counter: &PlannedCharge,
        change: Change,
    ) -> Result<(u64, ChargeReply), StoreError> {
        let (changes, deadline) = ([(counter, change)], self.deadline());
        let location = self.topology.location(counter.key.tag);
        let changed = self.change_at(location, &changes, deadline).await?;
        changed.first().copied().ok_or_else(|| StoreError::Foreign("no answer".into()))
    }

    /// Deletes all that these limits hold for a subject.
    pub async fn reset(&self, key: SubjectKey, limits: &[NamedLimit]) -> Result<(), StoreError> {
        let mut unlink = ::redis::cmd("UNLINK");
        for key in keys::all_of(key, limits) {
            unlink.arg(key);
        }
        let location = self.topology.location(key.tag);
        self.command_at(location, &unlink, self.deadline()).await.map(drop)
    }

    /// Sends one command to each shard for which `command` returns one. Returns the replies by shard name.
    pub(crate) async fn on_each_shard(
        &self,
        timeout: Duration,
        command: impl Fn(&ShardTag) -> Option<Cmd>,
    ) -> Vec<(String, Result<Value, StoreError>)> {
        let deadline = Deadline::after(timeout);
        let answers = self.topology.shards().into_iter().filter_map(|(tag, shard)| {
            let (command, name) = (command(&tag)?, tag.name);
            Some(async move {
                let answer = shard.link.command(&command, Redirect::None, deadline).await;
                let answer = answer.inspect_err(|failure| self.topology.note_failure(failure));
                (name, answer.map_err(StoreError::from))
            })
        });
        join_all(answers).await
    }

    /// Waits until a caller that polls the shard of a tag may send its next call.
    pub async fn poll_turn(&self, tag: u128) {
        if let Ok(route) = self.topology.route(self.topology.location(tag)) {
            route.shard.polls.turn().await;
        }
    }

    /// Returns the status of every shard, as this instance sees it.
    pub fn shards(&self) -> Vec<ShardStatus> {
        match &*self.topology {
            Topology::Cluster(cluster) => cluster.statuses(),
            topology => topology.shards().iter().map(|(_, shard)| shard.status()).collect(),
        }
    }

    /// Returns whether the shard of a tag is called at all: its circuit breaker is not open.
    pub(crate) fn is_asked(&self, tag: u128) -> bool {
        let route = self.topology.route(self.topology.location(tag));
        route.is_ok_and(|route| !route.shard.link.is_tripped())
    }

    /// Returns how often a shard lost its data.
    pub fn state_losses(&self) -> u64 {
        self.topology.losses()
    }

    /// Returns how often a shard's clock stepped.
    pub fn clock_steps(&self) -> u64 {
        self.topology.shards().iter().map(|(_, shard)| shard.status().clock_steps).sum()
    }

    /// Returns whether one server now holds two locations.
    fn are_on_one_server(&self, one: Location, other: Location) -> bool {
        let shard = |location| self.topology.route(location).map(|route| route.shard);
        match (shard(one), shard(other)) {
            (Ok(one), Ok(other)) => Arc::ptr_eq(&one, &other),
            _ => false,
        }
    }

    /// Returns whether a location's server is known, and no connection to it is open.
    fn is_disconnected(&self, location: Location) -> bool {
        self.topology.route(location).is_ok_and(|route| !route.shard.link.is_connected())
    }

    /// Returns the meters of all shards.
    pub fn meters(&self) -> Vec<Arc<ShardMeter>> {
        self.topology.shards().into_iter().map(|(_, shard)| Arc::clone(&shard.meter)).collect()
    }

    /// Returns the deadline of a decision that begins now.
    fn deadline(&self) -> Deadline {
        match self.patience.admits_itself {
            true => Deadline::of_caller(self.patience.wait),
            false => Deadline::after(self.patience.wait),
        }
    }

    /// Returns the location that holds all counters of a transaction, if there is only one.
    pub(crate) fn only_location(&self, transaction: &Transaction) -> Option<Location> {
        let (first, others) = transaction.charges.split_first()?;
        let location = self.topology.location(first.key.tag);
        let same = |counter: &PlannedCharge| {
            counter.key.tag == first.key.tag || self.topology.location(counter.key.tag) == location
        };
        others.iter().all(same).then_some(location)
    }

    /// Decides transactions at one location, in order, in as many calls as needed.
    ///
    /// Other callers have their turn between two calls. Without a deadline of the caller, each call has a full one from
    /// when it may be sent.
    async fn decide_at(
        &self,
        location: Location,
        transactions: &[Transaction],
        deadline: Option<Deadline>,
    ) -> Replies {
        let mut replies = Replies::with_capacity(transactions.len());
        while replies.len() < transactions.len() {
            let rest = &transactions[replies.len()..];
            let taken = if rest.len() == 1 { 1 } else { together(rest).1.len() };
            let deadline = deadline.unwrap_or_else(|| self.deadline());
            match self.decide_call(location, &rest[..taken], deadline).await {
                Ok(answers) => replies.extend(answers),
                Err(error @ StoreError::Unknown(_))
                    if taken == 1 && may_be_resent(&rest[0], deadline) =>
                {
                    let again = Box::pin(self.decide_again(location, &rest[0], deadline)).await;
                    replies.push(again.unwrap_or(Err(error)));
                }
                Err(error) => replies.extend(std::iter::repeat_n(Err(error), taken)),
            }
        }
        replies
    }

    /// Decides one transaction that needs no other.
    async fn decide_one_at(
        &self,
        location: Location,
        transaction: &Transaction,
        deadline: Deadline,
    ) -> Result<TransactionReply, StoreError> {
        let transactions = std::slice::from_ref(transaction);
        let mut replies = self.decide_at(location, transactions, Some(deadline)).await;
        replies.pop().unwrap_or_else(|| Err(StoreError::Foreign("no answer".into())))
    }

    /// Sends a transaction again whose first call has an unknown result.
    ///
    /// Its record makes it idempotent. Deferred charges are not: the first call may have paid them, and unknown counts
    /// as paid. Returns `None` if this call fails too, so that the result of the first stays unknown.
    async fn decide_again(
        &self,
        location: Location,
        transaction: &Transaction,
        deadline: Deadline,
    ) -> Option<Result<TransactionReply, StoreError>> {
        let mut again = Box::new([transaction.clone()]);
        again[0].charges.iter_mut().for_each(|counter| counter.deferred = 0);
        let replies = self.decide_call(location, &*again, deadline).await.ok()?;
        let reply = replies.into_iter().next()?;
        Some(reply.map(|reply| TransactionReply { is_resent: true, ..reply }))
    }

    /// Decides transactions that fit one call.
    async fn decide_call(
        &self,
        location: Location,
        transactions: &[Transaction],
        deadline: Deadline,
    ) -> Result<Vec<Result<TransactionReply, StoreError>>, StoreError> {
        let run = |route: Route| async move {
            let terms = self.terms(&route, deadline);
            let span = traced::call(&route.shard.name, transactions.len());
            route.shard.submit(transactions, &terms).instrument(span).await
        };
        self.follow(location, deadline, run).await
    }

    /// Refunds charges at one location in full, and returns the counters' state afterwards.
    ///
    /// If the store cannot be reached, the charges stay. That never admits too much.
    async fn refund(
        &self,
        location: Location,
        charges: &[(PlannedCharge, Charge)],
    ) -> Vec<ChargeReply> {
        let changes = charges.iter().map(|(counter, charge)| {
            let all = Refund::Unused { charge: *charge, unused: charge.amount };
            (counter, Change::Refund(all))
        });
        let changes: Vec<_> = changes.collect();
        let changed = self.change_at(location, &changes, self.deadline()).await;
        changed.unwrap_or_default().into_iter().map(|(_, reply)| reply).collect()
    }

    /// Makes changes at one location. Returns for each the whole units refunded, and the counter's state afterwards.
    async fn change_at(
        &self,
        location: Location,
        changes: &[(&PlannedCharge, Change)],
        deadline: Deadline,
    ) -> Result<Vec<(u64, ChargeReply)>, StoreError> {
        let build = |header| {
            let mut call = Call::new(header);
            changes.iter().for_each(|(counter, change)| call.change(counter, *change));
            call
        };
        let run = |route| self.run_on(route, build, deadline);
        self.follow(location, deadline, run).await?.changed(changes.iter().copied())
    }

    /// Calls the server of a location, and follows redirects until a server executes the call or no other is
    /// left to try.
    async fn follow<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        location: Location,
        deadline: Deadline,
        ask: impl Fn(Route) -> F,
    ) -> Result<T, StoreError> {
        self.follow_routes(location, deadline, ask).await.map_err(|failure| self.error(failure))
    }

    /// Follows redirects. Boxes the futures that few calls need, since every waiting call is as large as its future.
    async fn follow_routes<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        location: Location,
        deadline: Deadline,
        ask: impl Fn(Route) -> F,
    ) -> Result<T, Failure> {
        let mut route = self.topology.route(location)?;
        let mut tries = 0;
        loop {
            let failure = match ask(route.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            tries += 1;
            if tries > TRIES_AGAIN {
                return Err(failure);
            }
            if matches!(failure, Failure::NotHere(NotHere::Guarded, _)) {
                Box::pin(self.learn_guard(&route.shard, deadline)).await?;
                continue;
            }
            let next = self.topology.next_route(location, &route, failure, deadline);
            route = Box::pin(next).await?;
        }
    }

    /// Converts a failure for a caller with this engine's patience.
    fn error(&self, failure: Failure) -> StoreError {
        match failure.into() {
            StoreError::Overloaded { sent, why, .. } => {
                StoreError::Overloaded { sent, why, admits_itself: self.patience.admits_itself }
            }
            error => error,
        }
    }

    async fn run_on<'a>(
        &self,
        route: Route,
        build: impl Fn(Header) -> Call<'a>,
        deadline: Deadline,
    ) -> Result<Reply, Failure> {
        route.shard.run(build, &self.terms(&route, deadline), None).await
    }

    fn terms(&self, route: &Route, deadline: Deadline) -> CallTerms<'_> {
        CallTerms { settings: &self.settings, deadline, redirect: route.redirect }
    }
}

/// The replies to transactions, in order.
type Replies = SmallVec<[Result<TransactionReply, StoreError>; 1]>;

/// Returns whether a transaction with an unknown result may be sent again: only its record makes it idempotent.
fn may_be_resent(transaction: &Transaction, deadline: Deadline) -> bool {
    !matches!(transaction.record, RecordAction::None) && !deadline.has_passed()
}

/// Retries after a reply which proves that nothing was executed, such as MOVED. During a move the second
/// owner may redirect as well.
const TRIES_AGAIN: usize = 2;
