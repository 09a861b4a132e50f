//! The settings of a store: addresses, a ring, certificates. Invalid settings are reported before
//! the first decision.

use std::fmt;
use std::time::Duration;

use crate::error::{BuildError, Why};
use crate::subject::{DEFAULT_NAMESPACE, SHARED_SECRET, Secret};

/// The store that the instances of a fleet share.
#[derive(Clone, Debug)]
pub enum Store {
    /// One server.
    Url(String),
    /// The primary of a master name that Sentinels watch.
    Sentinel {
        /// The master name.
        master: String,
        /// The URLs of the Sentinels.
        urls: Vec<String>,
        /// The password of the Sentinels, if it is not that of the URLs, which is the primary's.
        password: Option<String>,
    },
    /// A Redis Cluster, found through some of its nodes.
    Cluster(Vec<String>),
    /// Independent servers, over which subjects are spread.
    Ring(Ring),
}

impl Store {
    /// Returns whether any of its addresses uses TLS.
    pub(crate) fn is_secured(&self) -> bool {
        let is_secured = |url: &String| url.starts_with("rediss://");
        match self {
            Store::Url(url) => is_secured(url),
            Store::Sentinel { urls, .. } | Store::Cluster(urls) => urls.iter().any(is_secured),
            Store::Ring(ring) => ring.nodes.iter().map(|node| &node.url).any(is_secured),
        }
    }
}

/// The settings of a store, whatever its topology.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The longest silence of a server while a reply is due, or time without a connection. After it
    /// the server is out of reach.
    pub timeout: Duration,
    /// The longest time that a decision waits for a server that works; at least twice `timeout`.
    pub overload_wait: Duration,
    /// The number of connections to each server.
    pub connections: usize,
    /// The certificates for addresses that use TLS.
    pub tls: Option<Tls>,
    /// Whether decisions that arrive while others are under way are sent together.
    pub group_commit: bool,
    /// The usage to assume on a server that lost its data.
    pub on_state_loss: OnStateLoss,
    /// The secret under which subjects are hashed. Heartbeats carry its fingerprint.
    pub secret: Secret,
    /// Whether other instances count this one.
    pub presence: Presence,
    /// Separates the records of fleets on one store.
    pub namespace: String,
}

/// Whether other instances count this one among those that share the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// They count it.
    #[default]
    Announced,
    /// They do not, since it calls the store only briefly.
    Onlooker,
}

/// The state to assume on a server that lost its data, because it restarted empty or was flushed.
///
/// `LimiterBuilder::on_state_loss` takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStateLoss {
    /// Assumes unused limits. Each subject may get one allowance more.
    #[default]
    Fresh,
    /// Assumes exhausted limits. A subject without state counts as having used up every limit at
    /// the time of the loss, and waits as long as that limit requires. No subject is admitted
    /// twice, and new subjects wait too. A reset has no effect meanwhile.
    ///
    /// Each call carries one more key. It does not work on a Cluster, where no single key shows the
    /// loss of a node. It also fails to notice a loss if all instances restart together with the
    /// server.
    Exhausted,
}

/// A set of independent servers over which subjects are spread by consistent hashing.
///
/// A node is known by its name, so it keeps its subjects when its address changes. A node with more
/// weight gets more subjects.
///
/// Two rings differ if their nodes' names or weights do. A node that joins n others takes about one
/// in n + 1 of the subjects from them. Nodes accept instances on any ring, so while instances on two
/// rings run, a subject that moves has a counter at each and can get up to twice its limit.
/// `Limiter::instance_mismatch` counts the instances on another ring.
///
/// ```
/// use spillgate::store::Ring;
/// let ring = Ring::new()
///     .node("a", "redis://10.0.0.1:6379")
///     .node("b", "redis://10.0.0.2:6379")
///     .weighted_node("c", "redis://10.0.0.3:6379", 2);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Ring {
    nodes: Vec<RingNode>,
}

/// One server of a ring.
#[derive(Clone)]
pub(crate) struct RingNode {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) weight: u32,
}

/// The certificates for `rediss://` connections. By default the system's authorities are trusted.
///
/// `LimiterBuilder::tls` takes it.
#[derive(Clone, Default)]
pub struct Tls {
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) client: Option<ClientCertificate>,
}

/// The certificate that identifies this instance to a server.
#[derive(Clone)]
pub(crate) struct ClientCertificate {
    pub(crate) certificate: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

/// One server of the store, as this instance sees it.
///
/// `Limiter::shards` lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardStatus {
    /// The node's name, or the address without credentials.
    pub name: String,
    /// Whether decisions are sent to it. It is `false` while its circuit breaker is open.
    pub asked: bool,
    /// The error of the last attempt to connect, if it failed.
    pub trouble: Option<Why>,
    /// The number of times that its clock stepped by more than half a second.
    pub clock_steps: u64,
    /// Whether decisions are made without it now, by each rule's `on_outage`.
    pub degraded: bool,
    /// Its clock minus this instance's wall clock, in µs.
    pub clock_ahead_us: i64,
}

/// The number of live instances on the store that differ from this one in settings that all must
/// share. With another secret, ring or schema they keep separate counters for the same subject. While
/// two kinds of them run, a subject can get up to twice its limit: on another ring only a subject that
/// moves, else every one.
///
/// `Limiter::instance_mismatch` returns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InstanceMismatch {
    /// Instances with another key secret.
    pub secret: u32,
    /// Instances that spread subjects over other servers: by another ring, or without a ring.
    pub ring: u32,
    /// Instances of a version with another format of counters.
    pub schema: u32,
    /// Instances with another policy. They share counters, but decide by other rules or limits.
    pub policy: u32,
    /// Since when there are any, in ms since 1970-01-01 00:00 UTC.
    pub policy_since_ms: Option<u64>,
    /// All live instances, those that agree included, and this one unless it sends no heartbeat.
    pub live: u32,
}

/// The decisions of one instance in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    /// Those that allowed.
    pub allowed: u64,
    /// Those that denied.
    pub denied: u64,
}

impl InstanceMismatch {
    /// Returns whether all live instances agree with this one.
    pub fn is_none(self) -> bool {
        self.parts().iter().all(|(_, instances)| *instances == 0)
    }

    /// Returns each setting by its name in metrics, with the number of instances that differ in it.
    #[doc(hidden)]
    pub fn parts(self) -> [(&'static str, u32); 4] {
        let InstanceMismatch { secret, ring, schema, policy, .. } = self;
        [("secret", secret), ("ring", ring), ("schema", schema), ("policy", policy)]
    }

    /// Adds an instance that differs in a setting.
    pub(crate) fn and_one(mut self, part: &str) -> InstanceMismatch {
        match part {
            "secret" => self.secret += 1,
            "ring" => self.ring += 1,
            "schema" => self.schema += 1,
            _ => self.policy += 1,
        }
        self
    }

    /// Takes the larger count of each setting.
    #[doc(hidden)]
    pub fn or(self, other: InstanceMismatch) -> InstanceMismatch {
        InstanceMismatch {
            secret: self.secret.max(other.secret),
            ring: self.ring.max(other.ring),
            schema: self.schema.max(other.schema),
            live: self.live.max(other.live),
            ..self
        }
    }
}

impl StoreOptions {
    /// Returns default settings: as many connections as the machine's cores can use, and the
    /// system's trusted authorities.
    pub fn new(timeout: Duration) -> StoreOptions {
        // One task drives a connection, and one or two cores can keep a server busy.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let connections = (cores / 2).clamp(1, CONNECTIONS_BY_ITSELF);
        let on_state_loss = OnStateLoss::Fresh;
        StoreOptions {
            timeout,
            overload_wait: OVERLOAD_WAIT,
            connections,
            tls: None,
            on_state_loss,
            group_commit: true,
            secret: Secret::new(&SHARED_SECRET),
            presence: Presence::Announced,
            namespace: DEFAULT_NAMESPACE.to_owned(),
        }
    }

    /// Returns how long a decision waits for a server that works. It must be long enough to notice
    /// a silent one: silence counts from the last byte, which may come as late as a `timeout` after
    /// the decision's begin.
    pub(crate) fn patience(&self) -> Duration {
        self.overload_wait.max(2 * self.timeout)
    }
}

impl Ring {
    /// Makes a ring without nodes.
    pub fn new() -> Ring {
        Ring::default()
    }

    /// Adds a server of weight 1.
    pub fn node(self, name: impl Into<String>, url: impl Into<String>) -> Ring {
        self.weighted_node(name, url, 1)
    }

    /// Adds a server with a weight from 1 to 100.
    pub fn weighted_node(
        mut self,
        name: impl Into<String>,
        url: impl Into<String>,
        weight: u32,
    ) -> Ring {
        self.nodes.push(RingNode { name: name.into(), url: url.into(), weight });
        self
    }

    pub(crate) fn nodes(&self) -> &[RingNode] {
        &self.nodes
    }

    /// Returns the nodes if they make a valid ring.
    pub(crate) fn checked_nodes(&self) -> Result<&[RingNode], BuildError> {
        let wrong = |why: String| Err(BuildError::Ring { why });
        let count = self.nodes.len();
        if count == 0 {
            return wrong("the ring has no nodes; add one for each server".into());
        }
        if count > NODES_MAX {
            return wrong(format!("the ring has {count} nodes; the maximum is {NODES_MAX}"));
        }
        for (place, node) in self.nodes.iter().enumerate() {
            if !name_is_plain(&node.name) {
                return wrong(format!(
                    "the name {:?} of the ring's node {place}: a name has 1 to 64 of the characters A-Z a-z 0-9 _ . -",
                    node.name
                ));
            }
            if !(1..=WEIGHT_MAX).contains(&node.weight) {
                return wrong(format!(
                    "the ring's node {:?} has weight {}; a weight must be from 1 to {WEIGHT_MAX}",
                    node.name, node.weight
                ));
            }
            if self.nodes[..place].iter().any(|earlier| earlier.name == node.name) {
                return wrong(format!(
                    "two nodes of the ring are named {:?}; rename one of them",
                    node.name
                ));
            }
        }
        let weights: u32 = self.nodes.iter().map(|node| node.weight).sum();
        if weights > WEIGHTS_MAX {
            return wrong(format!(
                "the weights of the ring's nodes sum to {weights}; the maximum is {WEIGHTS_MAX}, so halve them all"
            ));
        }
        Ok(&self.nodes)
    }
}

impl Tls {
    /// Trusts the system's authorities, and has no certificate of its own.
    pub fn new() -> Tls {
        Tls::default()
    }

    /// Trusts these authorities, in PEM, and no others.
    pub fn trusting(self, ca: impl Into<Vec<u8>>) -> Tls {
        Tls { ca: Some(ca.into()), ..self }
    }

    /// Presents this certificate to servers that ask for one: its chain and its key, both in PEM.
    pub fn presenting(self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Tls {
        let client = ClientCertificate { certificate: certificate.into(), key: key.into() };
        Tls { client: Some(client), ..self }
    }
}

/// Hides the address, which may have credentials.
impl fmt::Debug for RingNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RingNode({} × {})", self.name, self.weight)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}

fn name_is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(plain)
}

/// People notice 100 ms and leave after a few seconds. A store that is busy for longer is
/// overloaded.
const OVERLOAD_WAIT: Duration = Duration::from_millis(250);
/// One instance needs no more, as others have measured. Operators can set more.
const CONNECTIONS_BY_ITSELF: usize = 4;
/// Each instance has a connection to every node.
const NODES_MAX: usize = 256;
const WEIGHT_MAX: u32 = 100;
/// A million points on the ring, which a start can sort quickly.
const WEIGHTS_MAX: u32 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_an_invalid_ring_names_the_fix() {
        let wrong = |ring: Ring| ring.checked_nodes().unwrap_err().to_string();
        let node = |name: &str| Ring::new().node(name, "redis://a");
        assert_eq!(wrong(Ring::new()), "the ring has no nodes; add one for each server");
        assert_eq!(
            wrong(node("a").node("a", "redis://b")),
            "two nodes of the ring are named \"a\"; rename one of them"
        );
        assert_eq!(
            wrong(node("a").weighted_node("b", "redis://b", 0)),
            "the ring's node \"b\" has weight 0; a weight must be from 1 to 100"
        );
        assert!(wrong(node("a b")).starts_with("the name \"a b\" of the ring's node 0: "));
        assert_eq!(node("a-1.eu").checked_nodes().unwrap().len(), 1);
    }

    #[test]
    fn credentials_are_in_no_debug_output() {
        let ring = Ring::new().node("a", "redis://:hunter2@a");
        let tls = Tls::new().presenting("certificate", "hunter2");
        assert!(!format!("{ring:?} {tls:?}").contains("hunter2"));
    }
}
