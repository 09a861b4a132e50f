//! Classifies errors of the store: whether the call was executed, and whether sending it again can help.
//!
//! The class follows from the code at the beginning of an error reply.

use std::fmt;

use ::redis::{ErrorKind, RedisError};

use super::address::Host;
use crate::calls::script;
use crate::error::{StoreError, Why};
use crate::meter::ErrorClass;

/// The reason why a call returned no usable reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Not executed: the call must be sent elsewhere, or again.
    NotHere(NotHere, Why),
    /// Not executed, and it will not be until an operator fixes the store.
    Unfit(Why),
    /// It may have been executed.
    Unknown(Why),
    /// Not sent: there is no connection.
    NotSent(Why),
    /// Not sent: there is no connection now, and the caller's deadline is too short to count this against the server.
    Hasty(Why),
    /// It may have been executed: the server sent no byte for the whole timeout. The connections have counted
    /// it already.
    Silent(Why),
    /// The server works, but did not answer in time: a deadline passed, or the queue is full.
    Overloaded { sent: bool, why: Why },
    /// A bug of this program.
    Bug(Why),
}

/// The remedy for a call that was not executed by this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotHere {
    /// Another server owns the slot now.
    Moved { slot: u16, to: Host },
    /// Send this one call to another server.
    Ask(Host),
    /// The server is no longer a primary.
    ReadOnly,
    /// The server does not have the script: send it along.
    NoScript,
    /// The shard's guard has changed: read it again.
    Guarded,
    /// Some keys of the slot have moved, and some not yet.
    HalfMoved,
    /// Try again in a moment: a server loads its data, or a Cluster elects a primary.
    Later,
}

impl Failure {
    /// Classifies an error of the client library.
    pub(crate) fn from_error(error: &RedisError) -> Failure {
        let why = Why::new(error.to_string(), error.clone());
        // The library turns a denied login into an error of its own, without the server's code.
        if error.kind() == ErrorKind::AuthenticationFailed {
            return Failure::Unfit(why.map(|why| format!("WRONGPASS: {why}")));
        }
        // Nothing was sent: the server accepts no connection, or this one had been closed before.
        if error.is_connection_refusal() {
            return Failure::NotSent(why);
        }
        let Some(code) = error.code() else { return Failure::Unknown(why) };
        Failure::of_answer(code, error.detail().unwrap_or_default(), why)
    }

    /// Returns the failure for a call that was not sent, because its connection could not be made.
    pub(crate) fn unsent(self) -> Failure {
        match self {
            Failure::Unknown(why) => Failure::NotSent(why),
            known => known,
        }
    }

    fn of_answer(code: &str, details: &str, why: Why) -> Failure {
        // Servers before 7.0 wrap an error inside a script in a plain ERR.
        let code = if code == "ERR" { wrapped_code(details).unwrap_or(code) } else { code };
        let not_here = |what| Failure::NotHere(what, why.clone());
        match code {
            "MOVED" | "ASK" => match redirect(details) {
                Some((slot, to)) if code == "MOVED" => not_here(NotHere::Moved { slot, to }),
                Some((_, to)) => not_here(NotHere::Ask(to)),
                None => not_here(NotHere::Later),
            },
            "READONLY" => not_here(NotHere::ReadOnly),
            "NOSCRIPT" => not_here(NotHere::NoScript),
            "TRYAGAIN" => not_here(NotHere::HalfMoved),
            "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" => not_here(NotHere::Later),
            "OOM" | "MISCONF" | "NOREPLICAS" | "BUSY" | "NOAUTH" | "NOPERM" | "WRONGPASS" => {
                Failure::Unfit(why)
            }
            "ERR" if UNFIT.iter().any(|unfit| details.contains(unfit)) => Failure::Unfit(why),
            // Any other error means a wrong command or script, and would come again.
            _ => Failure::Bug(why.map(script::located)),
        }
    }

    /// Returns the failure for a reply that does not fit the request.
    pub(crate) fn bug(error: StoreError) -> Failure {
        match error {
            StoreError::Foreign(why) => Failure::Bug(why),
            other => Failure::Bug(Why::new(other.to_string(), other)),
        }
    }

    /// Returns the class under which the metrics count this failure.
    pub(crate) fn class(&self) -> ErrorClass {
        match self {
            Failure::NotHere(..) => ErrorClass::NotHere,
            Failure::Unfit(_) => ErrorClass::Unfit,
            Failure::Unknown(_) | Failure::Silent(_) => ErrorClass::Unknown,
            Failure::NotSent(_) | Failure::Hasty(_) => ErrorClass::NotSent,
            Failure::Overloaded { .. } => ErrorClass::Overloaded,
            Failure::Bug(_) => ErrorClass::Bug,
        }
    }

    /// Returns whether the call may have reached a server.
    pub(crate) fn was_sent(&self) -> bool {
        !matches!(
            self,
            Failure::NotSent(_) | Failure::Hasty(_) | Failure::Overloaded { sent: false, .. }
        )
    }

    /// Returns the reason, with its cause.
    pub(crate) fn why(&self) -> &Why {
        match self {
            Failure::NotHere(_, why) | Failure::Unfit(why) | Failure::Unknown(why) => why,
            Failure::NotSent(why) | Failure::Hasty(why) | Failure::Silent(why) => why,
            Failure::Overloaded { why, .. } | Failure::Bug(why) => why,
        }
    }

    /// Logs that a server rejects the user and password.
    ///
    /// Every attempt to connect fails in the same way, so only a failure that differs from the one before is logged.
    pub(crate) fn report_credentials(&self, server: &dyn fmt::Display, before: Option<&str>) {
        let Failure::Unfit(why) = self else { return };
        let is_about_them = why.contains("WRONGPASS") || why.contains("NOAUTH");
        if is_about_them && before != Some(&**why) {
            tracing::error!(
                target: "spillgate",
                %server,
                %why,
                "the store rejects the credentials: set the user and password in its address"
            );
        }
    }

    /// Returns the evidence for the circuit breaker: the server works, or fails; `None` if the failure shows neither.
    pub(crate) fn shows_work(&self) -> Option<bool> {
        match self {
            Failure::NotHere(what, _) => Some(!matches!(what, NotHere::ReadOnly | NotHere::Later)),
            Failure::Unfit(_) | Failure::Unknown(_) | Failure::NotSent(_) => Some(false),
            Failure::Bug(_) => Some(true),
            Failure::Hasty(_) | Failure::Silent(_) | Failure::Overloaded { .. } => None,
        }
    }

    /// Creates the failure of a call whose deadline passed before it was sent.
    pub(crate) fn unsent_in_time(why: impl Into<Why>) -> Failure {
        Failure::Overloaded { sent: false, why: why.into() }
    }

    /// Creates the failure of a call whose deadline passed before its reply came.
    pub(crate) fn too_late(why: impl Into<Why>) -> Failure {
        Failure::Overloaded { sent: true, why: why.into() }
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> StoreError {
        match failure {
            Failure::NotHere(_, text) | Failure::Unfit(text) => StoreError::NotExecuted(text),
            Failure::NotSent(why) | Failure::Hasty(why) => StoreError::NotExecuted(why),
            Failure::Unknown(text) | Failure::Silent(text) => StoreError::Unknown(text),
            Failure::Overloaded { sent, why } => {
                StoreError::Overloaded { sent, admits_itself: false, why }
            }
            Failure::Bug(text) => StoreError::Foreign(text),
        }
    }
}

/// Returns the code inside an error that a script received. Redis 6.2 wraps it: `ERR Error running script
/// (…): @user_script:1: -OOM …`.
fn wrapped_code(details: &str) -> Option<&str> {
    let inner = details.split(" -").skip(1).filter_map(|inner| inner.split([' ', ':']).next());
    inner
        .into_iter()
        .find(|code| code.len() > 2 && code.bytes().all(|byte| byte.is_ascii_uppercase()))
}

/// Parses `12182 127.0.0.1:6380`. An IPv6 address has no brackets, and the host may be missing.
fn redirect(details: &str) -> Option<(u16, Host)> {
    let mut words = details.split(' ');
    let slot = words.next()?.parse().ok()?;
    let (name, port) = words.next()?.rsplit_once(':')?;
    let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
    Some((slot, Host { name, port: port.parse().ok()? }))
}

/// Texts of plain `ERR` replies that are not caused by the call.
const UNFIT: [&str; 2] = ["max number of clients reached", "operation not permitted"];

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    fn from_answer(answer: &str) -> Failure {
        let (code, details) = answer.split_once(' ').unwrap();
        Failure::of_answer(code, details, answer.into())
    }

    #[test]
    fn a_refused_connection_has_sent_nothing() {
        let of = |kind| Failure::from_error(&std::io::Error::from(kind).into());
        assert!(matches!(of(std::io::ErrorKind::ConnectionRefused), Failure::NotSent(_)));
        assert!(matches!(of(std::io::ErrorKind::BrokenPipe), Failure::Unknown(_)));
    }

    /// Replies of real servers: 6.2, 7.0, 8.2 and Valkey 9.
    #[test]
    fn classifies_the_replies_of_real_servers() {
        let not_here = |answer: &str| match from_answer(answer) {
            Failure::NotHere(what, _) => what,
            other => panic!("{answer}: {other:?}"),
        };
        let host = |name: &str, port| Host { name: name.into(), port };
        assert_eq!(
            not_here("MOVED 12182 127.0.0.1:6380"),
            NotHere::Moved { slot: 12182, to: host("127.0.0.1", 6380) }
        );
        assert_eq!(not_here("ASK 5 ::1:6380"), NotHere::Ask(host("::1", 6380)));
        assert_eq!(not_here("MOVED 5 :6380"), NotHere::Moved { slot: 5, to: host("", 6380) });
        for readonly in [
            "READONLY You can't write against a read only replica. script: 1f, on @user_script:1.",
            "ERR Error running script (call to f_1f): @user_script:1: -READONLY You can't write against a read only replica.",
        ] {
            assert_eq!(not_here(readonly), NotHere::ReadOnly);
        }
        assert_eq!(not_here("NOSCRIPT No matching script. Please use EVAL."), NotHere::NoScript);
        for later in [
            "LOADING Redis is loading the dataset in memory",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "CLUSTERDOWN The cluster is down",
            "CLUSTERDOWN Hash slot not served",
        ] {
            assert_eq!(not_here(later), NotHere::Later);
        }
        let half_moved = "TRYAGAIN Multiple keys request during rehashing of slot";
        assert_eq!(not_here(half_moved), NotHere::HalfMoved);
        for unfit in [
            "OOM command not allowed when used memory > 'maxmemory'.",
            "ERR Error running script (call to f_1f): @user_script:1: @user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.",
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
            "NOREPLICAS Not enough good replicas to write.",
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            "NOAUTH Authentication required.",
            "NOPERM User x has no permissions to run the 'evalsha' command",
            "WRONGPASS invalid username-password pair or user is disabled.",
            "ERR max number of clients reached",
        ] {
            assert!(matches!(from_answer(unfit), Failure::Unfit(_)), "{unfit}");
        }
        for bug in [
            "CROSSSLOT Keys in request don't hash to the same slot",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "ERR Script attempted to access a non local key in a cluster node script: 1f",
            "ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'",
            "ERR Error running script (call to f_1f): @user_script:1: -WRONGTYPE Operation against a key holding the wrong kind of value",
        ] {
            assert!(matches!(from_answer(bug), Failure::Bug(_)), "{bug}");
        }
    }

    #[test]
    fn a_broken_connection_leaves_the_call_unknown() {
        let broken: RedisError = std::io::Error::from(std::io::ErrorKind::ConnectionReset).into();
        assert!(matches!(Failure::from_error(&broken), Failure::Unknown(_)));
    }

    #[test]
    fn a_store_error_has_the_client_librarys_error_as_its_source() {
        let reset = || RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        let denied = (ErrorKind::AuthenticationFailed, "denied").into();
        for error in [reset(), denied] {
            let store_error = StoreError::from(Failure::from_error(&error));
            let source = store_error.source().unwrap().downcast_ref::<RedisError>().unwrap();
            assert_eq!(source.kind(), error.kind(), "{store_error}");
            assert!(store_error.to_string().ends_with(&error.to_string()), "{store_error}");
        }
        let too_late = StoreError::from(Failure::too_late("no answer"));
        assert!(too_late.source().is_none());
    }
}
