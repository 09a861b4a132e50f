//! Every setting: its name, and how its value is taken. File, environment and flags give values by these names.

use std::path::PathBuf;

use spillgate::policy::nearest;

use super::envoy::ON_OUTAGE_DENY;
use super::store::{DENIALS_OFF, Nodes, ON_STATE_LOSS, Topology, connections};
use super::telemetry::{FORMATS, LEVELS};
use super::{Given, Names, Original, Settings, auth, envoy, value};

/// Takes the value of a setting.
type Take = fn(&mut Settings, &str, &Given) -> Result<(), String>;

impl Settings {
    /// Applies one setting.
    pub(crate) fn set(&mut self, given: &Given) -> Result<(), String> {
        let name = &given.name;
        let Some((_, take)) = SETTINGS.iter().find(|(known, _)| known == name) else {
            return Err(unknown(name));
        };
        match &given.value {
            Some(text) => take(self, text, given),
            // The nodes of a ring were tables.
            None => Err(gone(&format!("{name}.")).unwrap_or(TAKES).to_owned()),
        }
    }
}

/// Returns the names of all settings.
pub fn setting_names() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|(name, _)| *name)
}

/// Returns the setting that an unknown name most likely means; `None` if all differ too much to be a typing mistake.
pub fn closest(name: &str) -> Option<&'static str> {
    nearest(name, &setting_names().collect::<Vec<_>>())
}

/// Returns what to do in place of a setting that is gone; `None` for other names.
pub fn gone(name: &str) -> Option<&'static str> {
    let is = |gone: &str| name == gone || gone.ends_with('.') && name.starts_with(gone);
    GONE.iter().find(|(gone, _)| is(gone)).map(|(_, remedy)| *remedy)
}

/// Returns the problem of a name that no setting has.
fn unknown(name: &str) -> String {
    if let Some(remedy) = gone(name) {
        return format!("no such setting; {remedy}");
    }
    match closest(name) {
        Some(closest) => format!("no such setting; did you mean `{closest}`?"),
        None => "no such setting; `spillgate validate --schema` lists all settings".to_owned(),
    }
}

fn put<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

fn file(place: &mut Option<PathBuf>, path: &str) -> Result<(), String> {
    *place = Some(path.into());
    Ok(())
}

const SETTINGS: &[(&str, Take)] = &[
    ("server.http", |s, v, _| put(&mut s.http, value::address(v))),
    ("server.grpc.address", |s, v, _| put(&mut s.grpc, value::address(v))),
    ("server.grpc.timeout", |s, v, _| put(&mut s.envoy.timeout, value::duration(v))),
    ("server.grpc.on_outage_deny", |s, v, _| {
        put(&mut s.envoy.on_outage_deny, value::choice(v, &ON_OUTAGE_DENY))
    }),
    ("server.grpc.headers", |s, v, _| put(&mut s.envoy.headers, envoy::headers(v))),
    ("server.grpc.dynamic_metadata", |s, v, _| {
        put(&mut s.envoy.dynamic_metadata, value::boolean(v))
    }),
    ("server.name", |s, v, _| put(&mut s.name, Ok(Some(v.to_owned())))),
    ("server.domains", |s, v, _| put(&mut s.domains, value::choice(v, &NAMES))),
    ("server.attributes", |s, v, _| put(&mut s.attributes, value::choice(v, &NAMES))),
    ("server.units", |s, v, _| put(&mut s.units, value::choice(v, &NAMES))),
    ("server.resp.address", |s, v, _| put(&mut s.resp, value::address(v))),
    ("server.resp.password_file", |s, v, _| file(&mut s.resp_password_file, v)),
    ("server.admin", |s, v, _| put(&mut s.admin, value::address(v))),
    ("server.insecure", |s, v, _| put(&mut s.insecure, value::boolean(v))),
    ("server.data_token_file", |s, v, _| file(&mut s.data_token_file, v)),
    ("server.admin_token_file", |s, v, _| file(&mut s.admin_token_file, v)),
    ("server.trusted_proxies", |s, v, _| put(&mut s.trusted_proxies, value::networks(v))),
    ("server.auth.original", |s, v, _| put(&mut s.auth.original, Original::named(v))),
    ("server.auth.headers", |s, v, _| put(&mut s.auth.headers, auth::headers(v))),
    ("server.auth.query", |s, v, _| put(&mut s.auth.query, auth::parameters(v))),
    ("server.auth.deny_status", |s, v, _| {
        put(&mut s.auth.deny_status, auth::deny_status(v).map(Some))
    }),
    ("server.tls.cert", |s, v, _| file(&mut s.tls.cert, v)),
    ("server.tls.key", |s, v, _| file(&mut s.tls.key, v)),
    ("server.tls.client_ca", |s, v, _| file(&mut s.tls.client_ca, v)),
    ("store.url", |s, v, g| s.store.name(Topology::Url(value::store_url(v)?), &g.origin)),
    ("store.sentinel.master", |s, v, g| {
        let (_, urls) = s.store.sentinels();
        s.store.name(Topology::Sentinel { master: v.to_owned(), urls }, &g.origin)
    }),
    ("store.sentinel.urls", |s, v, g| {
        let ((master, _), urls) = (s.store.sentinels(), value::store_urls(v)?);
        s.store.name(Topology::Sentinel { master, urls }, &g.origin)
    }),
    ("store.sentinel.password_file", |s, v, _| file(&mut s.store.sentinel_password_file, v)),
    ("store.cluster", |s, v, g| s.store.name(Topology::Cluster(value::store_urls(v)?), &g.origin)),
    ("store.ring.nodes", |s, v, g| s.store.name(Topology::Ring(Nodes::parse(v)?), &g.origin)),
    ("store.on_state_loss", |s, v, _| {
        put(&mut s.store.on_state_loss, value::choice(v, &ON_STATE_LOSS).map(Some))
    }),
    ("store.timeout", |s, v, _| put(&mut s.store.timeout, value::duration(v).map(Some))),
    ("store.overload_wait", |s, v, _| {
        put(&mut s.store.overload_wait, value::duration(v).map(Some))
    }),
    ("store.connections", |s, v, _| put(&mut s.store.connections, connections(v).map(Some))),
    ("store.password_file", |s, v, _| file(&mut s.store.password_file, v)),
    ("store.key_secret_file", |s, v, _| file(&mut s.store.key_secret_file, v)),
    ("store.namespace", |s, v, g| {
        put(&mut s.store.namespace, Ok(Some((v.to_owned(), g.origin.clone()))))
    }),
    ("store.expected_instances", |s, v, _| {
        put(&mut s.store.expected_instances, value::count(v).map(Some))
    }),
    ("store.denials", |s, v, _| put(&mut s.store.without_denials, value::choice(v, &DENIALS_OFF))),
    ("store.max_keys", |s, v, _| put(&mut s.store.max_keys, value::count(v).map(Some))),
    ("store.tls.ca", |s, v, _| file(&mut s.store.tls.ca, v)),
    ("store.tls.cert", |s, v, _| file(&mut s.store.tls.cert, v)),
    ("store.tls.key", |s, v, _| file(&mut s.store.tls.key, v)),
    ("telemetry.log.level", |s, v, _| put(&mut s.log.level, value::choice(v, &LEVELS))),
    ("telemetry.log.format", |s, v, _| put(&mut s.log.format, value::choice(v, &FORMATS))),
    ("telemetry.otlp.collector", |s, v, _| put(&mut s.otlp.collector, value::collector(v))),
    ("telemetry.otlp.sample", |s, v, _| put(&mut s.otlp.sample, value::sample(v))),
    ("telemetry.audit_subjects", |s, v, _| put(&mut s.log.audit_subjects, value::boolean(v))),
];

/// Settings that are gone, or that only seem to exist, or all that begin with a name, and what to do instead.
const GONE: &[(&str, &str)] = &[
    ("store.redis", "write its address as store.url"),
    ("server.grpc", "write its address as server.grpc.address"),
    ("server.resp", "write its address as server.resp.address"),
    ("telemetry.log", "write its level as telemetry.log.level"),
    ("telemetry.metrics", "decisions are always counted, so leave this out"),
    ("telemetry.otlp", "write the collector's address as telemetry.otlp.collector"),
    (
        "telemetry.otlp.metrics_every",
        "let the collector scrape /metrics of the admin listener, with its Prometheus receiver",
    ),
    ("telemetry.top", "subjects are always sampled, so leave this out"),
    (
        "store.clock",
        "the store's clock always decides, so leave it out; a store that bars TIME in scripts cannot be used",
    ),
    ("store.ring.number", "a ring is known by its nodes and their weights, so leave it out"),
    (
        "store.ring.nodes.",
        "write each node as a string, such as nodes = [\"a=redis://10.0.0.1:6379\", \"b*2=redis://10.0.0.2:6379\"]",
    ),
    ("store.ring.previous", CHANGE_RING),
    ("store.ring.previous.", CHANGE_RING),
    ("store.ring.previous_number", CHANGE_RING),
    (
        "store.secret_previous_file",
        "restart all instances with the new key_secret_file; while both secrets are in use, each subject can \
         get up to twice its limit",
    ),
];
const CHANGE_RING: &str = "restart all instances with the new nodes; while both rings are in use, each subject \
    that moves can get up to twice its limit";

const NAMES: [(&str, Names); 2] = [("open", Names::Open), ("known", Names::Known)];
const TAKES: &str =
    "takes a string, a whole number, true or false, or a list of strings without commas";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_mistake_finds_the_setting_and_other_names_find_none() {
        for (name, expected) in [
            ("server.httpp", Some("server.http")),
            ("store.ulr", Some("store.url")),
            ("store.tls.caa", Some("store.tls.ca")),
            ("telemetry.log_level", Some("telemetry.log.level")),
            ("server.resp.password", Some("server.resp.password_file")),
            ("server", None),
            ("store.compression", None),
            ("telemetry.dashboard.refresh", None),
        ] {
            assert_eq!(closest(name), expected, "{name}");
        }
    }
}
