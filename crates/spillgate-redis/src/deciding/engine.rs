//! The Redis engine: finds the shard of each call, and follows redirects until a server executes it.
//!
//! Longer than 450 lines because it is the whole interface of the store: each call finds its shard here.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;
use tracing::Instrument;

use crate::algorithm::{Charge, Refund};
use crate::calls::keys;
use crate::calls::nonces::Nonces;
use crate::calls::program::{Call, Header, Reply};
use crate::connecting::access::{self, Access};
use crate::connecting::failure::{Failure, NotHere};
use crate::connecting::fingerprint::Instance;
use crate::connecting::shard::{Route, together};
use crate::connecting::terms::{CallSettings, CallTerms};
use crate::connecting::topology::{Location, Topology};
use crate::connecting::traced;
use crate::counter::{Change, ChargeReply, PlannedCharge};
use crate::error::{BuildError, StoreError};
use crate::fleet::guards::Member;
use crate::fleet::tag_of_record;
use crate::jitter;
use crate::limit::NamedLimit;
use crate::meter::ShardMeter;
use crate::plan::{RecordAction, Transaction, TransactionReply};
use crate::store::{ShardStatus, Store, StoreOptions, Tls};
use crate::subject::SubjectKey;
use crate::time::{Clock, Deadline};

/// The Redis engine. Clones share connections, queues and state.
#[derive(Clone, Debug)]
pub struct Redis {
    pub(crate) topology: Arc<Topology>,
    access: Arc<Access>,
    pub(crate) settings: Arc<CallSettings>,
    timeout: Duration,
    pub(crate) patience: Patience,
    /// Identifies this instance in the fleet: a random number, unique in practice.
    pub(crate) instance_id: u64,
    /// The tag of the fleet's record.
    pub(crate) record: Arc<str>,
}

/// How long a decision waits for a store that works.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    wait: Duration,
    /// How long a leg waits at least after another server was silent.
    pub(crate) of_each_leg: Duration,
    /// Whether the caller's own deadline is shorter than a decision's, so that the local share decides after it.
    pub(crate) admits_itself: bool,
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
            record: tag_of_record(&options.namespace).into(),
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

    /// Returns this instance as a member of its fleet, for guards and probes.
    pub fn member(&self) -> Member<'_> {
        Member {
            topology: &self.topology,
            instance: &self.settings.instance,
            record: &self.record,
            timeout: self.timeout,
        }
    }

    /// Replaces logins and certificates, from the next connection on.
    ///
    /// # Errors
    ///
    /// Returns [`BuildError::OtherStore`] if `store` names other servers or databases.
    pub fn set_access(&self, store: &Store, tls: Option<&Tls>) -> Result<(), BuildError> {
        self.access.take_over(&Access::from_store(store, tls)?)
    }

    /// Checks the addresses of a store, and the nodes of a ring. Nothing is connected.
    ///
    /// # Errors
    ///
    /// As [`Redis::open`], except for certificates.
    pub fn check_addresses(store: &Store) -> Result<(), BuildError> {
        access::addresses_of(store).map(drop)
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
    pub(crate) fn are_on_one_server(&self, one: Location, other: Location) -> bool {
        let shard = |location| self.topology.route(location).map(|route| route.shard);
        match (shard(one), shard(other)) {
            (Ok(one), Ok(other)) => Arc::ptr_eq(&one, &other),
            _ => false,
        }
    }

    /// Returns whether a location's server is known, and no connection to it is open.
    pub(crate) fn is_disconnected(&self, location: Location) -> bool {
        self.topology.route(location).is_ok_and(|route| !route.shard.link.is_connected())
    }

    /// Returns the meters of all shards.
    pub fn meters(&self) -> Vec<Arc<ShardMeter>> {
        self.topology.shards().into_iter().map(|(_, shard)| Arc::clone(&shard.meter)).collect()
    }

    /// Returns the deadline of a decision that begins now.
    pub(crate) fn deadline(&self) -> Deadline {
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
    pub(crate) async fn decide_at(
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
            if taken == 1 {
                replies.push(self.decide_one_at(location, &rest[0], deadline).await);
                continue;
            }
            match self.decide_call(location, &rest[..taken], deadline).await {
                Ok(answers) => replies.extend(answers),
                Err(error) => replies.extend(std::iter::repeat_n(Err(error), taken)),
            }
        }
        replies
    }

    /// Decides one transaction that needs no other.
    pub(crate) async fn decide_one_at(
        &self,
        location: Location,
        transaction: &Transaction,
        deadline: Deadline,
    ) -> Result<TransactionReply, StoreError> {
        let no_answer = || Err(StoreError::Foreign("no answer".into()));
        match self.decide_call(location, std::slice::from_ref(transaction), deadline).await {
            Ok(mut answers) => answers.pop().unwrap_or_else(no_answer),
            Err(error @ StoreError::Unknown(_)) if may_be_resent(transaction, deadline) => {
                let again = self.decide_again(location, transaction, deadline);
                Box::pin(again).await.unwrap_or(Err(error))
            }
            Err(error) => Err(error),
        }
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
    pub(crate) async fn refund(
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
    pub(crate) async fn follow<T, F: Future<Output = Result<T, Failure>>>(
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
                Box::pin(self.member().learn_guard(&route.shard, deadline)).await?;
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

    pub(crate) async fn run_on<'a>(
        &self,
        route: Route,
        build: impl Fn(Header) -> Call<'a>,
        deadline: Deadline,
    ) -> Result<Reply, Failure> {
        route.shard.run(build, &self.terms(&route, deadline), None).await
    }

    /// Sends one command that is not the script.
    pub(crate) async fn command_at(
        &self,
        location: Location,
        command: &::redis::Cmd,
        deadline: Deadline,
    ) -> Result<Value, StoreError> {
        let run = |route: Route| async move {
            route.shard.link.command(command, route.redirect, deadline).await
        };
        self.follow(location, deadline, run).await
    }

    pub(crate) fn terms(&self, route: &Route, deadline: Deadline) -> CallTerms<'_> {
        CallTerms { settings: &self.settings, deadline, redirect: route.redirect }
    }
}

/// The replies to transactions, in order.
pub(crate) type Replies = SmallVec<[Result<TransactionReply, StoreError>; 1]>;

/// Returns whether a transaction with an unknown result may be sent again: only its record makes it idempotent.
fn may_be_resent(transaction: &Transaction, deadline: Deadline) -> bool {
    !matches!(transaction.record, RecordAction::None) && !deadline.has_passed()
}

/// Retries after a reply which proves that nothing was executed, such as MOVED. During a move the second
/// owner may redirect as well.
const TRIES_AGAIN: usize = 2;
