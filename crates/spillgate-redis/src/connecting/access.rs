//! Logins and certificates for the servers of a store.
//!
//! Both may change at run time. New connections use the new ones; open connections stay.

use std::fmt;
use std::sync::Arc;

use ::redis::RedisConnectionInfo;
use arc_swap::ArcSwap;
use tokio_rustls::TlsConnector;

use super::address::{Address, At};
use super::tls;
use crate::error::BuildError;
use crate::store::{Store, Tls};

/// The TLS configuration of connections. Clones share it.
#[derive(Clone)]
pub(crate) struct Connector(Arc<ArcSwap<TlsConnector>>);

/// The logins and certificates of one store.
#[derive(Debug)]
pub struct Access {
    /// For each server of the settings, in their order.
    pub(crate) addresses: Vec<Address>,
    pub(crate) tls: Connector,
}

impl Connector {
    fn new(connector: TlsConnector) -> Connector {
        Connector(Arc::new(ArcSwap::from_pointee(connector)))
    }

    /// Returns the certificates for the next connection.
    pub(crate) fn get(&self) -> Arc<TlsConnector> {
        self.0.load_full()
    }
}

impl Access {
    pub fn from_store(store: &Store, tls: Option<&Tls>) -> Result<Access, BuildError> {
        let connector = tls::connector(tls, store.is_secured())?;
        Ok(Access { addresses: addresses_of(store)?, tls: Connector::new(connector) })
    }

    /// Takes logins and certificates from `other`, which must have the same servers and databases.
    pub fn take_over(&self, other: &Access) -> Result<(), BuildError> {
        let is_same = |(ours, theirs): (&Address, &Address)| {
            ours.at == theirs.at && ours.login.get().db() == theirs.login.get().db()
        };
        let servers = self.addresses.len() == other.addresses.len();
        if !servers || !self.addresses.iter().zip(&other.addresses).all(is_same) {
            return Err(BuildError::OtherStore);
        }
        for (ours, theirs) in self.addresses.iter().zip(&other.addresses) {
            ours.login.set(theirs.login.get());
        }
        self.tls.0.store(other.tls.get());
        Ok(())
    }
}

/// Returns the addresses of a store's servers, in the order of its settings.
pub fn addresses_of(store: &Store) -> Result<Vec<Address>, BuildError> {
    match store {
        Store::Url(url) => Ok(vec![Address::parse(url)?]),
        Store::Sentinel { urls, password, .. } => of_sentinels(urls, password.as_deref()),
        Store::Cluster(urls) => urls.iter().map(|url| Address::parse(url)).collect(),
        Store::Ring(ring) => {
            ring.checked_nodes()?.iter().map(|node| Address::parse(&node.url)).collect()
        }
    }
}

/// Returns an address with login and transport of the primary, which are those of the first sentinel, and the addresses
/// of all sentinels. A sentinel that is listed twice is refused, because its answer would count as two of a majority.
fn of_sentinels(urls: &[String], password: Option<&str>) -> Result<Vec<Address>, BuildError> {
    let all = urls.first().into_iter().chain(urls);
    let addresses: Vec<Address> = all.map(|url| Address::parse(url)).collect::<Result<_, _>>()?;
    let mut sentinels = addresses.iter().skip(1);
    while let Some(sentinel) = sentinels.next() {
        if sentinels.clone().any(|other| is_one_server(&sentinel.at, &other.at)) {
            let why =
                "this sentinel is listed twice and would count as two; list each sentinel once";
            return Err(BuildError::StoreUrl { url: sentinel.at.to_string(), why: why.into() });
        }
    }
    if let Some(password) = password {
        for Address { login, .. } in addresses.iter().skip(1) {
            let own = RedisConnectionInfo::default().set_password(password);
            login.set(Arc::new(own.set_db(login.get().db())));
        }
    }
    Ok(addresses)
}

/// Returns whether two addresses are surely those of one server, with TLS or without it.
fn is_one_server(one: &At, other: &At) -> bool {
    match (one, other) {
        (At::Tcp(one) | At::Tls(one), At::Tcp(other) | At::Tls(other)) => {
            one.port == other.port && one.name.eq_ignore_ascii_case(&other.name)
        }
        _ => one == other,
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Ring;

    fn access_to(store: &Store) -> Access {
        Access::from_store(store, None).unwrap()
    }

    #[test]
    fn new_logins_of_the_same_servers_apply_everywhere() {
        let url = |password: &str| Store::Url(format!("redis://me:{password}@a:1/2"));
        let access = access_to(&url("old"));
        let shared = access.addresses[0].login.clone();
        access.take_over(&access_to(&url("new"))).unwrap();
        assert_eq!(shared.get().password(), Some("new"));
    }

    #[test]
    fn another_server_or_database_changes_nothing() {
        let access = access_to(&Store::Url("redis://:old@a:1/2".into()));
        let ring = Ring::new().node("a", "redis://:new@a:1/2").node("b", "redis://:new@b:1");
        for other in [
            Store::Url("redis://:new@b:1/2".into()),
            Store::Url("rediss://:new@a:1/2".into()),
            Store::Url("redis://:new@a:1/3".into()),
            Store::Ring(ring),
        ] {
            assert!(matches!(access.take_over(&access_to(&other)), Err(BuildError::OtherStore)));
        }
        assert_eq!(access.addresses[0].login.get().password(), Some("old"));
    }

    #[test]
    fn a_sentinel_that_is_listed_twice_is_refused() {
        let check = |urls: &[&str]| {
            let urls = urls.iter().map(|url| (*url).to_owned()).collect();
            addresses_of(&Store::Sentinel { master: "m".into(), urls, password: None })
        };
        check(&["redis://a:1", "redis://a:2", "redis://b:1"]).unwrap();
        for again in ["redis://a:1", "redis://A:1", "redis://me:hunter2@a:1/3", "rediss://a:1"] {
            let error = check(&["redis://a:1", "redis://b:1", again]).unwrap_err().to_string();
            assert_eq!(
                error,
                "store address \"redis://a:1\": this sentinel is listed twice and would count as two; \
                 list each sentinel once"
            );
        }
    }
}
