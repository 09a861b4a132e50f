//! Maps subjects to shards: a single server, a ring, or a Cluster.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;

use super::access::Access;
use super::address::Address;
use super::cluster::Cluster;
use super::failure::{Failure, NotHere};
use super::link::Redirect;
use super::ring::Points;
use super::sentinel::Sentinels;
use super::server::Server;
use super::shard::{Batches, Route, Shard, pause};
use super::slot;
use crate::calls::keys;
use crate::error::BuildError;
use crate::jitter::jittered;
use crate::store::{OnStateLoss, Store, StoreOptions};
use crate::time::Deadline;

/// All shards of the store, and the mapping of subjects to them.
#[derive(Debug)]
pub enum Topology {
    One(Arc<Shard>),
    Ring { points: Points, shards: Vec<Arc<Shard>> },
    Cluster(Arc<Cluster>),
}

/// Where a counter is held: a server, or a slot of a Cluster. One call can decide counters of one location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Location(u16);

impl Topology {
    pub fn new(
        store: &Store,
        access: &Access,
        options: &StoreOptions,
    ) -> Result<Topology, BuildError> {
        let (addresses, tls) = (access.addresses.clone(), &access.tls);
        let whole = |name: String, server: Server| {
            let batches = if options.group_commit { Batches::new() } else { Batches::unqueued() };
            Arc::new(Shard::new(name, server, options.connections, options.timeout, batches))
        };
        let shard = |name: Option<&str>, address: &Address| {
            let server = Server::At { address: address.clone(), tls: tls.clone() };
            whole(name.map_or_else(|| server.to_string(), str::to_owned), server)
        };
        Ok(match store {
            Store::Url(_) => Topology::One(shard(None, &addresses[0])),
            Store::Ring(ring) => {
                let nodes = ring.checked_nodes()?;
                let points = Points::new(nodes.iter().map(|node| (&node.name[..], node.weight)));
                let shards = nodes.iter().zip(&addresses);
                let shards = shards.map(|(node, address)| shard(Some(&node.name), address));
                Topology::Ring { points, shards: shards.collect() }
            }
            Store::Sentinel { master, .. } => {
                let sentinels = Arc::new(Sentinels::new(master, &addresses, tls)?);
                let server = Server::WatchedBy(Arc::clone(&sentinels));
                let shard = whole(server.to_string(), server);
                watch(&shard, sentinels);
                Topology::One(shard)
            }
            // A node that has just received a slot has no history, so its loss looks like an empty slot.
            Store::Cluster(_) if options.on_state_loss == OnStateLoss::Exhausted => {
                let why = "\"exhausted\" cannot hold on a Cluster, whose nodes hand their subjects on; use \"fresh\", or a ring".into();
                return Err(BuildError::OnStateLoss { why });
            }
            Store::Cluster(_) => Topology::Cluster(Cluster::new(addresses, tls, options)?),
        })
    }

    /// Waits a moment for the first connections, so that the first decisions are made by the store.
    pub async fn warm_up(&self) {
        match self {
            Topology::One(shard) => shard.link.warm_up().await,
            Topology::Ring { shards, .. } => {
                join_all(shards.iter().map(|shard| shard.link.warm_up())).await;
            }
            Topology::Cluster(cluster) => cluster.warm_up().await,
        }
    }

    /// Returns the location of the subjects of a tag.
    pub fn location(&self, tag: u128) -> Location {
        match self {
            Topology::One(_) => Location(0),
            Topology::Ring { points, .. } => Location(points.node_of(tag)),
            Topology::Cluster(_) => Location(slot::of_tag(tag)),
        }
    }

    /// Returns the location of the fleet's record, which has this tag: on a ring the node whose name is first.
    pub fn location_of_record(&self, tag: &str) -> Location {
        match self {
            Topology::One(_) => Location(0),
            Topology::Ring { shards, .. } => {
                let first = (0_u16..).zip(shards).min_by_key(|(_, shard)| &shard.name);
                Location(first.map_or(0, |(place, _)| place))
            }
            Topology::Cluster(_) => Location(slot::slot_of(tag.as_bytes())),
        }
    }

    /// Returns the other nodes of a ring, one of which has the record while another name is the first.
    pub fn locations_beside_record(&self, tag: &str) -> Vec<Location> {
        let Topology::Ring { shards, .. } = self else { return Vec::new() };
        let record = self.location_of_record(tag);
        let all = (0_u16..).zip(shards).map(|(place, _)| Location(place));
        all.filter(|location| *location != record).collect()
    }

    pub fn is_cluster(&self) -> bool {
        matches!(self, Topology::Cluster(_))
    }

    /// Returns the name of the server that has the fleet's record.
    pub fn place_of_record(&self) -> &str {
        match self {
            Topology::One(shard) => &shard.name,
            Topology::Ring { shards, .. } => {
                shards.iter().map(|shard| &shard.name[..]).min().unwrap_or_default()
            }
            Topology::Cluster(_) => "cluster",
        }
    }

    /// Returns how often a shard lost its data. Every decision calls this.
    pub fn losses(&self) -> u64 {
        match self {
            Topology::One(shard) => shard.guard.losses(),
            Topology::Ring { shards, .. } => shards.iter().map(|shard| shard.guard.losses()).sum(),
            Topology::Cluster(cluster) => cluster.losses(),
        }
    }

    /// Returns the first route to try for a location.
    pub fn route(&self, location: Location) -> Result<Route, Failure> {
        let shard = match self {
            Topology::One(shard) => shard,
            Topology::Ring { shards, .. } => &shards[usize::from(location.0)],
            Topology::Cluster(cluster) => return cluster.route(location.0),
        };
        Ok(Route { shard: Arc::clone(shard), redirect: Redirect::None })
    }

    /// Returns the route to try after a call that was not executed, or the failure if no other server can help.
    pub async fn next_route(
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
            Failure::NotHere(NotHere::ReadOnly, _) => tried.shard.link.renew(),
            Failure::NotHere(NotHere::Later | NotHere::HalfMoved, _) => pause(deadline).await,
            _ => return Err(failure),
        }
        Ok(tried.clone())
    }

    /// Notes the failure of a maintenance command.
    ///
    /// Slots that no decision touches may move too, and the shard's own keys with them.
    pub fn note_failure(&self, failure: &Failure) {
        if let (Topology::Cluster(cluster), Failure::NotHere(NotHere::Moved { .. }, _)) =
            (self, failure)
        {
            cluster.refresh_soon();
        }
    }

    /// Returns every shard, with the text between the braces of its own keys.
    pub fn shards(&self) -> Vec<(String, Arc<Shard>)> {
        let any = |shard: &Arc<Shard>| (keys::ANY_TAG.to_owned(), Arc::clone(shard));
        match self {
            Topology::One(shard) => vec![any(shard)],
            Topology::Ring { shards, .. } => shards.iter().map(any).collect(),
            Topology::Cluster(cluster) => {
                let shards = cluster.shards().into_iter();
                shards.map(|(slot, shard)| (slot::tag_in(slot), shard)).collect()
            }
        }
    }
}

/// Makes a shard follow a new primary, even if the old one still answers. Ends when the shard is dropped.
fn watch(shard: &Arc<Shard>, sentinels: Arc<Sentinels>) {
    let shard: Weak<Shard> = Arc::downgrade(shard);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(LOOK_EVERY + jittered(LOOK_EVERY)).await;
            if shard.strong_count() == 0 {
                return;
            }
            if sentinels.primary_has_moved().await
                && let Some(shard) = shard.upgrade()
            {
                shard.link.renew();
            }
        }
    });
}

/// The pause between two questions to the sentinels. Sentinels take seconds to agree on a failover.
const LOOK_EVERY: Duration = Duration::from_millis(500);
