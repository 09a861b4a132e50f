//! A Redis Cluster: this instance's own map of slots, corrected by the replies of the nodes.
//!
//! The library's Cluster client is not used: it sends a call again after a broken connection, which would
//! charge twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::redis::Value;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::access::Connector;
use super::address::{Address, At, Host, Login};
use super::failure::{Failure, NotHere};
use super::link::Redirect;
use super::server::Server;
use super::shard::{Batches, LATER, Route, Shard, pause};
use super::slot::SLOTS;
use crate::error::{BuildError, Why};
use crate::jitter::{jittered, random};
use crate::store::{ShardStatus, StoreOptions};
use crate::time::Deadline;

/// The nodes of a Cluster, and the owner of each slot.
#[derive(Debug)]
pub struct Cluster {
    /// The nodes of the settings, called when no known primary answers.
    seeds: Vec<Arc<Shard>>,
    nodes: Nodes,
    map: ArcSwap<Map>,
    /// Nodes outside the map to which calls were redirected, the oldest first. A node that gets its
    /// first slot owns none while the keys move.
    importing: Mutex<Vec<(Host, Arc<Shard>)>>,
    /// Why the node that was asked last gave no map.
    trouble: Mutex<Option<Why>>,
    /// Held while the map is changed.
    changing: Mutex<()>,
    /// Whether a task is reading the map, or has just done so.
    refreshing: AtomicBool,
    refreshed: Notify,
}

/// The settings for connections to every node.
struct Nodes {
    login: Login,
    secured: bool,
    tls: Connector,
    connections: usize,
    timeout: Duration,
}

/// The owner of each slot.
#[derive(Clone, Debug)]
struct Map {
    /// For each slot, the owner's index in `shards`.
    owners: Vec<Option<u16>>,
    shards: Vec<(Host, Arc<Shard>)>,
    /// For each index in `shards`, the first slot that it owns.
    first_slots: Vec<Option<u16>>,
}

impl Cluster {
    /// Creates a Cluster from the addresses of some of its nodes.
    pub fn new(
        addresses: Vec<Address>,
        tls: &Connector,
        options: &StoreOptions,
    ) -> Result<Arc<Cluster>, BuildError> {
        let wrong =
            |url: &str, why: &str| BuildError::StoreUrl { url: url.into(), why: why.into() };
        let Some(first) = addresses.first() else {
            return Err(wrong("", "a cluster needs the address of at least one node"));
        };
        let nodes = Nodes {
            login: first.login.clone(),
            secured: matches!(first.at, At::Tls(_)),
            tls: tls.clone(),
            connections: options.connections,
            timeout: options.timeout,
        };
        for address in &addresses {
            let shown = address.at.to_string();
            if address.login.get().db() != 0 {
                return Err(wrong(&shown, "a cluster has database 0 only; leave the number out"));
            }
            if matches!(address.at, At::Unix(_)) {
                return Err(wrong(
                    &shown,
                    "a cluster cannot use Unix sockets; give the host and port of its nodes",
                ));
            }
        }
        Ok(Arc::new(Cluster {
            seeds: addresses.into_iter().map(|address| nodes.shard(address, 1)).collect(),
            nodes,
            map: ArcSwap::from_pointee(Map::empty()),
            importing: Mutex::default(),
            trouble: Mutex::default(),
            changing: Mutex::new(()),
            refreshing: AtomicBool::new(false),
            refreshed: Notify::new(),
        }))
    }

    /// Reads the map and connects to the owners, for a moment at most.
    pub async fn warm_up(&self) {
        // An unreachable Cluster is an outage, which the first decision finds.
        let _ = Deadline::after(ASK).bound(self.refresh_now()).await;
        let shards = self.shards();
        futures_util::future::join_all(shards.iter().map(|(_, s)| s.link.warm_up())).await;
    }

    /// Returns the owner of a slot, as far as it is known.
    pub fn route(self: &Arc<Self>, slot: u16) -> Result<Route, Failure> {
        if let Some(shard) = self.map.load().owner(slot) {
            return Ok(Route { shard, redirect: Redirect::None });
        }
        self.refresh_soon();
        Err(Failure::NotSent(format!("no known node owns slot {slot}").into()))
    }

    /// Returns the route to try after a call that was not executed, or the failure if no other server can help.
    pub async fn next_route(
        self: &Arc<Self>,
        slot: u16,
        tried: &Route,
        failure: Failure,
        deadline: Deadline,
    ) -> Result<Route, Failure> {
        match &failure {
            Failure::NotHere(NotHere::Moved { slot, to }, _) => {
                // The reply corrects one slot at once; the whole map follows in the background.
                self.refresh_soon();
                Ok(Route { shard: self.moved(*slot, to, tried), redirect: Redirect::None })
            }
            Failure::NotHere(NotHere::Ask(to), _) => {
                // The slot still belongs to its old owner, which has the keys that have not moved. So the map stays
                // as it is.
                Ok(Route { shard: self.known(to, tried), redirect: Redirect::Ask })
            }
            Failure::NotHere(NotHere::HalfMoved, _) => {
                // The keys of this call are split between two servers, and neither can run it until the rest has
                // moved.
                pause(deadline).await;
                Ok(tried.clone())
            }
            Failure::NotHere(NotHere::Later | NotHere::ReadOnly, _) => {
                // Registered before the refresh starts, so that its end is not missed.
                let refreshed = self.refreshed.notified();
                self.refresh_soon();
                let soon = async { tokio::time::timeout(jittered(LATER), refreshed).await };
                let _ = deadline.bound(soon).await;
                self.route(slot)
            }
            Failure::Unknown(_) | Failure::Silent(_) | Failure::NotSent(_) | Failure::Hasty(_) => {
                // A replica may have taken over.
                self.refresh_soon();
                Err(failure)
            }
            _ => Err(failure),
        }
    }

    /// Returns every primary that owns slots, with its first slot.
    pub fn shards(&self) -> Vec<(u16, Arc<Shard>)> {
        let map = self.map.load();
        map.in_charge().map(|(first, shard)| (first, Arc::clone(shard))).collect()
    }

    /// Returns the status of every primary. While no node has given the map, the nodes of the settings stand for them.
    pub fn statuses(&self) -> Vec<ShardStatus> {
        let shards = self.shards();
        if !shards.is_empty() {
            return shards.iter().map(|(_, shard)| shard.status()).collect();
        }
        let trouble = self.trouble.lock().clone();
        let without_map = |seed: &Arc<Shard>| {
            let status = seed.status();
            ShardStatus { degraded: true, trouble: trouble.clone().or(status.trouble), ..status }
        };
        self.seeds.iter().map(without_map).collect()
    }

    /// Returns how often a primary lost its data.
    pub fn losses(&self) -> u64 {
        let map = self.map.load();
        map.in_charge().map(|(_, shard)| shard.guard.losses()).sum()
    }

    /// Reads the map in the background, unless a task does so or has just done so.
    pub fn refresh_soon(self: &Arc<Self>) {
        if self.refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        let refreshing = Refreshing(Arc::clone(self));
        tokio::spawn(async move {
            refreshing.0.refresh_now().await;
            // The mark lasts through the rest: a failover redirects very many calls at once, and one reading serves
            // them all.
            tokio::time::sleep(REST + jittered(REST)).await;
        });
    }

    /// Asks one node after another for the map, from a random one on, until one answers.
    async fn refresh_now(&self) {
        let known: Vec<Arc<Shard>> =
            self.map.load().shards.iter().map(|(_, shard)| Arc::clone(shard)).collect();
        // A random start spreads the load of a fleet over all nodes.
        let first = random() as usize;
        let turned = |shards: &[Arc<Shard>], turn: usize| {
            Arc::clone(&shards[first.wrapping_add(turn) % shards.len()])
        };
        let primaries = (0..known.len()).map(|turn| turned(&known, turn));
        let seeds = (0..self.seeds.len()).map(|turn| turned(&self.seeds, turn));
        for shard in primaries.chain(seeds) {
            let mut slots = ::redis::cmd("CLUSTER");
            slots.arg("SLOTS");
            let answer = shard.link.command(&slots, Redirect::None, Deadline::after(ASK)).await;
            let why = match answer.map(|answer| ranges(answer, shard.link.server.host())) {
                Ok(Some(ranges)) => {
                    self.take_over(&ranges);
                    self.refreshed.notify_waiters();
                    return;
                }
                Ok(None) => "its reply lists no owner".into(),
                Err(failure) => failure.why().clone(),
            };
            *self.trouble.lock() =
                Some(why.map(|why| format!("CLUSTER SLOTS at {}: {why}", shard.name)));
        }
    }

    fn take_over(&self, ranges: &[Range]) {
        // Both locks come before the map is read. Otherwise `moved` could put back a copy of the old map with one
        // slot corrected, and a node that `known` adds meanwhile would be connected twice. No other code locks both
        // at once.
        let _changing = self.changing.lock();
        let mut importing = self.importing.lock();
        let old = self.map.load();
        let mut map = Map::empty();
        for range in ranges {
            let owner = map.index_of(&range.owner, || {
                // A known node keeps its connections, its queue and its guard.
                let known = old.known(&range.owner).or_else(|| find(&importing, &range.owner));
                known.unwrap_or_else(|| self.nodes.shard_at(&range.owner))
            });
            let slots = usize::from(range.first)..=usize::from(range.last.min(SLOTS - 1));
            map.owners[slots].fill(Some(owner));
        }
        importing.retain(|(host, _)| map.known(host).is_none());
        self.map.store(Arc::new(map.indexed()));
    }

    /// Records the new owner of one slot, before the whole map is read.
    fn moved(&self, slot: u16, to: &Host, tried: &Route) -> Arc<Shard> {
        let shard = self.known(to, tried);
        let _changing = self.changing.lock();
        // Calls read the map without a lock, so it is replaced as a whole.
        let mut map = Map::clone(&self.map.load());
        let owner = map.index_of(&at(to, tried.shard.link.server.host()), || Arc::clone(&shard));
        if let Some(known) = map.owners.get_mut(usize::from(slot)) {
            *known = Some(owner);
        }
        self.map.store(Arc::new(map.indexed()));
        shard
    }

    /// Returns the node of an address. An empty host means the node that sent the redirect.
    fn known(&self, host: &Host, tried: &Route) -> Arc<Shard> {
        let host = at(host, tried.shard.link.server.host());
        // Locked before the map is read, since `take_over` moves nodes from this list to the map.
        let mut importing = self.importing.lock();
        if let Some(shard) = self.map.load().known(&host).or_else(|| find(&importing, &host)) {
            return shard;
        }
        // Kept, so that the next call to the node uses the same connections.
        let shard = self.nodes.shard_at(&host);
        if importing.len() >= IMPORTING_MAX {
            // Calls on their way to the node keep it until they end. A later redirect connects to it again.
            importing.remove(0);
        }
        importing.push((host, Arc::clone(&shard)));
        shard
    }
}

impl Map {
    /// Creates a map without owners.
    fn empty() -> Map {
        let owners = vec![None; usize::from(SLOTS)];
        Map { owners, shards: Vec::new(), first_slots: Vec::new() }
    }

    /// Computes the first slot of every owner.
    fn indexed(mut self) -> Map {
        self.first_slots = vec![None; self.shards.len()];
        for (slot, owner) in (0..).zip(&self.owners) {
            if let Some(owner) = owner {
                self.first_slots[usize::from(*owner)].get_or_insert(slot);
            }
        }
        self
    }

    /// Returns every owner, with its first slot.
    fn in_charge(&self) -> impl Iterator<Item = (u16, &Arc<Shard>)> {
        let shards = self.shards.iter().zip(&self.first_slots);
        shards.filter_map(|((_, shard), first)| Some(((*first)?, shard)))
    }

    fn owner(&self, slot: u16) -> Option<Arc<Shard>> {
        let owner = (*self.owners.get(usize::from(slot))?)?;
        Some(Arc::clone(&self.shards[usize::from(owner)].1))
    }

    fn known(&self, host: &Host) -> Option<Arc<Shard>> {
        find(&self.shards, host)
    }

    fn index_of(&mut self, host: &Host, shard: impl FnOnce() -> Arc<Shard>) -> u16 {
        let known = self.shards.iter().position(|(known, _)| known == host);
        let index = known.unwrap_or_else(|| {
            self.shards.push((host.clone(), shard()));
            self.shards.len() - 1
        });
        index as u16
    }
}

/// Returns the shard of a host.
fn find(shards: &[(Host, Arc<Shard>)], host: &Host) -> Option<Arc<Shard>> {
    let found = shards.iter().find(|(known, _)| known == host);
    found.map(|(_, shard)| Arc::clone(shard))
}

impl Nodes {
    fn shard_at(&self, host: &Host) -> Arc<Shard> {
        self.shard(Address::of_host(host, self.secured, &self.login), self.connections)
    }

    fn shard(&self, address: Address, connections: usize) -> Arc<Shard> {
        let name = address.at.to_string();
        let server = Server::At { address, tls: self.tls.clone() };
        Arc::new(Shard::new(name, server, connections, self.timeout, Batches::unqueued()))
    }
}

impl std::fmt::Debug for Nodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Nodes(..)")
    }
}

/// Marks that a task is reading the map; its drop ends the mark.
struct Refreshing(Arc<Cluster>);

impl Drop for Refreshing {
    fn drop(&mut self) {
        self.0.refreshing.store(false, Ordering::Release);
    }
}

/// Consecutive slots of one owner.
pub struct Range {
    pub(crate) first: u16,
    pub(crate) last: u16,
    owner: Host,
}

/// Parses the reply to CLUSTER SLOTS; `None` if it lists no owner. `answered` is the node that replied.
pub fn ranges(answer: Value, answered: Option<&Host>) -> Option<Vec<Range>> {
    let Value::Array(rows) = answer else { return None };
    let ranges = rows.into_iter().map(|row| {
        let Value::Array(row) = row else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(node), ..] = &row[..] else {
            return None;
        };
        let [name, Value::Int(port), ..] = &node[..] else { return None };
        let name = match name {
            Value::BulkString(name) => String::from_utf8(name.clone()).ok()?,
            Value::SimpleString(name) => name.clone(),
            _ => String::new(),
        };
        let owner = at(&Host { name, port: u16::try_from(*port).ok()? }, answered);
        let slot = |slot: i64| u16::try_from(slot).ok().filter(|slot| *slot < SLOTS);
        Some(Range { first: slot(*first)?, last: slot(*last)?, owner })
    });
    let ranges: Vec<Range> = ranges.collect::<Option<_>>()?;
    let forward = ranges.iter().all(|range| range.first <= range.last);
    (forward && !ranges.is_empty()).then_some(ranges)
}

/// Fills in the host of a node that does not know its own: it is the host that was asked.
fn at(host: &Host, answered: Option<&Host>) -> Host {
    match (host.name.as_str(), answered) {
        ("" | "?", Some(answered)) => Host { name: answered.name.clone(), port: host.port },
        _ => host.clone(),
    }
}

/// The time limit for a node's reply, before the next node is asked.
const ASK: Duration = Duration::from_millis(500);
/// The pause between two readings of the map. A failover takes longer, and MOVED replies correct the map meanwhile.
const REST: Duration = Duration::from_millis(100);
/// The most nodes without slots whose connections are kept.
const IMPORTING_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connecting::access::Access;
    use crate::store::Store;

    /// Each of these calls made connections of its own. If that took longer than the timeout, no
    /// call was ever decided.
    #[tokio::test]
    async fn calls_that_are_redirected_to_a_node_without_slots_share_its_connections() {
        let store = Store::Cluster(vec!["redis://127.0.0.1:1".into()]);
        let access = Access::from_store(&store, None).unwrap();
        let options = StoreOptions::new(ASK);
        let cluster = Cluster::new(access.addresses, &access.tls, &options).unwrap();
        let tried = Route { shard: Arc::clone(&cluster.seeds[0]), redirect: Redirect::None };
        let node = |port| Host { name: "127.0.0.2".into(), port };
        let ask = async |port| {
            let failure = Failure::NotHere(NotHere::Ask(node(port)), "".into());
            let route = cluster.next_route(0, &tried, failure, Deadline::after(ASK)).await;
            route.unwrap().shard
        };
        let shard = ask(1).await;
        assert!(Arc::ptr_eq(&shard, &ask(1).await));

        // The map takes the node over with its connections.
        cluster.take_over(&[Range { first: 0, last: 0, owner: node(1) }]);
        assert!(Arc::ptr_eq(&shard, &cluster.route(0).unwrap().shard));
        assert!(Arc::ptr_eq(&shard, &ask(1).await));
        assert!(cluster.importing.lock().is_empty());

        for port in 2..40 {
            ask(port).await;
        }
        assert_eq!(cluster.importing.lock().len(), IMPORTING_MAX);
    }
}
