//! Parses the answer of the HTTP API, and prints it as text.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use serde::Deserialize;
use spillgate::explain::Wait;

/// The fields that the text shows. Fields of later versions are ignored.
#[derive(Deserialize)]
pub struct Answer {
    allowed: bool,
    reason: Option<String>,
    rule: Option<String>,
    limit: Option<String>,
    retry_after_ms: Option<u64>,
    source: String,
    degraded: bool,
    matched: bool,
    /// Ends the permits that the check took, if it took some.
    receipt: Option<String>,
    limits: Vec<Limit>,
    /// A sentence about each name that no rule uses.
    #[serde(default)]
    unused: Vec<String>,
}

#[derive(Deserialize)]
struct Limit {
    rule: Option<String>,
    limit: String,
    unit: String,
    capacity: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    allowed: bool,
    reason: Option<String>,
    #[serde(default)]
    shadow: bool,
}

impl Answer {
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(if self.allowed { 0 } else { DENIED })
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.allowed { "allowed" } else { "denied" })?;
        if let Some(limit) = self.limit.as_ref().filter(|_| !self.allowed) {
            write!(f, " by {}", Name(self.rule.as_deref(), limit))?;
        }
        f.write_str(&advice(self.reason.as_deref(), self.retry_after_ms))?;
        if !self.matched {
            f.write_str(": no rule matched")?;
        }
        if self.degraded {
            write!(f, " (decided without the store, source {})", self.source)?;
        }
        self.limits.iter().try_for_each(|limit| write!(f, "\n{limit}"))?;
        self.unused.iter().try_for_each(|unused| write!(f, "\n  unused: {unused}"))?;
        match &self.receipt {
            Some(receipt) => {
                write!(f, "\n  POST /v1/release ends its permits, with receipt {receipt}")
            }
            None => Ok(()),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decision = if self.allowed { "allowed" } else { "denied" };
        write!(f, "  {}: {decision}", Name(self.rule.as_deref(), &self.limit))?;
        f.write_str(&advice(self.reason.as_deref(), self.retry_after_ms))?;
        match (self.remaining, self.capacity) {
            (Some(remaining), Some(capacity)) => {
                write!(f, ", {remaining} of {capacity} {} left", self.unit)?
            }
            (None, Some(capacity)) => write!(f, ", of {capacity} {}", self.unit)?,
            _ => {}
        }
        if let Some(ms) = self.reset_after_ms.filter(|ms| *ms > 0) {
            write!(f, ", full again in {}", wait(ms))?;
        }
        f.write_str(if self.shadow { " (shadow: not enforced)" } else { "" })
    }
}

/// Returns the reason of a denial, and the time to wait for.
fn advice(reason: Option<&str>, retry_after_ms: Option<u64>) -> String {
    let wait = retry_after_ms.map(wait);
    match (reason, wait) {
        (None, _) => String::new(),
        (Some(reason), Some(wait)) => format!(" ({reason}), try again in {wait}"),
        (Some(reason @ ("blocked" | "cost-exceeds-limit")), None) => {
            format!(" ({reason}), no wait helps")
        }
        (Some(reason), None) => format!(" ({reason})"),
    }
}

/// A limit with its rule, if it has one.
struct Name<'a>(Option<&'a str>, &'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(rule) => write!(f, "{rule}/{}", self.1),
            None => f.write_str("the inline limit"),
        }
    }
}

fn wait(ms: u64) -> Wait {
    Wait(Duration::from_millis(ms))
}

/// The exit code of a denial.
const DENIED: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(reply: &str) -> String {
        serde_json::from_str::<Answer>(reply).unwrap().to_string()
    }

    #[test]
    fn a_denial_names_the_limit_the_reason_and_the_wait_then_every_limit() {
        let denied = r#"{
            "allowed": false, "reason": "limit-exceeded", "rule": "login", "limit": "0", "retry_after_ms": 11001,
            "source": "store", "degraded": false, "matched": true, "limits": [{
                "rule": "login", "limit": "0", "unit": "requests", "capacity": 5, "remaining": 0,
                "retry_after_ms": 11001, "reset_after_ms": 59000, "allowed": false, "reason": "limit-exceeded"
            }, {
                "rule": "all", "limit": "slow", "unit": "tokens", "capacity": 5, "remaining": 5,
                "retry_after_ms": 0, "reset_after_ms": 0, "allowed": true, "reason": null, "shadow": true
            }]
        }"#;
        let printed = printed(denied);
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!(lines[0], "denied by login/0 (limit-exceeded), try again in 11.1 s");
        let login = "  login/0: denied (limit-exceeded), try again in 11.1 s, 0 of 5 requests left, full again in 59.0 s";
        assert_eq!(
            lines[1..],
            [login, "  all/slow: allowed, 5 of 5 tokens left (shadow: not enforced)"]
        );
    }

    #[test]
    fn an_unmatched_request_is_allowed_with_a_note() {
        let unmatched = r#"{
            "allowed": true, "reason": null, "rule": null, "limit": null, "source": "store",
            "degraded": false, "matched": false, "limits": []
        }"#;
        assert_eq!(printed(unmatched), "allowed: no rule matched");
    }

    #[test]
    fn a_check_that_took_permits_shows_its_receipt_last() {
        let permit = r#"{
            "allowed": true, "reason": null, "rule": null, "limit": null, "source": "store", "degraded": false,
            "matched": true, "receipt": "AQAB", "limits": []
        }"#;
        assert_eq!(
            printed(permit),
            "allowed\n  POST /v1/release ends its permits, with receipt AQAB"
        );
    }

    #[test]
    fn a_denial_for_ever_has_no_time_to_wait() {
        let too_costly = r#"{
            "allowed": false, "reason": "cost-exceeds-limit", "rule": "login", "limit": "0",
            "retry_after_ms": null, "source": "store", "degraded": false, "matched": true, "limits": []
        }"#;
        assert_eq!(printed(too_costly), "denied by login/0 (cost-exceeds-limit), no wait helps");
    }

    #[test]
    fn an_answer_in_an_outage_names_its_source_and_invents_no_numbers() {
        let alone = r#"{
            "allowed": false, "reason": "store-unavailable", "rule": null, "limit": "0", "source": "outage-policy",
            "degraded": true, "matched": true, "limits": [{
                "rule": null, "limit": "0", "unit": "requests", "capacity": 5, "allowed": false,
                "reason": "store-unavailable"
            }]
        }"#;
        assert_eq!(
            printed(alone),
            "denied by the inline limit (store-unavailable) \
             (decided without the store, source outage-policy)\n  \
             the inline limit: denied (store-unavailable), of 5 requests"
        );
    }
}
