//! Finds rules that do not work at some API of the service.

use spillgate::Mode;

use super::super::finding::Level;
use super::super::rules::decides;
use super::{Checked, Finding};
use crate::counted;

/// Forward auth is called by a proxy. Unless that proxy is trusted, every request has the proxy's address.
pub fn address_of_proxy(checked: &Checked<'_>) -> Vec<Finding> {
    let auth_is_set = checked.line_set("server.auth").is_some();
    if !auth_is_set || checked.line_set("server.trusted_proxies").is_some() {
        return Vec::new();
    }
    let by_address = checked.rules().filter(|written| {
        decides(written.rule) && written.rule.key().any(|attribute| attribute == "ip")
    });
    let found = by_address.map(|written| {
        let problem =
            "no proxy is trusted, so at /v1/auth every client has the proxy's own address, and no method, host or path";
        let remedy =
            "name the proxies' networks: trusted_proxies = [\"10.0.0.0/8\"] under [server]";
        written.warning(written.entry.line_of("key"), problem, remedy)
    });
    found.collect()
}

/// A client that is trusted as a proxy names its own address, a new one for each request.
pub fn trusts_everyone(checked: &Checked<'_>) -> Vec<Finding> {
    let line =
        checked.line_set("server.trusted_proxies").filter(|_| checked.service.trusts_everyone);
    let found = line.map(|line| Finding {
        code: "",
        level: Level::Warning,
        line,
        rule: None,
        problem: "a trusted network is so wide that clients are in it, and any client could name another address, \
                  host and path with each request"
            .to_owned(),
        remedy: "name the networks of the proxies alone, such as \"10.0.0.0/8\"".to_owned(),
    });
    found.into_iter().collect()
}

/// Forward auth checks in the domain `default`, so that domain needs rules.
pub fn auth_without_rules(checked: &Checked<'_>) -> Vec<Finding> {
    let auth = checked.line_set("server.auth");
    let has_rules = checked.policy.has_domain("default");
    let found =
        auth.filter(|_| !has_rules && checked.policy.rules().len() > 0).map(|line| Finding {
            code: "",
            level: Level::Warning,
            line,
            rule: None,
            problem: "forward auth checks in the domain \"default\", and no rule has that domain"
                .to_owned(),
            remedy: "leave the domain out of the rules for proxies".to_owned(),
        });
    found.into_iter().collect()
}

/// Forward auth sends some attributes only, so its requests do not match a rule that needs another one. One finding names
/// all such rules, since other APIs may ask about them.
pub fn not_sent_by_proxies(checked: &Checked<'_>) -> Vec<Finding> {
    if checked.line_set("server.auth").is_none() {
        return Vec::new();
    }
    let sent = &checked.service.auth_attributes;
    let asked = checked.rules().filter(|one| decides(one.rule) && one.rule.domain() == "default");
    let mut unmatched = asked.filter_map(|written| {
        let missing =
            written.rule.needs().find(|needed| !sent.iter().any(|sent| sent == needed))?;
        Some((written, missing))
    });
    let Some((first, missing)) = unmatched.next() else { return Vec::new() };
    let more = match unmatched.count() {
        0 => String::new(),
        count => format!(", and the same holds for {}", counted(count, "further rule")),
    };
    let is_matched = first.rule.matches().any(|(attribute, _)| attribute == missing);
    let line = first.entry.line_of(if is_matched { "match" } else { "key" });
    let problem = format!(
        "forward auth sends no {missing:?}, so the rule matches none of its requests{more}"
    );
    let remedy = "if proxies ask about it, use ip, method, host or path, or a header or parameter that server.auth names";
    vec![first.note(line, problem, remedy)]
}

/// Only some APIs release the permits of a concurrency limit.
pub fn permits_end_at_max_hold(checked: &Checked<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for written in checked.rules().filter(|written| written.rule.mode() != Mode::Off) {
        for (position, limit) in written.rule.limits().enumerate() {
            if limit.algorithm().counts_permits() && limit.capacity().is_some() {
                let problem = format!(
                    "forward auth, Envoy's rate limit service and CL.THROTTLE cannot release the permits of {limit}: they end at `max_hold` only"
                );
                let remedy = "use HTTP, SG.RESERVE or the library, which can release, or make `max_hold` as long as a call takes";
                found.push(written.note(written.entry.line_of_limit(position), problem, remedy));
            }
        }
    }
    found
}
