//! Finds the primary that sentinels watch.
//!
//! A sentinel is asked before every connection, and the server must confirm its role. Sentinels are asked
//! again while connected, because an old primary may still believe in its role.

use std::fmt;
use std::io;
use std::time::Duration;

use ::redis::{Cmd, RedisConnectionInfo, RedisError, RedisResult, Value};
use parking_lot::Mutex;

use super::access::Connector;
use super::address::{Address, At, Host, Login};
use super::jitter::random;
use super::wire::{self, Wire};
use crate::error::BuildError;
use crate::time::Deadline;

/// The sentinels that watch one primary.
pub(super) struct Sentinels {
    master: String,
    addresses: Vec<Address>,
    /// The login of the primary, which is that of the first sentinel.
    login: Login,
    tls: Connector,
    /// The host of the last connection.
    found: Mutex<Option<Host>>,
}

impl Sentinels {
    /// Creates the sentinels from their addresses. User, password, database and TLS of the first apply to the
    /// primary too.
    pub(super) fn new(
        master: &str,
        addresses: Vec<Address>,
        tls: &Connector,
    ) -> Result<Sentinels, BuildError> {
        let Some(first) = addresses.first() else {
            return Err(BuildError::StoreUrl {
                url: String::new(),
                why: format!("the primary {master:?} needs the address of at least one sentinel"),
            });
        };
        let (login, found) = (first.login.clone(), Mutex::default());
        Ok(Sentinels { master: master.to_owned(), addresses, login, tls: tls.clone(), found })
    }

    /// Connects to the primary, and checks its role.
    pub(super) async fn dial(&self) -> RedisResult<Wire> {
        let host = self.primary().await?;
        let wire = self.dial_server(&host).await?;
        // Sentinels may be late: an old primary must not get calls although they name it.
        let role = wire.send(&::redis::cmd("ROLE")).await?.value();
        match role {
            Value::Array(role) if role.first() == Some(&Value::BulkString(b"master".to_vec())) => {
                *self.found.lock() = Some(host);
                Ok(wire)
            }
            _ => Err(trouble(format!("{host} is not a primary, but the sentinels name it"))),
        }
    }

    /// Connects to one of the watched servers.
    pub(super) async fn dial_server(&self, host: &Host) -> RedisResult<Wire> {
        let secured = matches!(self.addresses[0].at, At::Tls(_));
        wire::dial(&Address::of_host(host, secured, &self.login), &self.tls).await
    }

    /// Returns whether the primary is another server than that of the last connection.
    pub(super) async fn primary_has_moved(&self) -> bool {
        match self.primary().await {
            Ok(host) => self.found.lock().as_ref().is_some_and(|found| *found != host),
            // A sentinel that does not answer proves no change.
            Err(_) => false,
        }
    }

    /// Returns the primary according to the first sentinel that answers, from a random one on.
    async fn primary(&self) -> RedisResult<Host> {
        let first = random() as usize;
        let mut why = trouble("no sentinel answered".into());
        for turn in 0..self.addresses.len() {
            let sentinel = &self.addresses[first.wrapping_add(turn) % self.addresses.len()];
            match Deadline::after(ASK).bound(self.ask(sentinel)).await {
                Some(Ok(host)) => return Ok(host),
                Some(Err(error)) => why = error,
                None => {}
            }
        }
        Err(why)
    }

    async fn ask(&self, sentinel: &Address) -> RedisResult<Host> {
        let wire = self.dial_sentinel(sentinel).await?;
        let mut call: Cmd = ::redis::cmd("SENTINEL");
        call.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        match wire.send(&call).await?.value() {
            Value::Array(location) => match &location[..] {
                [Value::BulkString(name), Value::BulkString(port)] => {
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    let port = text(port).parse().map_err(io::Error::other)?;
                    Ok(Host { name: text(name), port })
                }
                _ => Err(trouble(format!("{} answered {location:?}", sentinel.at))),
            },
            _ => Err(trouble(format!(
                "{} watches no primary named {:?}; check the name in its sentinel monitor line",
                sentinel.at, self.master
            ))),
        }
    }

    /// Connects to a sentinel. It has no database, and often no password although its servers have one.
    async fn dial_sentinel(&self, sentinel: &Address) -> RedisResult<Wire> {
        let by = |login| Address { at: sentinel.at.clone(), login: Login::new(login) };
        let known = sentinel.login.get();
        if let Some(password) = known.password() {
            let mut login = RedisConnectionInfo::default().set_password(password);
            if let Some(user) = known.username() {
                login = login.set_username(user);
            }
            match wire::dial(&by(login), &self.tls).await {
                // A sentinel without a password rejects the login: tries again without one.
                Err(error) if !error.is_io_error() => {}
                dialled => return dialled,
            }
        }
        wire::dial(&by(RedisConnectionInfo::default()), &self.tls).await
    }
}

fn trouble(why: String) -> RedisError {
    io::Error::other(why).into()
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sentinel://{}", self.master)
    }
}

/// The time limit for one sentinel. Several fit one attempt to connect.
const ASK: Duration = Duration::from_millis(300);
