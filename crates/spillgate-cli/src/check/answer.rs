//! The door's answer, read back and told to people.

use std::fmt;
use std::process::ExitCode;

use serde::Deserialize;
use spillgate_tools::Failure;

/// As much of an answer as people are told; fields of later versions do no harm.
#[derive(Deserialize)]
pub(super) struct Answer {
    verdict: Verdict,
    rule: Option<String>,
    limit: Option<String>,
    retry_after_ms: Option<u64>,
    source: String,
    degraded: bool,
    tiers: Vec<Tier>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Allowed,
    Denied,
    Never,
}

#[derive(Deserialize)]
struct Tier {
    rule: Option<String>,
    limit: String,
    unit: String,
    capacity: Option<u64>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    verdict: Verdict,
    #[serde(default)]
    shadow: bool,
}

impl Answer {
    pub(super) fn read(reply: &[u8]) -> Result<Answer, Failure> {
        serde_json::from_slice(reply)
            .map_err(|error| format!("that is no answer of Spillgate's: {error}").into())
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self.verdict {
            Verdict::Allowed => 0,
            Verdict::Denied => 1,
            Verdict::Never => 2,
        })
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.verdict)?;
        if let Some(limit) = self.limit.as_ref().filter(|_| self.verdict != Verdict::Allowed) {
            write!(f, " by {}", Name(self.rule.as_deref(), limit))?;
        }
        f.write_str(&advice(self.verdict, self.retry_after_ms))?;
        if self.tiers.is_empty() {
            f.write_str(": no rule is met")?;
        }
        if self.degraded {
            write!(f, " (the store is out of reach: {})", self.source)?;
        }
        self.tiers.iter().try_for_each(|tier| write!(f, "\n{tier}"))
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {}: {}", Name(self.rule.as_deref(), &self.limit), self.verdict)?;
        f.write_str(&advice(self.verdict, self.retry_after_ms))?;
        match (self.remaining, self.capacity) {
            (Some(remaining), Some(capacity)) => {
                write!(f, ", {remaining} of {capacity} {} left", self.unit)?
            }
            (None, Some(capacity)) => write!(f, ", of {capacity} {}", self.unit)?,
            _ => {}
        }
        if let Some(ms) = self.reset_after_ms.filter(|ms| *ms > 0) {
            write!(f, ", untouched again in {}", wait(ms))?;
        }
        f.write_str(if self.shadow { " (shadow: only watched)" } else { "" })
    }
}

fn advice(verdict: Verdict, retry_after_ms: Option<u64>) -> String {
    match (verdict, retry_after_ms) {
        (Verdict::Allowed, _) => String::new(),
        (Verdict::Never, _) => ", it costs more than the limit can ever hold".to_owned(),
        (Verdict::Denied, Some(ms)) => format!(", try again in {}", wait(ms)),
        (Verdict::Denied, None) => ", nobody knows for how long".to_owned(),
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Allowed => "allowed",
            Verdict::Denied => "denied",
            Verdict::Never => "never",
        })
    }
}

/// A limit with its rule, if it has one.
struct Name<'a>(Option<&'a str>, &'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(rule) => write!(f, "{rule}/{}", self.1),
            None => f.write_str("the limit given"),
        }
    }
}

/// Writes a wait in the unit that fits, rounded up, as the sentences of `explain` do.
fn wait(ms: u64) -> String {
    let seconds = ms.div_ceil(1_000);
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..120_000 => {
            let tenths = ms.div_ceil(100);
            format!("{}.{} s", tenths / 10, tenths % 10)
        }
        120_000..7_200_000 => format!("{} min {} s", seconds / 60, seconds % 60),
        7_200_000..172_800_000 => {
            let minutes = seconds.div_ceil(60);
            format!("{} h {} min", minutes / 60, minutes % 60)
        }
        _ => {
            let hours = seconds.div_ceil(3_600);
            format!("{} d {} h", hours / 24, hours % 24)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(reply: &str) -> String {
        Answer::read(reply.as_bytes()).unwrap().to_string()
    }

    #[test]
    fn a_refusal_says_which_limit_and_how_long_then_every_tier() {
        let refused = r#"{
            "verdict": "denied", "rule": "login", "limit": "0", "retry_after_ms": 11001,
            "source": "store", "degraded": false, "tiers": [{
                "rule": "login", "limit": "0", "unit": "requests", "capacity": 5, "remaining": 0,
                "retry_after_ms": 11001, "reset_after_ms": 59000, "verdict": "denied"
            }, {
                "rule": "all", "limit": "slow", "unit": "tokens", "capacity": 5, "remaining": 5,
                "retry_after_ms": 0, "reset_after_ms": 0, "verdict": "allowed", "shadow": true
            }]
        }"#;
        let told = told(refused);
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines[0], "denied by login/0, try again in 11.1 s");
        let login = "  login/0: denied, try again in 11.1 s, 0 of 5 requests left, untouched again in 59.0 s";
        assert_eq!(
            lines[1..],
            [login, "  all/slow: allowed, 5 of 5 tokens left (shadow: only watched)"]
        );
    }

    #[test]
    fn a_wait_is_in_the_unit_that_fits_and_never_too_short() {
        for (ms, written) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_001, "1.1 s"),
            (120_000, "2 min 0 s"),
            (120_001, "2 min 1 s"),
            (7_200_001, "2 h 1 min"),
            (172_800_001, "2 d 1 h"),
        ] {
            assert_eq!(wait(ms), written, "{ms} ms");
        }
    }

    #[test]
    fn an_answer_without_a_rule_says_so() {
        let unmet = r#"{
            "verdict": "allowed", "rule": null, "limit": null, "source": "store",
            "degraded": false, "tiers": []
        }"#;
        assert_eq!(told(unmet), "allowed: no rule is met");
    }

    #[test]
    fn an_answer_without_the_store_says_so_and_makes_up_no_numbers() {
        let alone = r#"{
            "verdict": "denied", "rule": null, "limit": "0", "source": "outage-policy",
            "degraded": true, "tiers": [{
                "rule": null, "limit": "0", "unit": "requests", "capacity": 5, "verdict": "denied"
            }]
        }"#;
        assert_eq!(
            told(alone),
            "denied by the limit given, nobody knows for how long \
             (the store is out of reach: outage-policy)\n  \
             the limit given: denied, nobody knows for how long, of 5 requests"
        );
    }
}
