//! The door for Redis clients: many questions at once on each connection.

use redis::{Cmd, Value, cmd};

use super::line::{self, Line};
use super::{AdHoc, Answer, ByRules, Question, Way, key, unreachable, without_password};
use crate::Failure;

pub(in crate::bench) struct Resp {
    line: Line,
    asked: Asked,
}

enum Asked {
    /// `CL.THROTTLE`: what may pass beside the first, and so many in so many seconds.
    Throttle { burst: u64, count: u64, seconds: u64 },
    /// `SG.CHECK`
    Check(ByRules),
}

impl Resp {
    pub(super) async fn connect(way: Way, question: Question) -> Result<Resp, Failure> {
        let asked = match question {
            Question::AdHoc(ad_hoc) => Asked::throttle(&ad_hoc)?,
            Question::ByRules(rules) => Asked::Check(rules),
        };
        let resp = Resp { line: Line::new(way)?, asked };
        let pong: Result<Value, _> = resp.line.ask(&cmd("PING")).await;
        pong.map_err(|why| unreachable(&resp.line.way.url, &why))?;
        Ok(resp)
    }

    pub(super) fn place(&self) -> String {
        let connections = crate::counted(self.line.way.connections, "connection");
        format!("{}, {connections}", without_password(&self.line.way.url))
    }

    pub(super) async fn ask(&self, subject: u64) -> Answer {
        let answer: Vec<Value> = match self.line.ask(&self.asked.command(subject)).await {
            Ok(answer) => answer,
            Err(error) => return line::failed(&error),
        };
        // Both say 0 first where they allow.
        match answer.first() {
            Some(Value::Int(0)) => Answer::Allowed(None),
            Some(Value::Int(_)) => Answer::Denied(None),
            _ => Answer::Failed("no answer of Spillgate's".to_owned()),
        }
    }
}

impl Asked {
    fn throttle(ad_hoc: &AdHoc) -> Result<Asked, Failure> {
        let refused = || {
            "--quota: the door for Redis clients takes token buckets that refill in whole seconds; \
             write N/second, or ask by the server's rules: --by user"
        };
        let bucket = ad_hoc.limit.algorithm() == spillgate::Algorithm::TokenBucket;
        let (Some(capacity), Some(interval_ns)) = (ad_hoc.limit.capacity(), ad_hoc.interval_ns())
        else {
            return Err(refused().into());
        };
        // So many a second, minute, hour or day: whichever a whole number of intervals is.
        let fits = |seconds: u64| {
            let count = (seconds * SECOND_NS + interval_ns / 2).checked_div(interval_ns)?;
            let exact = (seconds * SECOND_NS).abs_diff(count * interval_ns) < count.max(1);
            (exact && count > 0).then_some((count, seconds))
        };
        let found = [1, 60, 3_600, 86_400].into_iter().find_map(fits).filter(|_| bucket);
        let (count, seconds) = found.ok_or_else(refused)?;
        Ok(Asked::Throttle { burst: capacity.max(1) - 1, count, seconds })
    }

    fn command(&self, subject: u64) -> Cmd {
        match self {
            Asked::Throttle { burst, count, seconds } => {
                let mut command = cmd("CL.THROTTLE");
                command.arg(key(subject)).arg(burst).arg(count).arg(seconds);
                command
            }
            Asked::Check(rules) => {
                let mut command = cmd("SG.CHECK");
                command.arg(&rules.domain).arg(1).arg(&rules.by).arg(key(subject));
                for (name, value) in &rules.with {
                    command.arg(name).arg(value);
                }
                command
            }
        }
    }
}

const SECOND_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_becomes_a_count_in_whole_seconds() {
        let of = |quota, burst| {
            let ad_hoc = AdHoc::new(quota, burst, None).unwrap();
            Asked::throttle(&ad_hoc).ok().map(|asked| match asked {
                Asked::Throttle { burst, count, seconds } => (burst, count, seconds),
                Asked::Check(_) => (0, 0, 0),
            })
        };
        assert_eq!(of("100/second", Some(200)), Some((199, 100, 1)));
        assert_eq!(of("3/second", None), Some((2, 3, 1)));
        assert_eq!(of("5/minute", None), Some((4, 5, 60)));
        assert_eq!(of("100/day", None), Some((99, 100, 86_400)));
        assert_eq!(of("unlimited", None), None);
    }
}
