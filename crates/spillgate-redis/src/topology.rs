//! Maps subjects to shards: a single server, a ring, or a Cluster.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::access::Access;
use super::address::Address;
use super::batch::Batches;
use super::cluster::Cluster;
use super::failure::{Failure, NotHere};
use super::jitter::jittered;
use super::link::Redirect;
use super::ring::Points;
use super::sentinel::{self, Sentinels};
use super::server::Server;
use super::shard::Shard;
use super::{ShardTag, slot};
use crate::counter::{LimitHandle, PlannedCharge};
use crate::error::BuildError;
use crate::store::{OnStateLoss, Ring, RingNode, Store, StoreOptions};
use crate::time::Deadline;

/// All shards of the store, and the mapping of subjects to them.
#[derive(Debug)]
pub(super) enum Topology {
    One(Arc<Shard>),
    Ring { points: Points, shards: Vec<Arc<Shard>>, previous: Option<Previous> },
    Cluster(Cluster),
}

/// The ring that the current one replaces.
#[derive(Debug)]
pub(super) struct Previous {
    points: Points,
    /// For each of its nodes, the index of its shard.
    shards: Vec<u16>,
    /// The number of the ring that replaces it.
    next: u32,
}

/// Where a counter is held: a server, or a slot of a Cluster. One call can decide counters of one location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Location(u16);

/// The server for a call, and whether it needs ASKING.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) shard: Arc<Shard>,
    pub(super) redirect: Redirect,
}

impl Location {
    /// The location of every subject on a single server.
    pub(super) const ONLY: Location = Location(0);
}

impl Topology {
    pub(super) fn new(
        store: &Store,
        access: &Access,
        options: &StoreOptions,
    ) -> Result<Topology, BuildError> {
        let (addresses, tls) = (access.addresses.clone(), &access.tls);
        let whole = |name: String, server: Server| {
            let batches = if options.group_commit { Batches::new() } else { Batches::unqueued() };
            let StoreOptions { connections, timeout, .. } = *options;
            Arc::new(Shard::new(name, server, connections, timeout, batches))
        };
        let shard = |name: Option<&str>, address: &Address| {
            let server = Server::At { address: address.clone(), tls: tls.clone() };
            whole(name.map_or_else(|| server.to_string(), str::to_owned), server)
        };
        Ok(match store {
            Store::Url(_) => Topology::One(shard(None, &addresses[0])),
            Store::Ring(ring) => {
                let (nodes, locations) = all_nodes(ring)?;
                let points = Points::of_nodes(ring.nodes());
                let previous = ring.previous().map(|previous| {
                    let points = Points::of_nodes(previous.nodes());
                    Previous { points, shards: locations, next: ring.number() }
                });
                let shards = nodes.iter().zip(&addresses);
                let shards = shards.map(|(node, address)| shard(Some(&node.name), address));
                Topology::Ring { points, shards: shards.collect(), previous }
            }
            Store::Sentinel { master, .. } => {
                let sentinels = Arc::new(Sentinels::new(master, addresses, tls)?);
                let server = Server::WatchedBy(Arc::clone(&sentinels));
                let shard = whole(server.to_string(), server);
                sentinel::watch(&shard, sentinels);
                Topology::One(shard)
            }
            // A node that has just received a slot has no history, so its loss cannot be told from an empty slot.
            Store::Cluster(_) if options.on_state_loss == OnStateLoss::Exhausted => {
                let why = "\"exhausted\" cannot hold on a Cluster, whose nodes hand their subjects on; use \"fresh\", or a ring".into();
                return Err(BuildError::OnStateLoss { why });
            }
            Store::Cluster(_) => Topology::Cluster(Cluster::new(addresses, tls, options)?),
        })
    }

    /// Waits a moment for the first connections, so that the first decisions are made by the store.
    pub(super) async fn warm_up(&self) {
        match self {
            Topology::One(shard) => shard.link().warm_up().await,
            Topology::Ring { shards, .. } => {
                join_all(shards.iter().map(|shard| shard.link().warm_up())).await;
            }
            Topology::Cluster(cluster) => cluster.warm_up().await,
        }
    }

    /// Returns the location of the subjects of a tag.
    pub(super) fn location(&self, tag: u128) -> Location {
        match self {
            Topology::One(_) => Location::ONLY,
            Topology::Ring { points, .. } => Location(points.node_of(tag)),
            Topology::Cluster(_) => Location(slot::of_tag(tag)),
        }
    }

    /// Returns the location of a counter on the previous ring, while its old state still counts.
    ///
    /// It counts until, for as long as a charge lasts, no instance has charged at the old owner only.
    pub(super) fn old_location<L: LimitHandle>(
        &self,
        counter: &PlannedCharge<L>,
    ) -> Option<Location> {
        let Topology::Ring { points, shards, previous: Some(previous) } = self else { return None };
        let old = previous.shards[usize::from(previous.points.node_of(counter.key.tag))];
        // A forced charge can exceed the capacity, and takes up to twice as long to drain.
        let remembered_us = counter.params().longest_wait_us().saturating_mul(2);
        let guard = &shards[usize::from(old)].guard;
        let counts = old != points.node_of(counter.key.tag)
            && !guard.has_served_since(previous.next, remembered_us);
        counts.then_some(Location(old))
    }

    /// Returns the location of a tag's subjects on the previous ring, if it differs.
    pub(super) fn location_before(&self, tag: u128) -> Option<Location> {
        let Topology::Ring { points, previous: Some(previous), .. } = self else { return None };
        let old = previous.shards[usize::from(previous.points.node_of(tag))];
        (old != points.node_of(tag)).then_some(Location(old))
    }

    /// Returns whether every subject has the same location.
    pub(super) fn is_one_location(&self) -> bool {
        matches!(self, Topology::One(_))
    }

    /// Returns whether calls follow a replica that takes over.
    pub(super) fn follows_successors(&self) -> bool {
        match self {
            Topology::One(shard) => matches!(shard.link().server(), Server::WatchedBy(_)),
            Topology::Ring { .. } => false,
            Topology::Cluster(_) => true,
        }
    }

    /// Returns how often a shard lost its data. Every decision calls this.
    pub(super) fn losses(&self) -> u64 {
        match self {
            Topology::One(shard) => shard.guard.losses(),
            Topology::Ring { shards, .. } => shards.iter().map(|shard| shard.guard.losses()).sum(),
            Topology::Cluster(cluster) => cluster.losses(),
        }
    }

    /// Returns the first route to try for a location.
    pub(super) fn route(&self, location: Location) -> Result<Route, Failure> {
        let shard = match self {
            Topology::One(shard) => shard,
            Topology::Ring { shards, .. } => &shards[usize::from(location.0)],
            Topology::Cluster(cluster) => return cluster.route(location.0),
        };
        Ok(Route { shard: Arc::clone(shard), redirect: Redirect::None })
    }

    /// Returns the route to try after a call that was not executed, or the failure if no other server can help.
    pub(super) async fn next_route(
        &self,
        location: Location,
        tried: &Route,
        failure: Failure,
        deadline: Deadline,
    ) -> Result<Route, Failure> {
        if let Topology::Cluster(cluster) = self {
            return cluster.next_route(location.0, tried, failure, deadline).await;
        }
        match &failure {
            // The address, or the sentinels, may lead to another server by now.
            Failure::NotHere(NotHere::ReadOnly, _) => tried.shard.link().renew(),
            Failure::NotHere(NotHere::Later | NotHere::HalfMoved, _) => pause(deadline).await,
            _ => return Err(failure),
        }
        Ok(tried.clone())
    }

    /// Notes the failure of a maintenance command.
    ///
    /// Slots may move that no decision touches; then the shard's own keys move with them.
    pub(super) fn heed(&self, failure: &Failure) {
        if let (Topology::Cluster(cluster), Failure::NotHere(NotHere::Moved { .. }, _)) =
            (self, failure)
        {
            cluster.refresh_soon();
        }
    }

    /// Returns every shard, with the tag for its own keys.
    pub(super) fn shards(&self) -> Vec<(ShardTag, Arc<Shard>)> {
        let tagged = |shard: &Arc<Shard>, tag: String| {
            (ShardTag { name: shard.name().to_owned(), tag }, Arc::clone(shard))
        };
        let any = || ANY_TAG.to_owned();
        match self {
            Topology::One(shard) => vec![tagged(shard, any())],
            Topology::Ring { shards, .. } => {
                shards.iter().map(|shard| tagged(shard, any())).collect()
            }
            Topology::Cluster(cluster) => {
                let shards = cluster.shards().into_iter();
                shards.map(|(slot, shard)| tagged(&shard, slot::tag_in(slot))).collect()
            }
        }
    }
}

/// Returns the nodes of a ring followed by those that only the previous ring has, and the index of each previous node.
pub(super) fn all_nodes(ring: &Ring) -> Result<(Vec<RingNode>, Vec<u16>), BuildError> {
    let mut nodes = ring.checked_nodes()?.to_vec();
    let previous = ring.checked_previous()?.map(Ring::nodes).unwrap_or_default();
    let locations = previous.iter().map(|node| place_among(&mut nodes, node)).collect();
    Ok((nodes, locations))
}

/// Returns the index of a node, found by its name, and appends it if it is missing.
fn place_among(nodes: &mut Vec<RingNode>, node: &RingNode) -> u16 {
    let known = nodes.iter().position(|other| other.name == node.name);
    let location = known.unwrap_or_else(|| {
        nodes.push(node.clone());
        nodes.len() - 1
    });
    u16::try_from(location).expect("two rings of at most 256 nodes")
}

/// Waits a short random time, for a temporary condition of a server to pass.
pub(super) async fn pause(deadline: Deadline) {
    let _ = deadline.bound(tokio::time::sleep(jittered(LATER))).await;
}

/// The tag of keys on a server of its own, where any tag will do.
pub(super) const ANY_TAG: &str = "control";
/// The key of the guard on such a server.
pub(super) const GUARD: &str = "sg1:{control}:epoch";
/// The longest pause before a retry. Two of them, with the calls between, fit a deadline of 25 ms.
pub(super) const LATER: Duration = Duration::from_millis(8);
