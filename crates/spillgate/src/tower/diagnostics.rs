//! What is wrong with a layer as it was set up, each said once, by name, with the way out.
//!
//! The settings are looked at when the layer is put before a service, the addresses of requests only
//! until [`WATCHED`] have come by: this is for the first minutes of a new set-up.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use http::header::{FORWARDED, HeaderName};

use super::{Head, Settings};
use crate::identity::{ByIp, X_FORWARDED_FOR};
use crate::policy::{Mode, Policy, Rule};
use crate::subject::DEFAULT_DOMAIN;

#[derive(Debug, Default)]
pub(super) struct Diagnostics {
    warned: AtomicU8,
    policy_seen: AtomicBool,
    watched: AtomicU32,
    field_seen: AtomicBool,
}

/// What can be wrong.
#[derive(Clone, Copy, Debug)]
pub(super) enum Diagnostic {
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
    /// Other settings make another layer, with warnings of its own.
    fn clone(&self) -> Diagnostics {
        Diagnostics::default()
    }
}

impl Diagnostics {
    /// What shows before the first request.
    pub(super) fn of_settings(&self, settings: &Settings, policy: &Policy) {
        let by_ip = settings.attributes.named.iter().find_map(|(_, identity)| identity.by_ip());
        if by_ip.is_some_and(ByIp::trusts_everyone) {
            self.warn_once(Diagnostic::TrustsEveryone, || {
                "every address is trusted to name the client, so a client can call itself what it \
                 likes: trust the networks of your proxies alone"
                    .to_owned()
            });
        }
        self.of_rules(settings, policy);
    }

    /// The same for a limiter that was given its policy later.
    pub(super) fn of_policy(&self, settings: &Settings) {
        if !self.policy_seen.load(Ordering::Relaxed) {
            self.of_rules(settings, &settings.limiter.policy());
        }
    }

    /// How a request came by an address, as long as that is news.
    pub(super) fn of_address(&self, by_ip: &ByIp, peer: IpAddr, head: Head<'_>) {
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

    pub(super) fn warn_once(&self, diagnostic: Diagnostic, message: impl FnOnce() -> String) {
        let bit = 1 << diagnostic as u8;
        if self.warned.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            tracing::warn!(target: "spillgate", diagnostic = diagnostic.name(), "{}", message());
        }
    }

    /// A policy without rules is one that is still to come.
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
         your proxy, add it to ByIp::trusting(..); if not, somebody tried to pass as somebody else"
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
/// Requests after which the addresses are no news any more.
const WATCHED: u32 = 1_000;
/// Enough that a few health checks, which come without a proxy, are no reason.
const NEVER_SEEN_AFTER: u32 = 100;
/// Rules that one warning names.
const RULES_NAMED: usize = 3;
