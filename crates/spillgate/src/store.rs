//! Where the shared state of a fleet lives, as an operator says it: addresses, a ring of nodes,
//! certificates. What is wrong with any of it is told before the first decision.

use std::fmt;
use std::time::Duration;

use crate::error::BuildError;
use crate::subject::{SHARED_SECRET, Secret};

/// The store that a fleet shares.
#[derive(Clone, Debug)]
pub enum Store {
    /// One server.
    Url(String),
    /// The primary of a name that sentinels watch.
    Sentinel {
        /// The name.
        master: String,
        /// Where sentinels are.
        urls: Vec<String>,
    },
    /// A Redis Cluster, by the addresses of some of its nodes.
    Cluster(Vec<String>),
    /// Independent servers that share the subjects.
    Ring(Ring),
}

impl Store {
    /// Whether any of its addresses asks for TLS.
    pub(crate) fn is_secured(&self) -> bool {
        let is_secured = |url: &String| url.starts_with("rediss://");
        match self {
            Store::Url(url) => is_secured(url),
            Store::Sentinel { urls, .. } | Store::Cluster(urls) => urls.iter().any(is_secured),
            Store::Ring(ring) => {
                let nodes =
                    ring.nodes().iter().chain(ring.previous().into_iter().flat_map(Ring::nodes));
                nodes.map(|node| &node.url).any(is_secured)
            }
        }
    }
}

/// How the store is spoken to, whichever it is.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// How long it may send no byte while it owes an answer, or be without a connection: then it is out of reach.
    pub timeout: Duration,
    /// How long a decision may wait for it while it works; no less than `timeout`.
    pub overload_wait: Duration,
    /// Connections to each server.
    pub connections: usize,
    /// What secures its connections, where its addresses say so.
    pub tls: Option<Tls>,
    /// Whether decisions go by our own clock, set by the store's.
    pub client_clock: bool,
    /// Whether decisions that arrive while others are under way leave together.
    pub group_commit: bool,
    /// What a server that has lost what it held is taken to have held.
    pub on_state_loss: OnStateLoss,
    /// The secret that subjects are hashed under: heartbeats carry its fingerprint.
    pub secret: Secret,
    /// Whether other instances count this one.
    pub presence: Presence,
}

/// Whether other instances count this one among those that share the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// They do.
    #[default]
    Announced,
    /// They do not: it looks at the store, and leaves.
    Onlooker,
}

/// What is made of a server that has lost what it held: restarted empty, or flushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStateLoss {
    /// Limits begin afresh: at most one allowance more for each subject.
    #[default]
    Fresh,
    /// Limits begin empty: whoever the server knows nothing of has used up every limit at the moment
    /// of the loss, and waits as that limit has one wait. Nobody is admitted twice, and those who
    /// were never seen before wait too. A reset of theirs changes nothing meanwhile.
    ///
    /// Each call carries one key more. Not on a Cluster, where no single key tells of a node's loss;
    /// and where all processes are restarted with the server, nobody is left who knew what it held.
    Exhausted,
}

/// Independent servers among which subjects are spread by consistent hashing.
///
/// A node goes by its name, not by its address: a node that moves to another machine keeps its
/// subjects. The more weight, the more subjects.
///
/// ```
/// use spillgate::Ring;
/// let ring = Ring::numbered(1)
///     .node("a", "redis://10.0.0.1:6379")
///     .node("b", "redis://10.0.0.2:6379")
///     .weighted_node("c", "redis://10.0.0.3:6379", 2);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Ring {
    number: u32,
    nodes: Vec<RingNode>,
    previous: Option<Box<Ring>>,
}

/// One server of a ring.
#[derive(Clone)]
pub(crate) struct RingNode {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) weight: u32,
}

/// Whom to trust, and who we are, on `rediss://` connections. Without it the machine's own
/// certificates are trusted.
#[derive(Clone, Default)]
pub struct Tls {
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) client: Option<ClientCertificate>,
}

/// What shows a server who we are.
#[derive(Clone)]
pub(crate) struct ClientCertificate {
    pub(crate) certificate: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

/// One server of the store, as one process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardStatus {
    /// A node's name, or an address without credentials.
    pub name: String,
    /// Whether decisions are asked of it: false from the failures that open its breaker on, until it
    /// answers again.
    pub asked: bool,
    /// Why the last attempt to connect came to nothing, if it did.
    pub trouble: Option<String>,
    /// How often its clock stepped by more than half a second.
    pub clock_steps: u64,
    /// Whether decisions are made without it at the moment, by each rule's `on_outage`.
    pub degraded: bool,
    /// How far its clock is ahead of this process's wall clock.
    pub clock_ahead_us: i64,
}

/// How many live instances on the store differ from this one in what all must have in common. Instances that
/// differ keep separate counters for the same subject, so each limit is admitted more than once.
///
/// An instance that names the secret or ring of another as its previous one does not differ from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InstanceMismatch {
    /// Instances with another key secret.
    pub secret: u32,
    /// Instances that spread subjects over other servers: by another ring, or by none.
    pub ring: u32,
    /// Instances of a version that keeps counters in another form.
    pub schema: u32,
}

impl InstanceMismatch {
    /// Returns whether all live instances agree with this one.
    pub fn is_none(self) -> bool {
        self == InstanceMismatch::default()
    }

    /// Returns each part by its name in metrics, with how many instances differ in it.
    pub fn parts(self) -> [(&'static str, u32); 3] {
        [("secret", self.secret), ("ring", self.ring), ("schema", self.schema)]
    }

    /// Adds the counts of other instances on the same shard.
    pub(crate) fn and(self, others: InstanceMismatch) -> InstanceMismatch {
        self.with(others, u32::saturating_add)
    }

    /// Takes the larger count of each part: every instance reports to every shard.
    pub(crate) fn or(self, elsewhere: InstanceMismatch) -> InstanceMismatch {
        self.with(elsewhere, u32::max)
    }

    fn with(self, other: InstanceMismatch, join: fn(u32, u32) -> u32) -> InstanceMismatch {
        InstanceMismatch {
            secret: join(self.secret, other.secret),
            ring: join(self.ring, other.ring),
            schema: join(self.schema, other.schema),
        }
    }
}

impl StoreOptions {
    /// As many connections as the machine's cores can use, and the machine's trust.
    pub fn new(timeout: Duration) -> StoreOptions {
        // One connection is driven by one task, and a core or two feed one server.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let connections = (cores / 2).clamp(1, CONNECTIONS_BY_ITSELF);
        let on_state_loss = OnStateLoss::Fresh;
        StoreOptions {
            timeout,
            overload_wait: OVERLOAD_WAIT,
            connections,
            tls: None,
            client_clock: false,
            on_state_loss,
            group_commit: true,
            secret: Secret::new(&SHARED_SECRET),
            presence: Presence::Announced,
        }
    }

    /// Returns how long a decision waits for a store that works: a silent one has to be found out meanwhile.
    pub(crate) fn patience(&self) -> Duration {
        self.overload_wait.max(self.timeout)
    }
}

impl Ring {
    /// A ring without nodes yet. A ring of other nodes or weights takes a larger number.
    pub fn numbered(number: u32) -> Ring {
        Ring { number, ..Ring::default() }
    }

    /// One server more, of weight one.
    pub fn node(self, name: impl Into<String>, url: impl Into<String>) -> Ring {
        self.weighted_node(name, url, 1)
    }

    /// One server more.
    pub fn weighted_node(
        mut self,
        name: impl Into<String>,
        url: impl Into<String>,
        weight: u32,
    ) -> Ring {
        self.nodes.push(RingNode { name: name.into(), url: url.into(), weight });
        self
    }

    /// Takes the place of another ring, of a smaller number, while processes on both are at work.
    ///
    /// Subjects that move are judged and charged at both of their owners, all or none, so that no
    /// limit is exceeded meanwhile. That ends by itself: each node serves the old ring until no
    /// process on it has been heard of for five seconds, and each limit leaves its old owner twice its
    /// longest wait after that. Name the previous ring until then, by the number and nodes it had; a
    /// process that does not, or is late with the old ring, is refused by the nodes, decides by its
    /// share, and tells so in [`crate::Limiter::shards`].
    ///
    /// An old owner that is dead meanwhile counts as lost, at the price of one allowance for each of
    /// its subjects.
    ///
    /// ```
    /// use spillgate::Ring;
    /// let three = Ring::numbered(1)
    ///     .node("a", "redis://10.0.0.1:6379")
    ///     .node("b", "redis://10.0.0.2:6379")
    ///     .node("c", "redis://10.0.0.3:6379");
    /// let four = Ring::numbered(2)
    ///     .node("a", "redis://10.0.0.1:6379")
    ///     .node("b", "redis://10.0.0.2:6379")
    ///     .node("c", "redis://10.0.0.3:6379")
    ///     .node("d", "redis://10.0.0.4:6379")
    ///     .replacing(three);
    /// ```
    pub fn replacing(self, previous: Ring) -> Ring {
        Ring { previous: Some(Box::new(previous)), ..self }
    }

    /// The number that tells this ring from those before and after it.
    pub fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn nodes(&self) -> &[RingNode] {
        &self.nodes
    }

    /// The ring that this one takes the place of, as far as anybody has said.
    pub(crate) fn previous(&self) -> Option<&Ring> {
        self.previous.as_deref()
    }

    /// The same, if it makes one that can be replaced.
    pub(crate) fn checked_previous(&self) -> Result<Option<&Ring>, BuildError> {
        let Some(previous) = self.previous() else { return Ok(None) };
        previous.checked_nodes()?;
        if previous.number >= self.number {
            let why = format!(
                "it cannot replace ring {}; a ring of other nodes or weights takes a larger number",
                previous.number
            );
            return Err(BuildError::Ring { number: self.number, why });
        }
        Ok(Some(previous))
    }

    /// The nodes, if they make a ring.
    pub(crate) fn checked_nodes(&self) -> Result<&[RingNode], BuildError> {
        let wrong = |why: String| Err(BuildError::Ring { number: self.number, why });
        if self.number == 0 {
            return wrong("rings are numbered from 1".into());
        }
        if self.nodes.is_empty() {
            return wrong("it has no nodes; add one for each server".into());
        }
        if self.nodes.len() > NODES_MAX {
            return wrong(format!("{} nodes, and {NODES_MAX} are the most", self.nodes.len()));
        }
        for (place, node) in self.nodes.iter().enumerate() {
            if !name_is_plain(&node.name) {
                return wrong(format!(
                    "the name {:?} of node {place}: a name has 1 to 64 of the characters A-Z a-z 0-9 _ . -",
                    node.name
                ));
            }
            if !(1..=WEIGHT_MAX).contains(&node.weight) {
                return wrong(format!(
                    "node {:?} weighs {}; a weight is 1 to {WEIGHT_MAX}",
                    node.name, node.weight
                ));
            }
            if self.nodes[..place].iter().any(|earlier| earlier.name == node.name) {
                return wrong(format!("two nodes are named {:?}; rename one of them", node.name));
            }
        }
        let weights: u32 = self.nodes.iter().map(|node| node.weight).sum();
        if weights > WEIGHTS_MAX {
            return wrong(format!(
                "its nodes weigh {weights} together, and {WEIGHTS_MAX} is the most; halve them all"
            ));
        }
        Ok(&self.nodes)
    }
}

impl Tls {
    /// The machine's trust, and no certificate of our own.
    pub fn new() -> Tls {
        Tls::default()
    }

    /// Trust these authorities, in PEM, and no others.
    pub fn trusting(self, ca: impl Into<Vec<u8>>) -> Tls {
        Tls { ca: Some(ca.into()), ..self }
    }

    /// Show this certificate to servers that ask for one: its chain and its key, both in PEM.
    pub fn presenting(self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Tls {
        let client = ClientCertificate { certificate: certificate.into(), key: key.into() };
        Tls { client: Some(client), ..self }
    }
}

/// Addresses may hold credentials.
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

/// People notice 100 ms and leave after some seconds; a store that is busy for longer has more to do than it can.
const OVERLOAD_WAIT: Duration = Duration::from_millis(250);
/// As many as one process needs by the measurements of others; more are to be asked for.
const CONNECTIONS_BY_ITSELF: usize = 4;
/// A connection to each from every process.
const NODES_MAX: usize = 256;
const WEIGHT_MAX: u32 = 100;
/// A million points on the ring: the most that a start should sort.
const WEIGHTS_MAX: u32 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_that_cannot_be_says_what_to_mend() {
        let wrong = |ring: Ring| ring.checked_nodes().unwrap_err().to_string();
        let node = |name: &str| Ring::numbered(7).node(name, "redis://a");
        assert_eq!(wrong(Ring::numbered(7)), "ring 7: it has no nodes; add one for each server");
        assert_eq!(
            wrong(node("a").node("a", "redis://b")),
            "ring 7: two nodes are named \"a\"; rename one of them"
        );
        assert_eq!(
            wrong(node("a").weighted_node("b", "redis://b", 0)),
            "ring 7: node \"b\" weighs 0; a weight is 1 to 100"
        );
        assert!(wrong(node("a b")).starts_with("ring 7: the name \"a b\" of node 0: "));
        assert_eq!(node("a-1.eu").checked_nodes().unwrap().len(), 1);
    }

    #[test]
    fn credentials_are_in_no_debug_output() {
        let ring = Ring::numbered(1).node("a", "redis://:hunter2@a");
        let tls = Tls::new().presenting("certificate", "hunter2");
        assert!(!format!("{ring:?} {tls:?}").contains("hunter2"));
    }
}
