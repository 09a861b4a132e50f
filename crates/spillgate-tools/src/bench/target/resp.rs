//! The API for Redis clients: many checks at once on each connection.

use redis::{Cmd, Value, cmd};

use super::redis_connections::{self, RedisConnections};
use super::{Answer, ByRules, Checks, Endpoint, InlineLimit, key, unreachable};
use crate::Failure;

pub(in crate::bench) struct Resp {
    pub(super) connections: RedisConnections,
    command: Command,
}

/// The command that checks a subject.
enum Command {
    /// `CL.THROTTLE`: the burst beside the first call, and the count in a number of seconds.
    Throttle { burst: u64, count: u64, seconds: u64 },
    /// `SG.CHECK` by these rules.
    Check(ByRules),
}

impl Resp {
    pub(super) async fn connect(endpoint: Endpoint, checks: Checks) -> Result<Resp, Failure> {
        let command = match checks {
            Checks::InlineLimit(inline) => Command::throttle(&inline)?,
            Checks::ByRules(rules) => Command::Check(rules),
        };
        let connections = RedisConnections::new(endpoint)?;
        let pong: Result<Value, _> = connections.ask(&cmd("PING")).await;
        pong.map_err(|why| unreachable(&connections.endpoint.url, &why))?;
        Ok(Resp { connections, command })
    }

    pub(super) async fn ask(&self, subject: u64) -> Answer {
        let answer: Vec<Value> = match self.connections.ask(&self.command.to_cmd(subject)).await {
            Ok(answer) => answer,
            Err(error) => return redis_connections::failed(&error),
        };
        // Both commands answer 0 first if the call is allowed.
        match answer.first() {
            Some(Value::Int(0)) => Answer::Allowed(None),
            Some(Value::Int(_)) => Answer::Denied(None),
            _ => Answer::Failed("not an answer of Spillgate".to_owned()),
        }
    }
}

impl Command {
    fn throttle(inline: &InlineLimit) -> Result<Command, Failure> {
        let refused = || {
            "--quota: the API for Redis clients takes token buckets that refill in whole seconds; \
             write N/second, or check by the server's rules: --by user"
        };
        let bucket = inline.limit.algorithm() == spillgate::Algorithm::TokenBucket;
        let (Some(capacity), Some(interval_ns)) = (inline.limit.capacity(), inline.interval_ns())
        else {
            return Err(refused().into());
        };
        // CL.THROTTLE takes a count and whole seconds. The first of second, minute, hour and day that is a whole number of
        // refill intervals gives them.
        let fits = |seconds: u64| {
            let count = (seconds * SECOND_NS + interval_ns / 2).checked_div(interval_ns)?;
            let exact = (seconds * SECOND_NS).abs_diff(count * interval_ns) < count.max(1);
            (exact && count > 0).then_some((count, seconds))
        };
        let found = [1, 60, 3_600, 86_400].into_iter().find_map(fits).filter(|_| bucket);
        let (count, seconds) = found.ok_or_else(refused)?;
        Ok(Command::Throttle { burst: capacity.max(1) - 1, count, seconds })
    }

    fn to_cmd(&self, subject: u64) -> Cmd {
        match self {
            Command::Throttle { burst, count, seconds } => {
                let mut command = cmd("CL.THROTTLE");
                command.arg(key(subject)).arg(burst).arg(count).arg(seconds);
                command
            }
            Command::Check(rules) => {
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
            let inline = InlineLimit::new(quota, burst, None).unwrap();
            Command::throttle(&inline).ok().map(|command| match command {
                Command::Throttle { burst, count, seconds } => (burst, count, seconds),
                Command::Check(_) => (0, 0, 0),
            })
        };
        assert_eq!(of("100/second", Some(200)), Some((199, 100, 1)));
        assert_eq!(of("3/second", None), Some((2, 3, 1)));
        assert_eq!(of("5/minute", None), Some((4, 5, 60)));
        assert_eq!(of("100/day", None), Some((99, 100, 86_400)));
        assert_eq!(of("unlimited", None), None);
    }
}
