//! What rules cannot have at the doors of the service.

use spillgate::{Algorithm, Mode};

use super::super::finding::Level;
use super::super::rules::decides;
use super::{Found, Looked};

/// Forward auth is asked by a proxy: whose address is it, if nobody is believed?
pub(super) fn address_of_proxy(looked: &Looked<'_>) -> Vec<Found> {
    let asked_by_proxy = looked.line_set("server.auth").is_some();
    if !asked_by_proxy || looked.line_set("server.trusted_proxies").is_some() {
        return Vec::new();
    }
    let by_address = looked.rules().filter(|written| {
        decides(written.rule) && written.rule.key().any(|attribute| attribute == "ip")
    });
    let found = by_address.map(|written| {
        let what = "no proxy is trusted, so at /v1/auth every client has the proxy's own address";
        let remedy =
            "name the proxies' networks: trusted_proxies = [\"10.0.0.0/8\"] under [server]";
        written.warning(written.entry.line_of("key"), what, remedy)
    });
    found.collect()
}

/// What proxies ask is asked in the domain `default`.
pub(super) fn auth_without_rules(looked: &Looked<'_>) -> Vec<Found> {
    let auth = looked.line_set("server.auth");
    let has_rules = looked.policy.has_domain("default");
    let found = auth.filter(|_| !has_rules && looked.policy.rules().len() > 0).map(|line| Found {
        level: Level::Warning,
        line,
        rule: None,
        what: "proxies ask in the domain \"default\", and no rule is for it".to_owned(),
        remedy: "leave the domain out of the rules that are for proxies".to_owned(),
    });
    found.into_iter().collect()
}

pub(super) fn permits_end_at_max_hold(looked: &Looked<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for written in looked.rules().filter(|written| written.rule.mode() != Mode::Off) {
        for (position, limit) in written.rule.limits().enumerate() {
            if limit.algorithm() == Algorithm::Concurrency && limit.capacity().is_some() {
                let what = format!(
                    "forward auth, Envoy's rate limit service and CL.THROTTLE cannot release the permits of {limit}: they end at `max_hold` only"
                );
                let remedy = "use HTTP, SG.RESERVE or the library, which can release, or make `max_hold` as long as a call takes";
                found.push(written.note(written.entry.line_of_limit(position), what, remedy));
            }
        }
    }
    found
}
