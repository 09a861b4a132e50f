//! `[store]`: where state lives, and how it is spoken to.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use spillgate::{LimiterBuilder, OnStateLoss};

use super::problem::{Place, Problem};
use super::{Given, value};

mod ring;

use ring::NumberedNodes;

/// Where state lives. No `Debug`: addresses may hold credentials.
#[derive(Default)]
pub struct Store {
    pub(crate) topology: Topology,
    pub(crate) timeout: Option<Duration>,
    pub(crate) overload_wait: Option<Duration>,
    /// How many connections to keep to each server; the library's own number if it is absent.
    pub connections: Option<usize>,
    /// Decide by our own clock, set by the store's.
    pub(crate) client_clock: bool,
    on_state_loss: Option<OnStateLoss>,
    pub(crate) key_secret_file: Option<PathBuf>,
    pub(crate) secret_previous_file: Option<PathBuf>,
    /// How many instances share the store, for the local share of each during an outage.
    pub expected_instances: Option<u32>,
    pub(crate) max_keys: Option<usize>,
    pub(crate) tls: StoreTls,
    /// Where the topology was named.
    named: Option<Place>,
}

/// How the servers hang together that hold the state.
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
    Ring(NumberedNodes),
}

/// The files of `store.tls`.
#[derive(Default)]
pub(crate) struct StoreTls {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

impl Store {
    /// How many connections to the store there may be at once, at most or by a guess.
    pub(crate) fn connections_max(&self) -> usize {
        let of_server = self.connections.unwrap_or(CONNECTIONS_BY_ITSELF) + CONNECTIONS_BESIDE;
        match &self.topology {
            Topology::Memory => 0,
            Topology::Url(_) => of_server,
            Topology::Sentinel { urls, .. } => of_server + urls.len(),
            // Its nodes are found by asking those that are named.
            Topology::Cluster(urls) => of_server * urls.len().max(CLUSTER_NODES),
            Topology::Ring(nodes) => of_server * nodes.count(),
        }
    }

    /// Takes one setting, named without its `store.`; none of that name is `Ok(false)`.
    pub(super) fn set(&mut self, name: &str, text: &str, place: &Place) -> Result<bool, String> {
        match name {
            "timeout" => self.timeout = Some(value::duration(text)?),
            "overload_wait" => self.overload_wait = Some(value::duration(text)?),
            "connections" => self.connections = Some(connections(text)?),
            "clock" => self.client_clock = value::choice(text, &CLOCKS)?,
            "on_state_loss" => self.on_state_loss = Some(value::choice(text, &ON_STATE_LOSS)?),
            "key_secret_file" => self.key_secret_file = Some(text.into()),
            "secret_previous_file" => self.secret_previous_file = Some(text.into()),
            "expected_instances" => self.expected_instances = Some(value::number(text)?),
            "max_keys" => self.max_keys = Some(value::count(text)?),
            "tls.ca" => self.tls.ca = Some(text.into()),
            "tls.cert" => self.tls.cert = Some(text.into()),
            "tls.key" => self.tls.key = Some(text.into()),
            _ => return self.set_topology(name, text, place),
        }
        Ok(true)
    }

    fn set_topology(&mut self, name: &str, text: &str, place: &Place) -> Result<bool, String> {
        match name {
            "url" => {
                let url = value::store_url(text)?;
                *self.named("url", Topology::Url(String::new()), place)? = Topology::Url(url);
            }
            "cluster" => {
                let urls = value::store_urls(text)?;
                *self.named("cluster", Topology::Cluster(Vec::new()), place)? =
                    Topology::Cluster(urls);
            }
            "sentinel.master" | "sentinel.urls" => {
                let none = Topology::Sentinel { master: String::new(), urls: Vec::new() };
                let Topology::Sentinel { master, urls } = self.named("sentinel", none, place)?
                else {
                    return Ok(false);
                };
                match name {
                    "sentinel.master" => text.clone_into(master),
                    _ => *urls = value::store_urls(text)?,
                }
            }
            _ => {
                let Some(field) = name.strip_prefix("ring.") else { return Ok(false) };
                let none = Topology::Ring(NumberedNodes::default());
                let Topology::Ring(ring) = self.named("ring", none, place)? else {
                    return Ok(false);
                };
                return ring.set(field, text);
            }
        }
        Ok(true)
    }

    /// The topology to fill in: what was named last holds, and two at one place contradict.
    fn named(
        &mut self,
        kind: &'static str,
        none: Topology,
        place: &Place,
    ) -> Result<&mut Topology, String> {
        if let Some(earlier) = self.topology.kind().filter(|earlier| *earlier != kind)
            && self.named.as_ref().is_some_and(|named| named.is_like(place))
        {
            return Err(format!(
                "{earlier} is set too, and state lives in one store; leave one of them out"
            ));
        }
        if self.topology.kind() != Some(kind) {
            self.topology = none;
        }
        self.named = Some(place.clone());
        Ok(&mut self.topology)
    }

    /// Returns whether other processes may share it: it is no memory of this process.
    pub fn is_shared(&self) -> bool {
        !matches!(self.topology, Topology::Memory)
    }

    /// Returns whether the store keeps subjects on several shards.
    pub fn has_several_shards(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_) | Topology::Ring(_))
    }

    /// Returns the URL of its server, if it is one server that is named by its URL.
    pub fn url(&self) -> Option<&str> {
        match &self.topology {
            Topology::Url(url) => Some(url),
            _ => None,
        }
    }

    /// What a limiter is to know of it, but for what stands in files.
    pub(crate) fn told_to(&self, mut builder: LimiterBuilder) -> LimiterBuilder {
        builder = match &self.topology {
            Topology::Memory => builder,
            Topology::Url(url) => builder.redis(url),
            Topology::Sentinel { master, urls } => builder.sentinel(master, urls),
            Topology::Cluster(urls) => builder.cluster(urls),
            Topology::Ring(ring) => builder.ring(ring.ring()),
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
        if self.client_clock {
            builder = builder.client_clock();
        }
        if let Some(on_state_loss) = self.on_state_loss {
            builder = builder.on_state_loss(on_state_loss);
        }
        if let Some(nodes) = self.expected_instances {
            builder = builder.expected_instances(nodes);
        }
        if let Some(max_keys) = self.max_keys {
            builder = builder.max_keys(max_keys);
        }
        builder
    }

    /// What is wrong with the topology, where it was named.
    pub(crate) fn problem(&self, message: String) -> Problem {
        let name = match self.topology.kind() {
            Some("sentinel") => "store.sentinel.urls".to_owned(),
            kind => format!("store.{}", kind.unwrap_or("url")),
        };
        let place = self.named.clone().unwrap_or(Place::Anywhere);
        Problem::Setting { place, name, message }
    }

    /// What is wrong only with all of the settings together, each where it was given.
    pub(super) fn contradictions(&self, given: &[Given]) -> Vec<Problem> {
        let said = |name: &str| given.iter().rev().find(|given| given.name == name);
        let wrong = |name: &str, message: &str| {
            let place = said(name).map_or(Place::Anywhere, |given| given.place.clone());
            Problem::Setting { place, name: name.to_owned(), message: message.to_owned() }
        };
        let mut problems = Vec::new();
        match &self.topology {
            Topology::Memory => {
                let idle = NEEDS_A_STORE.into_iter().filter(|name| said(name).is_some());
                problems.extend(idle.map(|name| wrong(name, "no store is named, so state would be in \
                    memory; name one with url, sentinel, cluster or ring under [store], or leave \
                    this out")));
            }
            Topology::Sentinel { master, .. } if master.is_empty() => problems.push(self.problem(
                "master is missing: write the name in the sentinels' own `sentinel monitor` line"
                    .to_owned(),
            )),
            Topology::Sentinel { urls, .. } if urls.is_empty() => problems.push(self.problem(
                "urls is missing: write where sentinels are, such as [\"redis://10.0.0.1:26379\"]"
                    .to_owned(),
            )),
            Topology::Cluster(_) if self.client_clock => problems.push(wrong(
                "store.clock",
                "a node of a Cluster that takes over slots has not told its clock yet, and would \
                 decide nothing until it has; leave clock out, or use a ring",
            )),
            Topology::Cluster(_) if self.on_state_loss == Some(OnStateLoss::Exhausted) => {
                problems.push(wrong(
                    "store.on_state_loss",
                    "\"exhausted\" cannot hold on a Cluster, whose nodes hand their subjects on; write \
                     \"fresh\", or use a ring",
                ));
            }
            _ => {}
        }
        let secured = self.urls().iter().any(|url| url.starts_with("rediss://"));
        let given_tls = ["store.tls.ca", "store.tls.cert", "store.tls.key"];
        if let Some(name) = given_tls.into_iter().find(|name| said(name).is_some())
            && self.is_shared()
            && !secured
        {
            problems.push(wrong(
                name,
                "no address of the store begins with rediss://, so nothing would be encrypted; \
                 write rediss:// there, or leave tls out",
            ));
        }
        match (&self.tls.cert, &self.tls.key) {
            (Some(_), None) => problems.push(wrong(
                "store.tls.cert",
                "key is missing: name the file of the certificate's private key",
            )),
            (None, Some(_)) => problems.push(wrong(
                "store.tls.key",
                "cert is missing: name the file of the certificate's chain",
            )),
            _ => {}
        }
        problems
    }

    /// Every address, with its credentials.
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

/// As it is announced: no user, no password, no parameters.
/// Writes the servers as people know them, without credentials.
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

fn connections(text: &str) -> Result<usize, String> {
    let connections = value::count(text).ok().filter(|count| *count <= CONNECTIONS_MAX);
    connections.ok_or_else(|| {
        format!(
            "{text:?} is no number of connections; write a whole number from 1 to {CONNECTIONS_MAX}"
        )
    })
}

/// What may be shown of a store's address: no user, no password, no parameters.
fn without_credentials(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let shown = rest.split(['?', '#']).next().unwrap_or_default();
    // The last @ of all: a password may hold every one of these characters, even unescaped.
    let host = rest
        .rsplit_once('@')
        .map_or(shown, |(_, host)| host.split(['?', '#']).next().unwrap_or_default());
    format!("{scheme}://{host}")
}

/// As `store.` settings; those of a ring's nodes are `store.ring.nodes.0.name` and so on.
pub(super) const SETTINGS: [&str; 20] = [
    "store.url",
    "store.sentinel.master",
    "store.sentinel.urls",
    "store.cluster",
    "store.ring.number",
    "store.ring.nodes",
    "store.ring.previous",
    "store.ring.previous_number",
    "store.on_state_loss",
    "store.timeout",
    "store.overload_wait",
    "store.connections",
    "store.clock",
    "store.key_secret_file",
    "store.secret_previous_file",
    "store.expected_instances",
    "store.max_keys",
    "store.tls.ca",
    "store.tls.cert",
    "store.tls.key",
];

/// Said of state in memory, they would be a store that somebody forgot to name.
const NEEDS_A_STORE: [&str; 9] = [
    "store.overload_wait",
    "store.on_state_loss",
    "store.connections",
    "store.clock",
    "store.secret_previous_file",
    "store.expected_instances",
    "store.tls.ca",
    "store.tls.cert",
    "store.tls.key",
];
const ON_STATE_LOSS: [(&str, OnStateLoss); 2] =
    [("fresh", OnStateLoss::Fresh), ("exhausted", OnStateLoss::Exhausted)];
const CLOCKS: [(&str, bool); 2] = [("store", false), ("client", true)];
/// More than one task for each core that a machine has.
const CONNECTIONS_MAX: usize = 16;

/// Connections to one server where nothing is set.
const CONNECTIONS_BY_ITSELF: usize = 4;

/// Of one server, beside those of decisions: heartbeats and what operators set.
const CONNECTIONS_BESIDE: usize = 2;

/// Primaries of a Cluster that are assumed.
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
            ("user:secret@host", "://host"),
        ] {
            assert_eq!(without_credentials(url), shown);
        }
    }
}
