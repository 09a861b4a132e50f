//! `[store]`: the servers that hold the counters, and how the service connects to them.
//!
//! Longer than 450 lines because the settings of the store contradict each other in many ways, and each has its remedy here.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use spillgate::store::OnStateLoss;
use spillgate::{BuildError, LimiterBuilder};

use super::contradictions::{NO_CERT, NO_KEY};
use super::problem::{Origin, Problem};
use super::{Given, value};

mod ring;

pub(crate) use ring::Nodes;

/// The settings of the store. They have no `Debug`, because addresses may hold credentials.
#[derive(Default)]
pub struct Store {
    pub(crate) topology: Topology,
    pub(crate) timeout: Option<Duration>,
    pub(crate) overload_wait: Option<Duration>,
    /// The number of connections to each server; the library chooses one if it is absent.
    pub connections: Option<usize>,
    pub(crate) on_state_loss: Option<OnStateLoss>,
    /// The file with the password of the sentinels, if it is not the primary's.
    pub(crate) sentinel_password_file: Option<PathBuf>,
    /// The file with the password of every server, in place of one in the addresses.
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) key_secret_file: Option<PathBuf>,
    /// Separates this fleet from others on the store.
    pub(crate) namespace: Option<(String, Origin)>,
    /// How many instances share the store, which sets the local share of each during an outage.
    pub expected_instances: Option<u32>,
    pub(crate) max_keys: Option<usize>,
    /// Whether denials are not recorded.
    pub(crate) without_denials: bool,
    pub(crate) tls: StoreTls,
    /// Where the topology was named.
    named: Option<Origin>,
}

/// The servers that hold the state, and how clients find them.
#[derive(Default)]
pub(crate) enum Topology {
    #[default]
    Memory,
    Url(String),
    Sentinel {
        master: String,
        urls: Vec<String>,
    },
    Cluster(Vec<String>),
    Ring(Nodes),
}

/// The files of `store.tls`.
#[derive(Default)]
pub(crate) struct StoreTls {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

impl Store {
    /// Returns the most connections to the store at once. For a Cluster it is an estimate.
    pub(crate) fn connections_max(&self) -> usize {
        let of_server = self.connections.unwrap_or(CONNECTIONS_BY_ITSELF) + CONNECTIONS_BESIDE;
        match &self.topology {
            Topology::Memory => 0,
            Topology::Url(_) => of_server,
            Topology::Sentinel { urls, .. } => of_server + urls.len(),
            // The settings name some nodes of a Cluster; clients ask these for the others.
            Topology::Cluster(urls) => of_server * urls.len().max(CLUSTER_NODES),
            Topology::Ring(nodes) => of_server * nodes.count(),
        }
    }

    /// Names the servers. A later origin overrides an earlier one.
    ///
    /// # Errors
    ///
    /// If one origin, such as the file, names servers in two ways.
    pub(crate) fn name(&mut self, topology: Topology, origin: &Origin) -> Result<(), String> {
        if let Some(earlier) = self.topology.kind()
            && topology.kind() != Some(earlier)
            && self.named.as_ref().is_some_and(|named| named.is_like(origin))
        {
            return Err(format!(
                "{earlier} is set too, and state lives in one store; leave one of them out"
            ));
        }
        self.topology = topology;
        self.named = Some(origin.clone());
        Ok(())
    }

    /// Returns master and addresses of the sentinels, as far as they are named.
    pub(crate) fn sentinels(&self) -> (String, Vec<String>) {
        match &self.topology {
            Topology::Sentinel { master, urls } => (master.clone(), urls.clone()),
            _ => Default::default(),
        }
    }

    /// Returns whether instances can share the store: it is not the memory of this process.
    pub fn is_shared(&self) -> bool {
        !matches!(self.topology, Topology::Memory)
    }

    /// Returns whether the store keeps subjects on several shards.
    pub fn has_several_shards(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_) | Topology::Ring(_))
    }

    /// Returns why subjects have other counters on this store than on `old`, for each setting that moves them.
    pub fn apart_from(&self, old: &Store) -> Vec<&'static str> {
        if !self.is_shared() || !old.is_shared() {
            return Vec::new();
        }
        let rings = (self.topology.placement() != old.topology.placement()).then_some(OTHER_RING);
        let secrets = (self.key_secret_file != old.key_secret_file).then_some(OTHER_SECRET);
        rings.into_iter().chain(secrets).collect()
    }

    /// Returns the URL of the server, if the store is one server that is named by its URL.
    pub fn url(&self) -> Option<&str> {
        match &self.topology {
            Topology::Url(url) => Some(url),
            _ => None,
        }
    }

    /// Sets up a limiter for this store. `password` is that of `password_file`; the other secrets and certificates, which
    /// are read from files too, are left to the caller.
    pub(crate) fn configure(
        &self,
        mut builder: LimiterBuilder,
        password: Option<&str>,
    ) -> LimiterBuilder {
        let with_it = |url: &str| match password {
            Some(password) => with_password(url, password),
            None => url.to_owned(),
        };
        let all =
            |urls: &[String]| -> Vec<String> { urls.iter().map(|url| with_it(url)).collect() };
        builder = match &self.topology {
            Topology::Memory => builder,
            Topology::Url(url) => builder.redis(with_it(url)),
            Topology::Sentinel { master, urls } => builder.sentinel(master, all(urls)),
            Topology::Cluster(urls) => builder.cluster(all(urls)),
            Topology::Ring(ring) => builder.ring(ring.ring(with_it)),
        };
        if let Some(timeout) = self.timeout {
            builder = builder.timeout(timeout);
        }
        if let Some(wait) = self.overload_wait {
            builder = builder.overload_wait(wait);
        }
        if let Some(connections) = self.connections {
            builder = builder.connections(connections);
        }
        if let Some(on_state_loss) = self.on_state_loss {
            builder = builder.on_state_loss(on_state_loss);
        }
        if let Some((namespace, _)) = &self.namespace {
            builder = builder.namespace(namespace);
        }
        if let Some(instances) = self.expected_instances {
            builder = builder.expected_instances(instances);
        }
        if let Some(max_keys) = self.max_keys {
            builder = builder.max_keys(max_keys);
        }
        builder
    }

    /// Returns a problem of the topology, with the origin of its name.
    fn problem(&self, message: String) -> Problem {
        let name = match self.topology.kind() {
            Some("sentinel") => "store.sentinel.urls".to_owned(),
            kind => format!("store.{}", kind.unwrap_or("url")),
        };
        Problem::new(self.named.as_ref().unwrap_or(&Origin::Unknown), &name, message)
    }

    /// Returns the problem of the setting that the library refuses: the namespace, else the topology.
    pub(crate) fn refused(&self, error: &BuildError) -> Problem {
        match (error, &self.namespace) {
            (BuildError::Namespace { .. }, Some((_, origin))) => {
                Problem::new(origin, "store.namespace", error)
            }
            _ => self.problem(error.to_string()),
        }
    }

    /// Returns the problem of an address to which the service would not start. Servers that are named elsewhere, such as
    /// in the environment, are not checked.
    pub fn wrong_address(&self) -> Option<Problem> {
        if self.urls().is_empty() {
            return None;
        }
        let checked = self.configure(spillgate::Limiter::builder(), None).check_addresses();
        checked.err().map(|error| self.refused(&error))
    }

    /// Returns the problems between several settings of the store, each with its origin.
    pub(crate) fn contradictions(&self, given: &[Given]) -> Vec<Problem> {
        let mut problems = self.contradictions_of_topology(given);
        problems.extend(self.contradictions_of_tls(given));
        let has_sentinels = matches!(self.topology, Topology::Sentinel { .. });
        if self.sentinel_password_file.is_some() && !has_sentinels {
            problems.push(wrong(given, "store.sentinel.password_file", NO_SENTINELS));
        }
        if self.password_file.is_some() && self.urls().into_iter().any(has_password) {
            problems.push(wrong(given, "store.password_file", TWO_PASSWORDS));
        }
        problems
    }

    fn contradictions_of_topology(&self, given: &[Given]) -> Vec<Problem> {
        let problem = match &self.topology {
            Topology::Memory => {
                let idle = NEEDS_A_STORE.into_iter().filter(|name| in_force(given, name).is_some());
                return idle.map(|name| wrong(given, name, NO_STORE)).collect();
            }
            Topology::Sentinel { master, .. } if master.is_empty() => self.problem(
                "master is missing; write the name from the sentinels' own `sentinel monitor` line"
                    .to_owned(),
            ),
            Topology::Sentinel { urls, .. } if urls.is_empty() => self.problem(
                "urls is missing; write the addresses of sentinels, such as [\"redis://10.0.0.1:26379\"]"
                    .to_owned(),
            ),
            Topology::Cluster(_) if self.on_state_loss == Some(OnStateLoss::Exhausted) => wrong(
                given,
                "store.on_state_loss",
                "\"exhausted\" cannot hold on a Cluster, whose nodes hand their subjects on; write \
                 \"fresh\", or use a ring",
            ),
            _ => return Vec::new(),
        };
        vec![problem]
    }

    fn contradictions_of_tls(&self, given: &[Given]) -> Vec<Problem> {
        let mut problems = Vec::new();
        let secured = self.urls().iter().any(|url| url.starts_with("rediss://"));
        let given_tls = ["store.tls.ca", "store.tls.cert", "store.tls.key"];
        if let Some(name) = given_tls.into_iter().find(|name| in_force(given, name).is_some())
            && self.is_shared()
            && !secured
        {
            problems.push(wrong(
                given,
                name,
                "no address of the store begins with rediss://, so nothing would be encrypted; \
                 write rediss:// there, or leave tls out",
            ));
        }
        match (&self.tls.cert, &self.tls.key) {
            (Some(_), None) => problems.push(wrong(given, "store.tls.cert", NO_KEY)),
            (None, Some(_)) => problems.push(wrong(given, "store.tls.key", NO_CERT)),
            _ => {}
        }
        problems
    }

    /// Returns every address, with its credentials.
    pub(crate) fn urls(&self) -> Vec<&str> {
        match &self.topology {
            Topology::Memory => Vec::new(),
            Topology::Url(url) => vec![url],
            Topology::Sentinel { urls, .. } | Topology::Cluster(urls) => {
                urls.iter().map(String::as_str).collect()
            }
            Topology::Ring(ring) => ring.urls().collect(),
        }
    }
}

impl Topology {
    /// Returns what places subjects on a ring: name and weight of each node, whatever their order.
    fn placement(&self) -> Vec<(&str, u32)> {
        let Topology::Ring(nodes) = self else { return Vec::new() };
        let mut placement: Vec<_> = nodes.placement().collect();
        placement.sort_unstable();
        placement
    }

    fn kind(&self) -> Option<&'static str> {
        match self {
            Topology::Memory => None,
            Topology::Url(_) => Some("url"),
            Topology::Sentinel { .. } => Some("sentinel"),
            Topology::Cluster(_) => Some("cluster"),
            Topology::Ring(_) => Some("ring"),
        }
    }
}

/// Writes the addresses of the servers, without user, password and parameters.
impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.topology.fmt(f)
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = |urls: &[String]| {
            let shown: Vec<String> = urls.iter().map(|url| without_credentials(url)).collect();
            shown.join(" ")
        };
        match self {
            Topology::Memory => f.write_str("memory"),
            Topology::Url(url) => f.write_str(&without_credentials(url)),
            Topology::Sentinel { master, urls } => write!(f, "{master} by sentinels {}", all(urls)),
            Topology::Cluster(urls) => write!(f, "cluster {}", all(urls)),
            Topology::Ring(ring) => ring.fmt(f),
        }
    }
}

/// Returns the value of a setting that is in force: the last that was given.
fn in_force<'g>(given: &'g [Given], name: &str) -> Option<&'g Given> {
    given.iter().rev().find(|given| given.name == name)
}

fn wrong(given: &[Given], name: &str, message: &str) -> Problem {
    let origin = in_force(given, name).map_or(&Origin::Unknown, |given| &given.origin);
    Problem::new(origin, name, message)
}

pub fn connections(text: &str) -> Result<usize, String> {
    let connections = value::count(text).ok().filter(|count: &usize| *count <= CONNECTIONS_MAX);
    connections.ok_or_else(|| {
        format!(
            "{text:?} is not a number of connections; write a whole number from 1 to {CONNECTIONS_MAX}"
        )
    })
}

/// Returns an address without user, password and parameters.
fn without_credentials(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let place = match rest.rsplit_once('@') {
        // The host begins after the last @: a password may hold every one of these characters, even unescaped. That of a
        // socket is a parameter.
        Some((_, host)) if scheme != "unix" => host,
        _ => rest,
    };
    format!("{scheme}://{}", place.split(['?', '#']).next().unwrap_or_default())
}

/// Returns whether an address has a password.
fn has_password(url: &str) -> bool {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    match scheme {
        "unix" => rest.contains("?pass=") || rest.contains("&pass="),
        _ => rest.rsplit_once('@').is_some_and(|(login, _)| login.contains(':')),
    }
}

/// Returns an address without a password with this one. Its user stays.
fn with_password(url: &str, password: &str) -> String {
    let password: String = password.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    if scheme == "unix" {
        let sign = if rest.contains('?') { '&' } else { '?' };
        return format!("{url}{sign}pass={password}");
    }
    let (user, server) = rest.rsplit_once('@').unwrap_or(("", rest));
    format!("{scheme}://{user}:{password}@{server}")
}

/// Settings that take effect only with a store outside of this process. Without one, the operator forgot to name it.
const NEEDS_A_STORE: [&str; 9] = [
    "store.namespace",
    "store.password_file",
    "store.overload_wait",
    "store.on_state_loss",
    "store.connections",
    "store.expected_instances",
    "store.tls.ca",
    "store.tls.cert",
    "store.tls.key",
];
const OTHER_RING: &str = "the nodes or weights of the ring differ; a subject that moves has a counter on each ring, so \
    while instances with both run it can get up to twice its limit";
const OTHER_SECRET: &str = "key_secret_file differs; each subject has a counter under each secret, so while instances \
    with both run it can get up to twice its limit";
const NO_STORE: &str = "no store is named, so state would be in memory; name one with url, sentinel, cluster or ring \
    under [store], or leave this out";
const NO_SENTINELS: &str = "no sentinels are named, so the password would not be used; name them with urls under \
    [store.sentinel], or leave this out";
const TWO_PASSWORDS: &str = "an address of the store has a password too; leave one of the two out";
pub const DENIALS_OFF: [(&str, bool); 2] = [("on", false), ("off", true)];
pub const ON_STATE_LOSS: [(&str, OnStateLoss); 2] =
    [("fresh", OnStateLoss::Fresh), ("exhausted", OnStateLoss::Exhausted)];
/// The most connections to one server that a setting may ask for.
const CONNECTIONS_MAX: usize = 16;

/// The most connections to one server that the library chooses where nothing is set.
const CONNECTIONS_BY_ITSELF: usize = 4;

/// Connections to one server beside those of decisions: for heartbeats and for runtime changes.
const CONNECTIONS_BESIDE: usize = 2;

/// The assumed number of primaries in a Cluster.
const CLUSTER_NODES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_never_shown() {
        for (url, shown) in [
            ("redis://127.0.0.1:6379", "redis://127.0.0.1:6379"),
            ("redis://user:secret@host:6379/2", "redis://host:6379/2"),
            ("redis://:se/c?re#t@host/0", "redis://host/0"),
            ("redis://:s@cret@host", "redis://host"),
            ("unix:///run/redis.sock?pass=secret", "unix:///run/redis.sock"),
            ("unix:///run/redis.sock?pass=s@cret", "unix:///run/redis.sock"),
            ("user:secret@host", "://host"),
        ] {
            assert_eq!(without_credentials(url), shown);
        }
    }

    #[test]
    fn a_password_is_put_behind_the_user_of_an_address() {
        for (url, expected) in [
            ("redis://host:6379/2", "redis://:%61%2F%40@host:6379/2"),
            ("rediss://me@[::1]", "rediss://me:%61%2F%40@[::1]"),
            ("unix:///run/redis.sock", "unix:///run/redis.sock?pass=%61%2F%40"),
            ("unix:///run/redis.sock?user=me", "unix:///run/redis.sock?user=me&pass=%61%2F%40"),
        ] {
            assert!(!has_password(url), "{url}");
            let whole = with_password(url, "a/@");
            assert!(has_password(&whole) && whole == expected, "{whole}");
        }
    }
}
