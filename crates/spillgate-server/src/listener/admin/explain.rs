//! Explains how a request would be decided, without charging it: `?domain=web&attr.ip=203.0.113.7&cost=2`.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use hyper::Uri;
use serde::Serialize;
use spillgate::explain::{ExplainedLimit, ExplainedRule, Explanation, OverriddenBy, Raise};
use spillgate::{Cost, Reason, Request};

use super::Problem;
use super::subject::{TWICE, attribute, once, parameters};
use crate::app::App;
use crate::bounds::{LONG_NAME_MAX, NAME_MAX};
use crate::listener::http::answer::{self, ms_up};

#[derive(Serialize)]
struct ExplainedAnswer<'e> {
    allowed: bool,
    reason: Option<&'static str>,
    sentence: String,
    rule: Option<&'e str>,
    limit: Option<&'e str>,
    retry_after_ms: Option<u64>,
    source: &'static str,
    degraded: bool,
    limits: Vec<LimitAnswer<'e>>,
    rules: Vec<RuleAnswer<'e>>,
    rules_left_out: usize,
    /// Rules of other domains that would match the request there.
    other_domains: Vec<OtherDomain<'e>>,
    /// A sentence about each name of the request that no rule of its domain uses.
    unused: Vec<String>,
}

#[derive(Serialize)]
struct OtherDomain<'e> {
    rule: &'e str,
    domain: &'e str,
}

#[derive(Serialize)]
struct LimitAnswer<'e> {
    rule: Option<&'e str>,
    limit: &'e str,
    quota: String,
    algorithm: &'static str,
    unit: &'e str,
    cost: u64,
    capacity: Option<u64>,
    used: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    allowed: bool,
    reason: Option<&'static str>,
    source: &'static str,
    shadow: bool,
    sentence: String,
    raise: Option<RaiseAnswer<'e>>,
}

#[derive(Serialize)]
struct RaiseAnswer<'e> {
    quota: &'e str,
    remaining: u64,
    fits: bool,
    sentence: String,
}

#[derive(Serialize)]
struct RuleAnswer<'e> {
    name: &'e str,
    mode: &'static str,
    matched: bool,
    /// The reason for which the request does not match the rule.
    why: Option<String>,
    overridden: Option<&'static str>,
}

pub async fn show(State(app): State<App>, uri: Uri) -> Result<Response, Problem> {
    let request = request_in(&uri)?;
    let unused = app.require_names(&request)?;
    let explained = app.limiter().explain(&request).await;
    let unused = unused.iter().map(|sentence| sentence.to_string()).collect();
    let answer = ExplainedAnswer { unused, ..ExplainedAnswer::new(&explained) };
    let items = 1 + answer.limits.len() + answer.rules.len();
    Ok(answer::json(&answer, answer::ANSWER_BYTES * items))
}

/// Reads the request that a query describes.
pub fn request_in(uri: &Uri) -> Result<Request<'_>, Problem> {
    let (mut request, mut domain, mut requests) = (Request::new(), None, None);
    let mut by_unit = BTreeMap::new();
    for (name, value) in parameters(uri) {
        match name.as_ref() {
            _ if name.starts_with("attr.") => request = attribute(request, &name, value)?,
            "domain" if (1..=LONG_NAME_MAX).contains(&value.len()) => {
                once(&mut domain, &name, value)?
            }
            "domain" => return Err(Problem::in_field("domain", "a domain has 1 to 1024 bytes")),
            "cost" => once(&mut requests, &name, amount(&name, &value)?)?,
            _ => {
                let unit = name.strip_prefix("cost.");
                let unit = unit.filter(|unit| (1..=NAME_MAX).contains(&unit.len()));
                let unit = unit.ok_or_else(|| Problem::in_field(&name, NO_SUCH_PARAMETER))?;
                if by_unit.insert(unit.to_owned(), amount(&name, &value)?).is_some() {
                    return Err(Problem::in_field(&name, TWICE));
                }
            }
        }
    }
    if let Some(domain) = domain {
        request = request.in_domain(domain);
    }
    // `cost.requests` replaces `cost`: the command line sends both.
    let requests = requests.map_or_else(Cost::default, Cost::requests);
    Ok(request.costing(by_unit.into_iter().fold(requests, |cost, (unit, n)| cost.and(unit, n))))
}

fn amount(name: &str, value: &str) -> Result<u64, Problem> {
    value.parse().map_err(|_| {
        let message = format!("expected a whole number, got {value:?}; write for example cost=2");
        Problem::in_field(name, &message)
    })
}

impl<'e> ExplainedAnswer<'e> {
    fn new(explained: &'e Explanation) -> ExplainedAnswer<'e> {
        let answer = explained.answer();
        ExplainedAnswer {
            allowed: answer.allowed(),
            reason: answer.reason().map(Reason::as_str),
            sentence: explained.sentence(),
            rule: answer.rule(),
            limit: answer.limit(),
            retry_after_ms: answer.retry_after().map(ms_up),
            source: answer.source().name(),
            degraded: answer.degraded(),
            limits: explained.limits().map(|limit| LimitAnswer::new(&limit)).collect(),
            rules: explained.rules().iter().map(RuleAnswer::new).collect(),
            rules_left_out: explained.left_out(),
            other_domains: explained.elsewhere().iter().map(OtherDomain::new).collect(),
            unused: Vec::new(),
        }
    }
}

impl<'e> OtherDomain<'e> {
    fn new((rule, domain): &'e (String, String)) -> OtherDomain<'e> {
        OtherDomain { rule, domain }
    }
}

impl<'e> LimitAnswer<'e> {
    fn new(limit: &ExplainedLimit<'e>) -> LimitAnswer<'e> {
        let decision = limit.decision();
        LimitAnswer {
            rule: decision.rule(),
            limit: decision.limit(),
            quota: decision.definition().to_string(),
            algorithm: decision.algorithm().name(),
            unit: decision.unit(),
            cost: limit.cost(),
            capacity: decision.capacity(),
            used: limit.used(),
            remaining: decision.remaining(),
            retry_after_ms: decision.retry_after().map(ms_up),
            reset_after_ms: decision.reset_after().map(ms_up),
            allowed: decision.reason().is_none(),
            reason: decision.reason().map(Reason::as_str),
            source: decision.source().name(),
            shadow: decision.shadow(),
            sentence: limit.sentence(),
            raise: limit.raise().map(RaiseAnswer::new),
        }
    }
}

impl<'e> RaiseAnswer<'e> {
    fn new(raise: &'e Raise) -> RaiseAnswer<'e> {
        let (remaining, fits) = (raise.remaining(), raise.fits());
        RaiseAnswer { quota: raise.quota(), remaining, fits, sentence: raise.sentence() }
    }
}

impl<'e> RuleAnswer<'e> {
    fn new(rule: &'e ExplainedRule) -> RuleAnswer<'e> {
        RuleAnswer {
            name: rule.name(),
            mode: rule.mode().name(),
            matched: rule.not_matched().is_none(),
            why: rule.not_matched().map(ToString::to_string),
            overridden: rule.overridden().map(|by| match by {
                OverriddenBy::File => "file",
                OverriddenBy::Operator => "operator",
            }),
        }
    }
}

const NO_SUCH_PARAMETER: &str =
    "no such parameter; there are domain, attr.NAME for each attribute, cost and cost.UNIT";
