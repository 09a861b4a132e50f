//! Starts a real Redis Cluster with primaries and replicas; tests kill its nodes and move its slots.

use std::path::Path;

use crate::poll::{AGREEMENT_BOUND, COMPLETE_BOUND, FAILOVER_BOUND, poll};
use crate::redis_server::{RedisServer, redis_on_path};
use crate::resp::Reply;

/// A cluster on this machine: the primaries come first among its nodes, then the replicas.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<RedisServer>,
    ids: Vec<String>,
    primaries: usize,
}

/// A node by its place among [`Cluster::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node(pub usize);

impl Cluster {
    /// Starts this many primaries, each with this many replicas, of the `redis-server` on PATH.
    ///
    /// # Panics
    /// When it is not complete within a minute.
    #[track_caller]
    #[must_use]
    pub fn start(primaries: usize, replicas_of_each: usize) -> Self {
        Self::start_with(&redis_on_path(), primaries, replicas_of_each, &[])
    }

    /// Starts a cluster of another `binary`, with more `arguments` for every node.
    ///
    /// # Panics
    /// When it is not complete within a minute.
    #[track_caller]
    #[must_use]
    pub fn start_with(
        binary: &Path,
        primaries: usize,
        replicas_of_each: usize,
        arguments: &[&str],
    ) -> Self {
        let arguments = [&NODE_SETTINGS, arguments].concat();
        let nodes: Vec<RedisServer> = (0..primaries * (1 + replicas_of_each))
            .map(|_| RedisServer::start_with(binary, &arguments))
            .collect();
        let id = |node: &RedisServer| node.command(&["CLUSTER", "MYID"]).text().to_owned();
        let ids = nodes.iter().map(id).collect();
        let cluster = Self { nodes, ids, primaries };
        cluster.share_out_slots();
        cluster.introduce();
        cluster.assign_replicas();
        cluster.wait_until_complete();
        cluster
    }

    /// Returns all of its servers, also those that were killed.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Returns one of its servers.
    #[must_use]
    pub fn node(&self, node: Node) -> &RedisServer {
        &self.nodes[node.0]
    }

    /// Returns one of its servers, to kill or restart.
    pub fn node_mut(&mut self, node: Node) -> &mut RedisServer {
        &mut self.nodes[node.0]
    }

    /// Returns the address of every node; a client may begin at any of them.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// Returns the slot of a key, as the cluster computes it.
    ///
    /// # Panics
    /// When no node answers.
    #[track_caller]
    #[must_use]
    pub fn slot_of(&self, key: &str) -> u16 {
        let reply = self.nodes.iter().find_map(|node| node.ask(&["CLUSTER", "KEYSLOT", key]));
        reply.expect("a node answers").integer() as u16
    }

    /// Returns the owner of a slot, once all nodes that answer agree on one that answers too. After a kill this waits
    /// for the failover.
    ///
    /// # Panics
    /// When they do not agree within half a minute.
    #[track_caller]
    #[must_use]
    pub fn owner_of(&self, slot: u16) -> Node {
        let agreed = poll(AGREEMENT_BOUND, || self.owner_known(slot));
        agreed.unwrap_or_else(|| panic!("the nodes do not agree on an owner of slot {slot}"))
    }

    /// Returns the owner of a slot, if all nodes that answer agree on one that answers too.
    fn owner_known(&self, slot: u16) -> Option<Node> {
        let view = |(place, node): (usize, &RedisServer)| {
            let view = node.ask(&["CLUSTER", "SLOTS"])?;
            Some((place, self.owner_in(&view, slot)))
        };
        let views: Vec<(usize, Option<usize>)> =
            self.nodes.iter().enumerate().filter_map(view).collect();
        let owner = views.first()?.1?;
        let all = views.iter().all(|(_, seen)| *seen == Some(owner));
        (all && views.iter().any(|(node, _)| *node == owner)).then_some(Node(owner))
    }

    /// Returns a replica of a primary; the replica answers.
    #[track_caller]
    fn replica_of(&self, primary: Node) -> Node {
        let port = i64::from(self.nodes[primary.0].port());
        let follows = |node: &RedisServer| match node.ask(&["ROLE"]) {
            Some(Reply::Array(role)) => role.len() == 5 && role[2].integer() == port,
            _ => false,
        };
        let found = self.nodes.iter().position(follows).map(Node);
        found.unwrap_or_else(|| panic!("no replica of {primary:?} answers"))
    }

    /// Hands a primary's part over to its replica, as an operator does before maintenance, and returns the new
    /// primary.
    ///
    /// # Panics
    /// When the replica has not taken over within half a minute.
    #[track_caller]
    pub fn fail_over(&self, primary: Node) -> Node {
        let replica = self.replica_of(primary);
        let taken = poll(AGREEMENT_BOUND, || {
            self.node(replica).command(&["CLUSTER", "FAILOVER"]);
            poll(FAILOVER_BOUND, || (self.node(replica).role()? == "master").then_some(()))
        });
        assert!(taken.is_some(), "{replica:?} has not taken over from {primary:?}");
        replica
    }

    /// Opens a slot for moving: from now on its owner answers ASK for keys that it does not have.
    ///
    /// # Panics
    /// When a node refuses. The functions below panic likewise.
    #[track_caller]
    pub fn begin_migration(&self, slot: u16, to: Node) {
        let from = self.owner_of(slot);
        let slot = slot.to_string();
        self.ok(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.ids[from.0]]);
        self.ok(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.ids[to.0]]);
    }

    /// Moves at most `at_most` keys of a slot that is open for moving, and returns how many.
    #[track_caller]
    pub fn migrate_keys(&self, slot: u16, from: Node, to: Node, at_most: usize) -> usize {
        let (slot, most) = (slot.to_string(), at_most.to_string());
        let keys = self.node(from).command(&["CLUSTER", "GETKEYSINSLOT", &slot, &most]);
        let Reply::Array(keys) = keys else { panic!("keys of slot {slot}: {keys:?}") };
        let port = self.node(to).port().to_string();
        for key in &keys {
            let words = ["MIGRATE", "127.0.0.1", &port, key.text(), "0", "5000"];
            let reply = self.node(from).command(&words);
            // A key that has expired since then need not be moved.
            let moved = ["OK", "NOKEY"].iter().any(|word| reply == Reply::Status((*word).into()));
            assert!(moved, "{words:?} on {from:?}: {reply:?}");
        }
        keys.len()
    }

    /// Closes a slot that was open for moving; from now on `to` owns it.
    #[track_caller]
    pub fn end_migration(&self, slot: u16, from: Node, to: Node) {
        let slot = slot.to_string();
        for node in [to, from] {
            self.ok(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &self.ids[to.0]]);
        }
    }

    /// Moves a slot with all of its keys, and waits until every node knows the new owner.
    #[track_caller]
    pub fn migrate(&self, slot: u16, to: Node) {
        let from = self.owner_of(slot);
        self.begin_migration(slot, to);
        while self.migrate_keys(slot, from, to, KEYS_AT_ONCE) > 0 {}
        self.end_migration(slot, from, to);
        self.spread(slot, to);
    }

    /// Waits until every node knows that `to` owns a slot. If slots move in quick succession, an older message of the
    /// previous owner may take the slot back, even at `to` itself, so that no node owns it; `to` then claims it again
    /// in a later epoch.
    #[track_caller]
    fn spread(&self, slot: u16, to: Node) {
        let known = poll(AGREEMENT_BOUND, || {
            if self.owner_known(slot) == Some(to) {
                return Some(());
            }
            self.ok(to, &["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &self.ids[to.0]]);
            self.node(to).command(&["CLUSTER", "BUMPEPOCH"]);
            None
        });
        assert!(known.is_some(), "not every node knows that {to:?} owns slot {slot}");
    }

    #[track_caller]
    fn share_out_slots(&self) {
        for (node, server) in self.nodes[..self.primaries].iter().enumerate() {
            let border = |node: usize| node * SLOTS / self.primaries;
            let slots = (border(node)..border(node + 1)).map(|slot| slot.to_string());
            let words: Vec<String> =
                ["CLUSTER", "ADDSLOTS"].map(str::to_owned).into_iter().chain(slots).collect();
            assert_eq!(server.command(&words), Reply::Status("OK".into()));
        }
        for (node, epoch) in (0..self.nodes.len()).zip(1..) {
            self.ok(Node(node), &["CLUSTER", "SET-CONFIG-EPOCH", &format!("{epoch}")]);
        }
    }

    #[track_caller]
    fn introduce(&self) {
        for node in 1..self.nodes.len() {
            let port = self.nodes[0].port().to_string();
            self.ok(Node(node), &["CLUSTER", "MEET", "127.0.0.1", &port]);
        }
        let all = self.nodes.len().to_string();
        let met = poll(COMPLETE_BOUND, || {
            self.nodes
                .iter()
                .all(|node| cluster_info(node, "cluster_known_nodes") == all)
                .then_some(())
        });
        assert!(met.is_some(), "the nodes have not met");
    }

    #[track_caller]
    fn assign_replicas(&self) {
        for replica in self.primaries..self.nodes.len() {
            let primary = &self.ids[replica % self.primaries];
            // A node knows the primary's name a moment before it can follow it.
            let done = poll(COMPLETE_BOUND, || {
                let reply = self.nodes[replica].command(&["CLUSTER", "REPLICATE", primary]);
                (reply == Reply::Status("OK".into())).then_some(())
            });
            assert!(done.is_some(), "node {replica} cannot follow {primary}");
        }
    }

    #[track_caller]
    fn wait_until_complete(&self) {
        let complete = poll(COMPLETE_BOUND, || {
            let well = self.nodes.iter().all(|node| cluster_info(node, "cluster_state") == "ok");
            let followed = self.nodes[self.primaries..].iter().all(|replica| {
                replica.info_if_any("replication", "master_link_status").as_deref() == Some("up")
            });
            let known =
                (0..SLOTS).step_by(SLOTS / self.primaries).all(|slot| self.all_know_replicas(slot));
            (well && followed && known).then_some(())
        });
        assert!(complete.is_some(), "the cluster is not complete after {COMPLETE_BOUND:?}");
    }

    /// Returns whether every node lists the owner of a slot with all of its replicas.
    fn all_know_replicas(&self, slot: usize) -> bool {
        let each = self.nodes.len() / self.primaries;
        self.nodes.iter().all(|node| {
            let view = node.command(&["CLUSTER", "SLOTS"]);
            range_of(&view, slot as i64).is_some_and(|range| range.len() == 2 + each)
        })
    }

    fn owner_in(&self, view: &Reply, slot: u16) -> Option<usize> {
        let Reply::Array(primary) = &range_of(view, i64::from(slot))?[2] else { return None };
        let port = primary[1].integer();
        self.nodes.iter().position(|node| i64::from(node.port()) == port)
    }

    #[track_caller]
    fn ok(&self, node: Node, words: &[&str]) {
        let reply = self.node(node).command(words);
        assert_eq!(reply, Reply::Status("OK".into()), "{words:?} on {node:?}");
    }
}

/// Returns the range of `CLUSTER SLOTS` that contains a slot: first, last, primary, replicas.
fn range_of(view: &Reply, slot: i64) -> Option<&[Reply]> {
    let Reply::Array(ranges) = view else { return None };
    ranges.iter().find_map(|range| match range {
        Reply::Array(range) if (range[0].integer()..=range[1].integer()).contains(&slot) => {
            Some(&range[..])
        }
        _ => None,
    })
}

fn cluster_info(node: &RedisServer, field: &str) -> String {
    let info = node.command(&["CLUSTER", "INFO"]);
    let value = info.text().lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.unwrap_or_default().to_owned()
}

/// A node counts as failed after a second and a half, and a replica's first copy begins at once.
const NODE_SETTINGS: [&str; 6] = [
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "1500",
    "--repl-diskless-sync-delay",
    "0",
];

const SLOTS: usize = 16_384;
const KEYS_AT_ONCE: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn get(node: &RedisServer, key: &str) -> Reply {
        node.command(&["GET", key])
    }

    #[test]
    fn a_slot_moves_with_its_keys_and_answers_ask_meanwhile() {
        let cluster = Cluster::start(3, 0);
        let slot = cluster.slot_of("{tag}1");
        let from = cluster.owner_of(slot);
        let to = Node((from.0 + 1) % 3);
        for key in ["{tag}1", "{tag}2"] {
            assert_eq!(cluster.node(from).command(&["SET", key, "value"]).text(), "OK");
        }
        assert!(
            matches!(get(cluster.node(to), "{tag}1"), Reply::Error(e) if e.starts_with("MOVED"))
        );

        cluster.begin_migration(slot, to);
        assert_eq!(cluster.migrate_keys(slot, from, to, 1), 1);
        let redirect = get(cluster.node(from), "{tag}3");
        assert!(matches!(&redirect, Reply::Error(e) if e.starts_with("ASK")), "{redirect:?}");
        let both = cluster.node(from).command(&["MGET", "{tag}1", "{tag}2"]);
        assert!(matches!(&both, Reply::Error(e) if e.starts_with("TRYAGAIN")), "{both:?}");
        assert_eq!(cluster.migrate_keys(slot, from, to, 10), 1);
        cluster.end_migration(slot, from, to);

        assert_eq!(cluster.owner_of(slot), to);
        assert_eq!(get(cluster.node(to), "{tag}2").text(), "value");
        cluster.migrate(slot, from);
        assert_eq!(get(cluster.node(from), "{tag}2").text(), "value");
    }

    #[test]
    fn every_node_learns_of_slots_that_move_back_and_forth() {
        let cluster = Cluster::start(3, 1);
        for slot in (0..16_384).step_by(1_000) {
            let home = cluster.owner_of(slot);
            for to in [Node((home.0 + 1) % 3), home] {
                cluster.migrate(slot, to);
                assert_eq!(cluster.owner_known(slot), Some(to));
            }
        }
    }

    #[test]
    fn a_replica_takes_over_on_request_and_when_its_primary_dies() {
        let mut cluster = Cluster::start(3, 1);
        let slot = cluster.slot_of("key");
        let first = cluster.owner_of(slot);
        assert_eq!(cluster.node(first).command(&["SET", "key", "value"]).text(), "OK");
        let second = cluster.fail_over(first);
        assert_eq!(cluster.owner_of(slot), second);
        assert_eq!(cluster.replica_of(second), first);
        // Wait until the replica has copied everything.
        poll(AGREEMENT_BOUND, || {
            let status = cluster.node(first).info("replication", "master_link_status");
            (status == "up").then_some(())
        });
        cluster.node_mut(second).kill();
        assert_eq!(cluster.owner_of(slot), first);
        assert_eq!(get(cluster.node(first), "key").text(), "value");
    }
}
