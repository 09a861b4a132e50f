//! What a refusal says over HTTP: a status, when to come back if that is known, and why, as problem
//! details (RFC 9457).

use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use crate::decision::{Decision, Reason, Source, TierDecision, Verdict};
use crate::headers::{Fields, HeaderStyle, PolicyName, enforced_tiers, whole_seconds};
use crate::limit::Algorithm;

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;

/// A decision that does not allow, and what to answer.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use spillgate::{HeaderStyle, Limiter, Policy, Refusal, Request};
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
    kind: RefusalKind,
    status: Option<StatusCode>,
}

/// Why a decision does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalKind {
    /// There is no room now: 429.
    Denied,
    /// It costs more than there can ever be room for: 429, and no advice to come back.
    Never,
    /// The store is out of reach, and a rule says that nothing passes then; or it is overloaded, as
    /// [`Decision::reason`] tells: 503.
    Outage,
}

impl<'d> Refusal<'d> {
    /// The refusal that a decision is, unless it allows.
    pub fn of(decision: &'d Decision) -> Option<Refusal<'d>> {
        let judged = |(tier, _): (TierDecision<'_>, _)| {
            tier.verdict() != Verdict::Allowed && tier.source() != Source::OutagePolicy
        };
        let kind = match decision.verdict() {
            Verdict::Allowed => return None,
            Verdict::Never => RefusalKind::Never,
            Verdict::Denied if enforced_tiers(decision).any(judged) => RefusalKind::Denied,
            Verdict::Denied => RefusalKind::Outage,
        };
        Some(Refusal { decision, kind, status: None })
    }

    /// The same refusal under another status, for callers that understand only some.
    pub fn with_status(self, status: StatusCode) -> Refusal<'d> {
        Refusal { status: Some(status), ..self }
    }

    /// Why.
    pub fn kind(&self) -> RefusalKind {
        self.kind
    }

    /// The decision.
    pub fn decision(&self) -> &'d Decision {
        self.decision
    }

    /// 429, or 503 while the store is out of reach, unless told otherwise.
    pub fn status(&self) -> StatusCode {
        self.status.unwrap_or(match self.kind {
            RefusalKind::Denied | RefusalKind::Never => StatusCode::TOO_MANY_REQUESTS,
            RefusalKind::Outage => StatusCode::SERVICE_UNAVAILABLE,
        })
    }

    /// What `Retry-After` says: the longest of the waits that are known, in whole seconds, up. A held
    /// slot has none, for it may be released at any time.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.wait().map(whole_seconds)
    }

    /// The names of the limits that refuse, as the header fields call them.
    pub fn violated_policies(&self) -> impl Iterator<Item = String> {
        self.refusing().map(|(_, name)| name.parts().collect())
    }

    /// The problem details as JSON, to be sent as `application/problem+json`.
    pub fn body(&self) -> String {
        self.body_for(self.status())
    }

    /// The same where the answer has another status than [`Refusal::status`], as a proxy may have it.
    pub fn body_for(&self, status: StatusCode) -> String {
        let (problem, title) = match self.kind {
            RefusalKind::Denied | RefusalKind::Never => ("quota-exceeded", "Quota exceeded"),
            RefusalKind::Outage => ("temporary-reduced-capacity", "Temporarily reduced capacity"),
        };
        let detail = match (self.kind, self.retry_after_seconds()) {
            (RefusalKind::Never, _) => "This costs more than the quota can hold.".to_owned(),
            (RefusalKind::Outage, _) if self.decision.reason() == Some(Reason::Overloaded) => {
                "The store is busy, and did not answer in time.".to_owned()
            }
            (RefusalKind::Outage, _) => "The quota cannot be looked up at the moment.".to_owned(),
            (RefusalKind::Denied, Some(seconds)) => format!("There is room again in {seconds} s."),
            (RefusalKind::Denied, None) => "There is no room at the moment.".to_owned(),
        };
        // Nothing here needs escaping: names are A-Z a-z 0-9 _ . / -, the rest is ours.
        let names: Vec<String> =
            self.violated_policies().map(|name| format!("\"{name}\"")).collect();
        format!(
            "{{\"type\":\"{PROBLEM_TYPES}{problem}\",\"title\":\"{title}\",\"status\":{},\
             \"detail\":\"{detail}\",\"violated-policies\":[{}]}}",
            status.as_u16(),
            names.join(",")
        )
    }

    /// The whole answer.
    pub fn response(&self, style: HeaderStyle) -> Response<Vec<u8>> {
        let mut response = Response::new(self.body().into_bytes());
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        self.decision.write_headers(style, headers);
        response
    }

    pub(crate) fn wait(&self) -> Option<Duration> {
        match self.kind {
            RefusalKind::Never => None,
            RefusalKind::Outage => Some(OUTAGE_WAIT),
            RefusalKind::Denied => {
                let timed = |tier: &TierDecision<'_>| tier.algorithm() != Algorithm::Concurrency;
                let refusing = self.refusing().map(|(tier, _)| tier).filter(timed);
                refusing.filter_map(|tier| tier.retry_after()).max()
            }
        }
    }

    fn refusing(&self) -> impl Iterator<Item = (TierDecision<'d>, PolicyName<'d>)> {
        enforced_tiers(self.decision).filter(|(tier, _)| tier.verdict() != Verdict::Allowed)
    }
}

impl Decision {
    /// Adds the fields of a style, and `Retry-After` to a refusal that knows when. Fields that are
    /// there already stay, and are not doubled: whoever wrote them stands nearer to the work.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use http::HeaderMap;
    /// use spillgate::{HeaderStyle, Limiter, Policy, Request};
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
/// Breakers probe about so often.
const OUTAGE_WAIT: Duration = Duration::from_secs(1);
