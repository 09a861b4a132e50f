//! Finds the primary that sentinels watch.
//!
//! The sentinels are asked before every connection, and the server must confirm its role. They are asked again while
//! connected, because an old primary may still believe in its role. A primary that works is left only for one that
//! most sentinels name: a single one may be wrong. At a start without a majority there is no such primary, so the one
//! that more sentinels name than any other is used, with a warning.

use std::fmt;
use std::io;
use std::time::Duration;

use ::redis::{Cmd, RedisConnectionInfo, RedisError, RedisResult, Value};
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;

use super::access::Connector;
use super::address::{Address, At, Host, Login};
use super::wire::{self, Wire};
use crate::error::BuildError;
use crate::time::Deadline;

/// The sentinels that watch one primary.
pub(crate) struct Sentinels {
    master: String,
    addresses: Vec<Address>,
    /// The login of the primary, and an address whose transport it shares.
    primary: Address,
    tls: Connector,
    /// The host of the last connection.
    found: Mutex<Option<Host>>,
}

impl Sentinels {
    /// Creates the sentinels from an address with the login and transport of the primary, and their own addresses.
    pub(crate) fn new(
        master: &str,
        addresses: &[Address],
        tls: &Connector,
    ) -> Result<Sentinels, BuildError> {
        let Some((primary, addresses)) = addresses.split_first() else {
            return Err(BuildError::StoreUrl {
                url: String::new(),
                why: format!("the primary {master:?} needs the address of at least one sentinel")
                    .into(),
            });
        };
        Ok(Sentinels {
            master: master.to_owned(),
            addresses: addresses.to_vec(),
            primary: primary.clone(),
            tls: tls.clone(),
            found: Mutex::default(),
        })
    }

    /// Connects to the primary, and checks its role.
    ///
    /// Without a majority, the primary of the last connection has precedence for as long as it confirms its role.
    pub(crate) async fn dial(&self) -> RedisResult<Wire> {
        let votes = self.ask_all().await?;
        let found = self.found.lock().clone();
        if let Some(host) = votes.majority(self.addresses.len()) {
            // Noted only after the server has confirmed its role: `primary_has_moved` compares the votes with it, and
            // must not take a primary that was only named for the one in use.
            let wire = self.dial_primary(host).await?;
            self.remember(host);
            return Ok(wire);
        }
        // Bounded, since a dead primary must leave time for the one that the sentinels name.
        if let Some(found) = found
            && let Some(Ok(wire)) = Deadline::after(ASK).bound(self.dial_primary(&found)).await
        {
            self.remember(&found);
            return Ok(wire);
        }
        let host = votes.most()?;
        let wire = self.dial_primary(host).await?;
        // Only once for each primary: connections and attempts are many.
        if self.remember(host).as_ref() != Some(host) {
            let doubt = votes.doubt(host, self.addresses.len());
            tracing::warn!(target: "spillgate", master = %self.master, primary = %host, "{doubt}");
        }
        Ok(wire)
    }

    /// Notes the primary of the last connection, and returns the one before.
    fn remember(&self, primary: &Host) -> Option<Host> {
        self.found.lock().replace(primary.clone())
    }

    async fn dial_primary(&self, host: &Host) -> RedisResult<Wire> {
        let wire = self.dial_server(host).await?;
        // Sentinels may be late: an old primary must not get calls although they name it.
        let role = wire.send(&::redis::cmd("ROLE")).await?.value();
        match role {
            Value::Array(role) if role.first() == Some(&Value::BulkString(b"master".to_vec())) => {
                Ok(wire)
            }
            _ => Err(trouble(format!("{host} is not a primary, but the sentinels name it"))),
        }
    }

    /// Connects to one of the watched servers.
    pub(crate) async fn dial_server(&self, host: &Host) -> RedisResult<Wire> {
        let secured = matches!(self.primary.at, At::Tls(_));
        wire::dial(&Address::of_host(host, secured, &self.primary.login), &self.tls).await
    }

    /// Returns whether most sentinels name another server than that of the last connection.
    pub(crate) async fn primary_has_moved(&self) -> bool {
        // Sentinels that do not answer prove no change.
        let Ok(votes) = self.ask_all().await else { return false };
        let found = self.found.lock();
        match (votes.majority(self.addresses.len()), &*found) {
            (Some(host), Some(found)) => host != found,
            _ => false,
        }
    }

    /// Asks all sentinels at once, until most have named one server.
    async fn ask_all(&self) -> RedisResult<Votes> {
        let (mut votes, mut why) = (Votes::default(), trouble("no sentinel answered".into()));
        let asked = self
            .addresses
            .iter()
            .map(|sentinel| async { Deadline::after(ASK).bound(self.ask(sentinel)).await });
        let mut asked: FuturesUnordered<_> = asked.collect();
        // A sentinel that hangs delays nothing once the others agree: dropping the rest ends their connections.
        while votes.majority(self.addresses.len()).is_none() {
            match asked.next().await {
                Some(Some(Ok(host))) => votes.add(host),
                Some(Some(Err(error))) => why = error,
                Some(None) => {}
                None if votes.0.is_empty() => return Err(why),
                None => break,
            }
        }
        Ok(votes)
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

/// The servers that sentinels name as the primary, with the number of sentinels that name each.
#[derive(Debug, Default)]
struct Votes(Vec<(Host, usize)>);

impl Votes {
    fn add(&mut self, host: Host) {
        match self.0.iter_mut().find(|(other, _)| *other == host) {
            Some((_, votes)) => *votes += 1,
            None => self.0.push((host, 1)),
        }
    }

    /// Returns the server that most of `sentinels` name, if they do.
    fn majority(&self, sentinels: usize) -> Option<&Host> {
        self.0.iter().find(|(_, votes)| 2 * votes > sentinels).map(|(host, _)| host)
    }

    /// Returns the warning that too few of `sentinels` name `primary`.
    fn doubt(&self, primary: &Host, sentinels: usize) -> String {
        let answered: usize = self.0.iter().map(|(_, votes)| votes).sum();
        let named = self.0.iter().find(|(host, _)| host == primary).map_or(0, |(_, votes)| *votes);
        format!(
            "no majority of the sentinels: {answered} of {sentinels} answered, and {named} named this primary, which \
             is used; it may be the wrong one until a majority answers, so check that the others run"
        )
    }

    /// Returns the server that more sentinels name than any other.
    fn most(&self) -> RedisResult<&Host> {
        let most = self.0.iter().map(|(_, votes)| *votes).max();
        match &self.0.iter().filter(|(_, votes)| Some(*votes) == most).collect::<Vec<_>>()[..] {
            [(host, _)] => Ok(host),
            hosts => {
                let hosts: Vec<String> = hosts.iter().map(|(host, _)| host.to_string()).collect();
                Err(trouble(format!(
                    "the sentinels disagree about the primary: {}; run SENTINEL \
                     GET-MASTER-ADDR-BY-NAME on each, and reset the wrong one",
                    hosts.join(", ")
                )))
            }
        }
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

/// The time limit for one sentinel. It and a connection to the primary fit one attempt to connect.
const ASK: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_is_of_all_sentinels_and_a_tie_names_both_servers() {
        let host = |name: &str| Host { name: name.into(), port: 6379 };
        let votes = |named: &str| {
            let mut votes = Votes::default();
            named.chars().for_each(|name| votes.add(host(&name.to_string())));
            votes
        };
        for (named, majority, most) in [
            ("aab", Some("a"), Some("a")),
            ("baa", Some("a"), Some("a")),
            ("ab", None, None),
            ("b", None, Some("b")),
            ("bb", Some("b"), Some("b")),
        ] {
            let votes = votes(named);
            assert_eq!(votes.majority(3), majority.map(host).as_ref(), "{named}");
            assert_eq!(votes.most().ok(), most.map(host).as_ref(), "{named}");
        }
        let doubt = |named: &str, sentinels| votes(named).doubt(&host("a"), sentinels);
        assert!(doubt("a", 3).contains("1 of 3 answered, and 1 named this primary"));
        assert!(doubt("aab", 5).contains("3 of 5 answered, and 2 named this primary"));
        let tie = votes("ab").most().unwrap_err().to_string();
        assert!(tie.contains("disagree about the primary: a:6379, b:6379"), "{tie}");
    }
}
