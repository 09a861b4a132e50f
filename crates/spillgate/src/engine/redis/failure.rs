//! What an error of the store means for the call that met it: whether it ran, and what may help.
//! One table, by the code that an answer begins with.

use ::redis::{ErrorKind, RedisError};

use super::address::Host;
use super::script;
use super::server::Server;
use crate::engine::StoreError;
use crate::metrics::ErrorClass;

/// Why a call brought no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Nothing ran: it is to be sent elsewhere, or again.
    NotHere(NotHere, String),
    /// Nothing ran, and nothing will until somebody mends the store.
    Unfit(String),
    /// It may have run, or not.
    Unknown(String),
    /// Nothing was sent: there is no connection.
    NotSent(String),
    /// Nothing was sent: there is no connection now, and the caller does not wait long enough to blame the server.
    Hasty(String),
    /// It may have run, or not: the server has sent no byte for as long as it may. Found, and counted, by the connections.
    Silent(String),
    /// The server works, and did not answer in time: a wait of ours ended, or our queue is full.
    Overloaded { sent: bool, why: String },
    /// A mistake of ours.
    Bug(String),
}

/// What to do about a call that did not run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotHere {
    /// The slot lives there now.
    OldOwners { slot: u16, to: Host },
    /// This once, ask there.
    Ask(Host),
    /// The server is no primary any more.
    ReadOnly,
    /// The script is to be sent with it.
    NoScript,
    /// Its guard is another: to be asked for.
    Guarded,
    /// Some keys of the slot have moved, and some not yet.
    HalfMoved,
    /// A moment later it may do: a server loads, a cluster elects.
    Later,
}

impl Failure {
    /// What an error means.
    pub(super) fn of(error: &RedisError) -> Failure {
        let text = error.to_string();
        // The library makes an error of its own of what the server answers to AUTH.
        if error.kind() == ErrorKind::AuthenticationFailed {
            return Failure::Unfit(format!("WRONGPASS: {text}"));
        }
        // Of a pipeline's errors the last: what goes before a call only prepares it.
        let Some(error) = error.clone().into_server_errors().and_then(|all| all.last().cloned())
        else {
            return Failure::Unknown(text);
        };
        Failure::of_answer(error.1.code(), error.1.details().unwrap_or_default(), text)
    }

    /// The same where no call was sent yet: of a connection that could not be made.
    pub(super) fn unsent(self) -> Failure {
        match self {
            Failure::Unknown(why) => Failure::NotSent(why),
            known => known,
        }
    }

    fn of_answer(code: &str, details: &str, text: String) -> Failure {
        let code = if code == "ERR" { wrapped_code(details).unwrap_or(code) } else { code };
        let not_here = |what| Failure::NotHere(what, text.clone());
        match code {
            "MOVED" | "ASK" => match redirect(details) {
                Some((slot, to)) if code == "MOVED" => not_here(NotHere::OldOwners { slot, to }),
                Some((_, to)) => not_here(NotHere::Ask(to)),
                None => not_here(NotHere::Later),
            },
            "READONLY" => not_here(NotHere::ReadOnly),
            "NOSCRIPT" => not_here(NotHere::NoScript),
            "TRYAGAIN" => not_here(NotHere::HalfMoved),
            "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" => not_here(NotHere::Later),
            "OOM" | "MISCONF" | "NOREPLICAS" | "BUSY" | "NOAUTH" | "NOPERM" | "WRONGPASS" => {
                Failure::Unfit(text)
            }
            "ERR" if UNFIT.iter().any(|unfit| details.contains(unfit)) => Failure::Unfit(text),
            _ => Failure::Bug(script::located(text)),
        }
    }

    /// An answer that is none to what was asked.
    pub(super) fn bug(error: StoreError) -> Failure {
        Failure::Bug(error.to_string())
    }

    /// What it is counted as.
    pub(super) fn class(&self) -> ErrorClass {
        match self {
            Failure::NotHere(..) => ErrorClass::NotHere,
            Failure::Unfit(_) => ErrorClass::Unfit,
            Failure::Unknown(_) | Failure::Silent(_) => ErrorClass::Unknown,
            Failure::NotSent(_) | Failure::Hasty(_) => ErrorClass::NotSent,
            Failure::Overloaded { .. } => ErrorClass::Overloaded,
            Failure::Bug(_) => ErrorClass::Bug,
        }
    }

    /// What was wrong, in words.
    pub(super) fn why(&self) -> &str {
        match self {
            Failure::NotHere(_, why) | Failure::Unfit(why) | Failure::Unknown(why) => why,
            Failure::NotSent(why) | Failure::Hasty(why) | Failure::Silent(why) => why,
            Failure::Overloaded { why, .. } | Failure::Bug(why) => why,
        }
    }

    /// Reports a server that does not take our user and password. Each attempt to connect fails alike, so only a failure
    /// that differs from the one before is reported.
    pub(super) fn report_credentials(&self, server: &Server, before: Option<&str>) {
        let Failure::Unfit(why) = self else { return };
        let is_about_them = why.contains("WRONGPASS") || why.contains("NOAUTH");
        if is_about_them && before != Some(why) {
            tracing::error!(
                target: "spillgate",
                %server,
                why,
                "the store does not take our credentials: set the user and password of its address"
            );
        }
    }

    /// What it says of the server for the circuit breaker: that it works, or fails; nothing where it says neither.
    pub(super) fn shows_work(&self) -> Option<bool> {
        match self {
            Failure::NotHere(what, _) => Some(!matches!(what, NotHere::ReadOnly | NotHere::Later)),
            Failure::Unfit(_) | Failure::Unknown(_) | Failure::NotSent(_) => Some(false),
            Failure::Bug(_) => Some(true),
            Failure::Hasty(_) | Failure::Silent(_) | Failure::Overloaded { .. } => None,
        }
    }

    /// A wait of ours that ended before anything was sent.
    pub(super) fn unsent_in_time(why: impl Into<String>) -> Failure {
        Failure::Overloaded { sent: false, why: why.into() }
    }

    /// A wait of ours that ended before the answer came.
    pub(super) fn too_late(why: impl Into<String>) -> Failure {
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

/// Redis 6.2 wraps what a script met: `ERR Error running script (…): @user_script:1: -OOM …`.
fn wrapped_code(details: &str) -> Option<&str> {
    let inner = details.split(" -").skip(1).filter_map(|inner| inner.split([' ', ':']).next());
    inner
        .into_iter()
        .find(|code| code.len() > 2 && code.bytes().all(|byte| byte.is_ascii_uppercase()))
}

/// `12182 127.0.0.1:6380`, with an IPv6 address unbracketed, and a host that may be left out.
fn redirect(details: &str) -> Option<(u16, Host)> {
    let mut words = details.split(' ');
    let slot = words.next()?.parse().ok()?;
    let (name, port) = words.next()?.rsplit_once(':')?;
    let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
    Some((slot, Host { name, port: port.parse().ok()? }))
}

/// Plain errors that are no fault of the call.
const UNFIT: [&str; 2] = ["max number of clients reached", "operation not permitted"];

#[cfg(test)]
mod tests {
    use super::*;

    fn of(answer: &str) -> Failure {
        let (code, details) = answer.split_once(' ').unwrap();
        Failure::of_answer(code, details, answer.into())
    }

    /// As real servers said it: 6.2, 7.0, 8.2 and Valkey 9.
    #[test]
    fn answers_of_real_servers_fall_into_their_classes() {
        let not_here = |answer: &str| match of(answer) {
            Failure::NotHere(what, _) => what,
            other => panic!("{answer}: {other:?}"),
        };
        let host = |name: &str, port| Host { name: name.into(), port };
        assert_eq!(
            not_here("MOVED 12182 127.0.0.1:6380"),
            NotHere::OldOwners { slot: 12182, to: host("127.0.0.1", 6380) }
        );
        assert_eq!(not_here("ASK 5 ::1:6380"), NotHere::Ask(host("::1", 6380)));
        assert_eq!(not_here("MOVED 5 :6380"), NotHere::OldOwners { slot: 5, to: host("", 6380) });
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
            assert!(matches!(of(unfit), Failure::Unfit(_)), "{unfit}");
        }
        for bug in [
            "CROSSSLOT Keys in request don't hash to the same slot",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "ERR Script attempted to access a non local key in a cluster node script: 1f",
            "ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'",
            "ERR Error running script (call to f_1f): @user_script:1: -WRONGTYPE Operation against a key holding the wrong kind of value",
        ] {
            assert!(matches!(of(bug), Failure::Bug(_)), "{bug}");
        }
    }

    #[test]
    fn a_broken_wire_says_nothing_of_whether_the_call_ran() {
        let broken: RedisError = std::io::Error::from(std::io::ErrorKind::ConnectionReset).into();
        assert!(matches!(Failure::of(&broken), Failure::Unknown(_)));
    }
}
