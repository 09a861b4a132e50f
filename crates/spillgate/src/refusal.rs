//! Writes a denial as an HTTP response: a status, `Retry-After` if the wait is known, and problem details
//! (RFC 9457).

use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use crate::decision::{Decision, LimitDecision, Reason};
use crate::headers::{Fields, HeaderStyle, PolicyName, enforced_counters, whole_seconds};
use crate::limit::Algorithm;

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;

/// A denied decision, and the HTTP response to it.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use spillgate::http::{HeaderStyle, Refusal};
/// use spillgate::{Limiter, Policy, Request};
///
/// let rule = "[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"1/minute\"]";
/// let policy = Policy::from_toml(rule).unwrap();
/// let limiter = Limiter::builder().policy(policy).build().await.unwrap();
/// let request = Request::new().with("ip", "203.0.113.7");
///
/// assert!(Refusal::of(&limiter.check(&request).await).is_none());
/// let denied = limiter.check(&request).await;
/// let response = Refusal::of(&denied).unwrap().response(HeaderStyle::Ietf);
/// assert_eq!((response.status().as_u16(), &response.headers()["retry-after"]), (429, &"60".parse().unwrap()));
/// # });
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'d> {
    decision: &'d Decision,
    reason: Reason,
    status: Option<StatusCode>,
}

impl<'d> Refusal<'d> {
    /// Returns the response to a denied decision, `None` if the decision is allowed.
    pub fn of(decision: &'d Decision) -> Option<Refusal<'d>> {
        Some(Refusal { decision, reason: decision.reason()?, status: None })
    }

    /// Replaces the status, for proxies that understand only some.
    pub fn with_status(self, status: StatusCode) -> Refusal<'d> {
        Refusal { status: Some(status), ..self }
    }

    /// Returns the reason of the denial.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Returns the denied decision.
    pub fn decision(&self) -> &'d Decision {
        self.decision
    }

    /// Returns the status: 429 if a limit denies, 403 if it blocks, 503 if the store is unavailable or
    /// overloaded. [`Refusal::with_status`] replaces it.
    pub fn status(&self) -> StatusCode {
        self.status.unwrap_or(match self.reason {
            Reason::LimitExceeded | Reason::CostExceedsLimit => StatusCode::TOO_MANY_REQUESTS,
            Reason::Blocked => StatusCode::FORBIDDEN,
            Reason::StoreUnavailable | Reason::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
        })
    }

    /// Returns the value of `Retry-After`: the longest known wait in whole seconds, rounded up. A
    /// concurrency limit has none, since a permit may be released at any time.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.wait().map(whole_seconds)
    }

    /// Returns the names of the limits that deny, as in the header fields.
    pub fn violated_policies(&self) -> impl Iterator<Item = String> {
        self.refusing().map(|(_, name)| name.parts().collect())
    }

    /// Returns the problem details as JSON, to be sent as `application/problem+json`.
    pub fn body(&self) -> String {
        self.body_for(self.status())
    }

    /// Returns the problem details for a response that has another status than [`Refusal::status`].
    pub fn body_for(&self, status: StatusCode) -> String {
        let (problem, title) = match self.reason {
            Reason::Blocked | Reason::CostExceedsLimit | Reason::LimitExceeded => {
                ("quota-exceeded", "Quota exceeded")
            }
            Reason::StoreUnavailable | Reason::Overloaded => {
                ("temporary-reduced-capacity", "Temporarily reduced capacity")
            }
        };
        let detail = match (self.reason, self.retry_after_seconds()) {
            (Reason::LimitExceeded, Some(seconds)) => format!("Try again in {seconds} s."),
            (reason, _) => description(reason).to_owned(),
        };
        // No text here needs escaping: names are A-Z a-z 0-9 _ . / -, and the rest is ours.
        let names: Vec<String> =
            self.violated_policies().map(|name| format!("\"{name}\"")).collect();
        format!(
            "{{\"type\":\"{PROBLEM_TYPES}{problem}\",\"title\":\"{title}\",\"status\":{},\
             \"detail\":\"{detail}\",\"violated-policies\":[{}]}}",
            status.as_u16(),
            names.join(",")
        )
    }

    /// Returns the whole response, with the fields of `style`.
    pub fn response(&self, style: HeaderStyle) -> Response<Vec<u8>> {
        let mut response = Response::new(self.body().into_bytes());
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        self.decision.write_headers(style, headers);
        response
    }

    pub(crate) fn wait(&self) -> Option<Duration> {
        match self.reason {
            Reason::Blocked | Reason::CostExceedsLimit => None,
            Reason::StoreUnavailable | Reason::Overloaded => Some(OUTAGE_WAIT),
            Reason::LimitExceeded => {
                let timed =
                    |counter: &LimitDecision<'_>| counter.algorithm() != Algorithm::Concurrency;
                let refusing = self.refusing().map(|(counter, _)| counter).filter(timed);
                refusing.filter_map(|counter| counter.retry_after()).max()
            }
        }
    }

    fn refusing(&self) -> impl Iterator<Item = (LimitDecision<'d>, PolicyName<'d>)> {
        enforced_counters(self.decision).filter(|(counter, _)| counter.reason().is_some())
    }
}

/// Returns the reason of a denial as a sentence for clients.
pub(crate) fn description(reason: Reason) -> &'static str {
    match reason {
        Reason::Blocked => "Requests like this one are blocked.",
        Reason::CostExceedsLimit => "The cost is larger than the limit can ever hold.",
        Reason::LimitExceeded => "The limit has no room at the moment.",
        Reason::StoreUnavailable => "The rate limiter cannot reach its store.",
        Reason::Overloaded => "The rate limiter is overloaded.",
    }
}

impl Decision {
    /// Adds the fields of a style, and `Retry-After` if the decision is denied and its wait is
    /// known.
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
    /// decision.write_headers(HeaderStyle::Ietf, &mut headers);
    /// assert_eq!(headers["ratelimit-policy"], "\"login\";q=5;w=60");
    /// assert_eq!(headers["ratelimit"], "\"login\";r=4;t=12");
    /// # });
    /// ```
    pub fn write_headers(&self, style: HeaderStyle, headers: &mut HeaderMap) {
        Fields::of(style, self, &[]).add_to(headers);
        let retry_after = Refusal::of(self).and_then(|refusal| refusal.retry_after_seconds());
        if let Some(seconds) = retry_after
            && !headers.contains_key(RETRY_AFTER)
        {
            headers.insert(RETRY_AFTER, seconds.into());
        }
    }
}

const PROBLEM_TYPES: &str = "https://iana.org/assignments/http-problem-types#";
/// The longest time between two attempts of a circuit breaker to reach the store.
const OUTAGE_WAIT: Duration = Duration::from_secs(1);
