//! Warnings about the configuration of a layer. Each is logged once, with its name and a remedy.
//!
//! Settings are checked when the layer is applied to a service. Addresses of requests are checked
//! only for the first [`WATCHED`] requests, to help with a new configuration.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use http::header::{FORWARDED, HeaderName};

use super::{Head, Settings};
use crate::identity::{ByIp, X_FORWARDED_FOR};
use crate::policy::{Mode, Policy, Rule};
use crate::subject::DEFAULT_DOMAIN;

#[derive(Debug, Default)]
pub(crate) struct Diagnostics {
    warned: AtomicU8,
    policy_seen: AtomicBool,
    watched: AtomicU32,
    field_seen: AtomicBool,
}

/// The problems that are detected.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Diagnostic {
    RulesNeverMatch,
    TrustsEveryone,
    NoPeerAddress,
    AddressOfAProxy,
    ForwardedByAStranger,
    ForwardedNeverSeen,
}

impl Diagnostic {
    fn name(self) -> &'static str {
        match self {
            Diagnostic::RulesNeverMatch => "rules-never-match",
            Diagnostic::TrustsEveryone => "trusts-everyone",
            Diagnostic::NoPeerAddress => "no-peer-address",
            Diagnostic::AddressOfAProxy => "address-of-a-proxy",
            Diagnostic::ForwardedByAStranger => "forwarded-by-a-stranger",
            Diagnostic::ForwardedNeverSeen => "forwarded-never-seen",
        }
    }
}

impl Clone for Diagnostics {
    /// Makes fresh diagnostics. A layer with other settings has warnings of its own.
    fn clone(&self) -> Diagnostics {
        Diagnostics::default()
    }
}

impl Diagnostics {
    /// Checks the settings before the first request.
    pub(crate) fn of_settings(&self, settings: &Settings, policy: &Policy) {
        let by_ip = settings.attributes.named.iter().find_map(|(_, identity)| identity.by_ip());
        if by_ip.is_some_and(ByIp::trusts_everyone) {
            self.warn_once(Diagnostic::TrustsEveryone, || {
                "every address is trusted to name the client, so a client can forge its address: trust \
                 only the networks of your proxies"
                    .to_owned()
            });
        }
        self.of_rules(settings, policy);
    }

    /// Checks the policy of a limiter that got it later.
    pub(crate) fn of_policy(&self, settings: &Settings) {
        if !self.policy_seen.load(Ordering::Relaxed) {
            self.of_rules(settings, &settings.limiter.policy());
        }
    }

    /// Checks the source of a request's address, for the first requests.
    pub(crate) fn of_address(&self, by_ip: &ByIp, peer: IpAddr, head: Head<'_>) {
        if self.watched.load(Ordering::Relaxed) >= WATCHED {
            return;
        }
        let number = self.watched.fetch_add(1, Ordering::Relaxed) + 1;
        let field = by_ip.field();
        let forwarded = [X_FORWARDED_FOR, FORWARDED, X_REAL_IP]
            .into_iter()
            .find(|name| head.headers.contains_key(name));
        if head.headers.contains_key(field) && by_ip.trusts(peer) {
            self.field_seen.store(true, Ordering::Relaxed);
        }
        match &forwarded {
            Some(name) if by_ip.is_direct() => {
                self.warn_once(Diagnostic::AddressOfAProxy, || of_a_proxy(name, peer));
            }
            Some(name) if !by_ip.trusts(peer) => {
                self.warn_once(Diagnostic::ForwardedByAStranger, || by_a_stranger(name, peer));
            }
            _ => {}
        }
        let seen = self.field_seen.load(Ordering::Relaxed);
        if number == NEVER_SEEN_AFTER && !by_ip.is_direct() && !seen {
            self.warn_once(Diagnostic::ForwardedNeverSeen, || {
                never_seen(field, forwarded.as_ref())
            });
        }
    }

    pub(crate) fn warn_once(&self, diagnostic: Diagnostic, message: impl FnOnce() -> String) {
        let bit = 1 << diagnostic as u8;
        if self.warned.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            tracing::warn!(target: "spillgate", diagnostic = diagnostic.name(), "{}", message());
        }
    }

    /// Checks that some rule can match. A policy without rules is taken as not loaded yet.
    fn of_rules(&self, settings: &Settings, policy: &Policy) {
        if policy.rules().len() == 0 || self.policy_seen.swap(true, Ordering::Relaxed) {
            return;
        }
        let domain = settings.attributes.domain.as_deref().unwrap_or(DEFAULT_DOMAIN);
        let gives =
            |name: &str| settings.attributes.named.iter().any(|(known, _)| **known == *name);
        let can_match = |rule: &Rule| {
            rule.mode() != Mode::Off && rule.domain() == domain && rule.needs().all(gives)
        };
        if !policy.rules().any(can_match) {
            self.warn_once(Diagnostic::RulesNeverMatch, || {
                let rules: Vec<String> =
                    policy.rules().take(RULES_NAMED).map(what_it_needs).collect();
                let given: Vec<&str> =
                    settings.attributes.named.iter().map(|(name, _)| &**name).collect();
                format!(
                    "no rule of the policy can match: requests have the domain {domain} and the \
                     attributes [{}], but {}: add what is missing with .with(..) or .in_domain(..)",
                    given.join(", "),
                    rules.join("; ")
                )
            });
        }
    }
}

fn what_it_needs(rule: &Rule) -> String {
    if rule.mode() == Mode::Off {
        return format!("rule {} is off", rule.name());
    }
    let needs: Vec<&str> = rule.needs().collect();
    format!(
        "rule {} is for the domain {} and needs [{}]",
        rule.name(),
        rule.domain(),
        needs.join(", ")
    )
}

fn of_a_proxy(field: &HeaderName, peer: IpAddr) -> String {
    format!(
        "a request from {peer} has {field}, but no proxy is trusted: if {peer} is your proxy, all \
         clients behind it are counted as one; write ByIp::trusting([\"{peer}\"]), or its network"
    )
}

fn by_a_stranger(field: &HeaderName, peer: IpAddr) -> String {
    format!(
        "a request from {peer}, which is not trusted, has {field}, and it was ignored: if {peer} is \
         your proxy, add it to ByIp::trusting(..); if not, the client tried to forge its address"
    )
}

fn never_seen(field: &HeaderName, instead: Option<&HeaderName>) -> String {
    let instead = match instead {
        Some(other) => format!("; {other} came instead"),
        None => String::new(),
    };
    format!(
        "proxies are trusted, but none of the first {NEVER_SEEN_AFTER} requests came through one \
         with {field}{instead}: let the proxy send it, choose the field that it sends \
         (ByIp::by_forwarded), or trust the proxy's real address"
    )
}

const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// The number of requests after which addresses are no longer checked.
const WATCHED: u32 = 1_000;
/// High enough that a few health checks, which come without a proxy, cause no warning.
const NEVER_SEEN_AFTER: u32 = 100;
/// The most rules that one warning lists.
const RULES_NAMED: usize = 3;
