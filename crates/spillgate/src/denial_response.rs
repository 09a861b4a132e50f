//! Writes a denial as an HTTP response: a status, `Retry-After` if the wait is known, and problem details
//! (RFC 9457). A rule can replace status and body, and add header fields.

use std::cmp::Reverse;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use crate::decision::{self, Decision, LimitDecision, Reason};
use crate::headers::{Fields, HeaderStyle, PolicyName, enforced_counters, whole_seconds};
use crate::policy::{DenialBody, RuleDenial};

/// A denied decision, and the HTTP response to it.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use spillgate::http::{HeaderStyle, DenialResponse};
/// use spillgate::{Limiter, Policy, Request};
///
/// let rule = "[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"1/minute\"]";
/// let policy = Policy::from_toml(rule).unwrap();
/// let limiter = Limiter::builder().policy(policy).build().await.unwrap();
/// let request = Request::new().with("ip", "203.0.113.7");
///
/// assert!(DenialResponse::from_decision(&limiter.check(&request).await).is_none());
/// let denied = limiter.check(&request).await;
/// let response = DenialResponse::from_decision(&denied).unwrap().response(HeaderStyle::Ietf);
/// assert_eq!((response.status().as_u16(), &response.headers()["retry-after"]), (429, &"60".parse().unwrap()));
/// # });
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DenialResponse<'d> {
    decision: &'d Decision,
    reason: Reason,
    status: Option<StatusCode>,
}

impl<'d> DenialResponse<'d> {
    /// Returns the response to a denied decision, `None` if the decision is allowed.
    pub fn from_decision(decision: &'d Decision) -> Option<DenialResponse<'d>> {
        Some(DenialResponse { decision, reason: decision.reason()?, status: None })
    }

    /// Replaces the status, for proxies that understand only some.
    pub fn with_status(self, status: StatusCode) -> DenialResponse<'d> {
        DenialResponse { status: Some(status), ..self }
    }

    /// Returns the reason of the denial.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Returns the denied decision.
    pub fn decision(&self) -> &'d Decision {
        self.decision
    }

    /// Returns whether the rule sets any part of the response.
    pub fn is_of_rule(&self) -> bool {
        self.rule_denial().is_some()
    }

    /// Returns the status: that of the rule's [`denial`](crate::Rule::denial), else 429 if a limit denies, 403 if it
    /// blocks, 503 if the store is unavailable or overloaded. [`DenialResponse::with_status`] replaces it.
    pub fn status(&self) -> StatusCode {
        let of_rule = || StatusCode::from_u16(self.rule_denial()?.status()?).ok();
        self.status.or_else(of_rule).unwrap_or(match self.reason {
            Reason::Blocked => StatusCode::FORBIDDEN,
            Reason::StoreUnavailable | Reason::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::TOO_MANY_REQUESTS,
        })
    }

    /// Returns the type of the body as `Content-Type`, and the header fields of the rule's denial.
    pub fn headers(&self) -> HeaderMap {
        let media_type = match self.rule_denial().and_then(RuleDenial::body) {
            Some(DenialBody::Text(_)) => "text/plain; charset=utf-8",
            Some(DenialBody::Json(_)) => "application/json",
            Some(DenialBody::Problem(_)) | None => "application/problem+json",
        };
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        for (name, value) in self.rule_denial().into_iter().flat_map(RuleDenial::headers) {
            // A policy has only valid fields.
            if let (Ok(name), Ok(value)) =
                (HeaderName::try_from(name), HeaderValue::try_from(value))
            {
                headers.insert(name, value);
            }
        }
        headers
    }

    /// Returns the value of `Retry-After`: the longest known wait in whole seconds, rounded up. A
    /// concurrency limit has none, since a permit may be released at any time.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.wait().map(whole_seconds)
    }

    /// Returns the names of the limits that deny, as in the header fields.
    pub fn violated_policies(&self) -> impl Iterator<Item = String> {
        self.denying().map(|(_, name)| name.parts().collect())
    }

    /// Returns the body: that of the rule's denial, else problem details as JSON. [`DenialResponse::headers`] has its type.
    pub fn body(&self) -> String {
        self.body_for(self.status())
    }

    /// Returns the body for a response that has another status than [`DenialResponse::status`].
    pub fn body_for(&self, status: StatusCode) -> String {
        match self.rule_denial().and_then(RuleDenial::body) {
            Some(DenialBody::Text(text) | DenialBody::Json(text)) => text.to_string(),
            Some(DenialBody::Problem(members)) => self.problem(status, members),
            None => self.problem(status, &[]),
        }
    }

    /// Returns the problem details. `own` are the members of the rule: names and values as JSON.
    fn problem(&self, status: StatusCode, own: &[(Box<str>, Box<str>)]) -> String {
        let (problem, title) = match self.reason {
            Reason::StoreUnavailable | Reason::Overloaded => {
                ("temporary-reduced-capacity", "Temporarily reduced capacity")
            }
            _ => ("quota-exceeded", "Quota exceeded"),
        };
        let detail = match (self.reason, self.retry_after_seconds()) {
            (Reason::LimitExceeded, Some(seconds)) => format!("Try again in {seconds} s."),
            (reason, _) => description(reason).to_owned(),
        };
        // No text here needs escaping: names are A-Z a-z 0-9 _ . / -, and the rest is ours.
        let names: Vec<String> =
            self.violated_policies().map(|name| format!("\"{name}\"")).collect();
        let usual = [
            ("type", format!("\"{PROBLEM_TYPES}{problem}\"")),
            ("title", format!("\"{title}\"")),
            ("status", status.as_str().to_owned()),
            ("detail", format!("\"{detail}\"")),
            ("violated-policies", format!("[{}]", names.join(","))),
        ];
        let replacing = |name: &str| own.iter().find(|(known, _)| **known == *name);
        let mut members: Vec<String> = Vec::with_capacity(usual.len() + own.len());
        for (name, value) in &usual {
            let value = replacing(name).map_or(&**value, |(_, own)| &**own);
            members.push(format!("\"{name}\":{value}"));
        }
        for (name, value) in
            own.iter().filter(|(name, _)| usual.iter().all(|(known, _)| **known != **name))
        {
            members.push(format!("\"{name}\":{value}"));
        }
        format!("{{{}}}", members.join(","))
    }

    /// Returns the whole response, with the fields of `style`.
    pub fn response(&self, style: HeaderStyle) -> Response<Vec<u8>> {
        let mut response = Response::new(self.body().into_bytes());
        *response.status_mut() = self.status();
        *response.headers_mut() = self.headers();
        style.write(self.decision, response.headers_mut());
        response
    }

    /// Adds `Retry-After` if the wait is known. A field that exists already stays.
    pub(crate) fn write_retry_after(&self, headers: &mut HeaderMap) {
        if let Some(seconds) = self.retry_after_seconds() {
            headers.entry(RETRY_AFTER).or_insert(seconds.into());
        }
    }

    /// Returns the denial of the rule that decides, if it has one. An outage has the usual response, since the rule's is
    /// about its limits.
    ///
    /// Of several rules, that of the deciding limit decides. If the store did not answer for some limit, it is the
    /// deciding one of the others.
    fn rule_denial(&self) -> Option<&'d RuleDenial> {
        if matches!(self.reason, Reason::StoreUnavailable | Reason::Overloaded) {
            return None;
        }
        let denying = self.denying().map(|(counter, _)| counter);
        let denying = denying.filter(|counter| counter.reason() == Some(self.reason));
        let wait = |counter: &LimitDecision<'_>| counter.retry_after().unwrap_or(Duration::MAX);
        decision::rule_denial(&denying.min_by_key(|counter| Reverse(wait(counter)))?)
    }

    pub(crate) fn wait(&self) -> Option<Duration> {
        match self.reason {
            Reason::Blocked | Reason::CostExceedsLimit => None,
            Reason::StoreUnavailable | Reason::Overloaded => Some(OUTAGE_WAIT),
            _ => {
                let timed = |counter: &LimitDecision<'_>| !counter.algorithm().counts_permits();
                let denying = self.denying().map(|(counter, _)| counter).filter(timed);
                denying.filter_map(|counter| counter.retry_after()).max()
            }
        }
    }

    /// Returns the counters that deny. One without room denies nothing if its rule is post-paid.
    fn denying(&self) -> impl Iterator<Item = (LimitDecision<'d>, PolicyName<'d>)> {
        enforced_counters(self.decision).filter(|(counter, _)| counter.denies())
    }
}

/// Returns the reason of a denial as a sentence for clients.
pub(crate) fn description(reason: Reason) -> &'static str {
    match reason {
        Reason::Blocked => "Requests like this one are blocked.",
        Reason::CostExceedsLimit => "The cost is larger than the limit can ever hold.",
        Reason::StoreUnavailable => "The rate limiter cannot reach its store.",
        Reason::Overloaded => "The rate limiter is overloaded.",
        _ => "The limit has no room at the moment.",
    }
}

impl HeaderStyle {
    /// Adds the fields of this style for a decision, and `Retry-After` if the decision is denied
    /// and its wait is known.
    ///
    /// Fields that exist already stay and are not repeated, since the service that wrote them knows
    /// more.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use http::HeaderMap;
    /// use spillgate::http::HeaderStyle;
    /// use spillgate::{Limiter, Policy, Request};
    ///
    /// let rule = "[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"5/minute\"]";
    /// let policy = Policy::from_toml(rule).unwrap();
    /// let limiter = Limiter::builder().policy(policy).build().await.unwrap();
    ///
    /// let decision = limiter.check(&Request::new().with("ip", "203.0.113.7")).await;
    /// let mut headers = HeaderMap::new();
    /// HeaderStyle::Ietf.write(&decision, &mut headers);
    /// assert_eq!(headers["ratelimit-policy"], "\"login\";q=5;w=60");
    /// assert_eq!(headers["ratelimit"], "\"login\";r=4;t=12");
    /// # });
    /// ```
    pub fn write(self, decision: &Decision, headers: &mut HeaderMap) {
        Fields::new(self, decision, &[]).add_to(headers);
        if let Some(denial) = DenialResponse::from_decision(decision) {
            denial.write_retry_after(headers);
        }
    }
}

const PROBLEM_TYPES: &str = "https://iana.org/assignments/http-problem-types#";
/// The longest time between two attempts of a circuit breaker to reach the store.
const OUTAGE_WAIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::decision::{CounterOutcome, Names};
    use crate::policy::Policy;

    #[test]
    fn a_rule_that_the_store_did_not_answer_leaves_the_response_to_the_other() {
        let rule = |name: &str, status: u16| {
            format!(
                "[[rule]]\nname = \"{name}\"\nkey = []\nlimits = [\"1/s\"]\ndenial.status = {status}\n"
            )
        };
        let policy = Policy::from_toml(&(rule("away", 402) + &rule("full", 420))).unwrap();
        let names = Names::Policy(Arc::new(policy));
        let outcome = |rule: u32, reason, retry_after_us: Option<u64>| CounterOutcome {
            rule: Some(rule).into(),
            denied: Some(reason),
            retry_after_us: retry_after_us.into(),
            ..CounterOutcome::inline()
        };
        let away = outcome(0, Reason::StoreUnavailable, None);
        let full = outcome(1, Reason::LimitExceeded, Some(1));
        let decision = decision::from_counters([away, full].into_iter().collect(), names);
        assert_eq!(decision.rule(), Some("away"), "its wait is unknown, which is longest");
        let denial = DenialResponse::from_decision(&decision).unwrap();
        assert_eq!((denial.reason(), denial.status().as_u16()), (Reason::LimitExceeded, 420));
    }
}
