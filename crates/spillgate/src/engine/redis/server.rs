//! Where a link's connections lead: to an address, or to whoever the sentinels say is primary.

use std::fmt;
use std::sync::Arc;

use ::redis::RedisResult;

use super::access::Connector;
use super::address::{Address, At, Host};
use super::sentinel::Sentinels;
use super::wire::{self, Wire};

/// One primary, as it is found.
#[derive(Clone)]
pub(super) enum Server {
    At { address: Address, tls: Connector },
    WatchedBy(Arc<Sentinels>),
}

impl Server {
    /// A new connection. Every wait on the way is the caller's to bound.
    pub(super) async fn dial(&self) -> RedisResult<Wire> {
        match self {
            Server::At { address, tls } => wire::dial(address, tls).await,
            Server::WatchedBy(sentinels) => sentinels.dial().await,
        }
    }

    /// A new connection to a replica of it, which is logged into as it is.
    pub(super) async fn dial_replica(&self, host: &Host) -> RedisResult<Wire> {
        match self {
            Server::At { address: Address { at, login }, tls } => {
                let secured = matches!(at, At::Tls(_));
                wire::dial(&Address::of_host(host, secured, login), tls).await
            }
            Server::WatchedBy(sentinels) => sentinels.dial_server(host).await,
        }
    }

    /// The host and port, where that is what it goes by.
    pub(super) fn host(&self) -> Option<&Host> {
        match self {
            Server::At { address: Address { at: At::Tcp(host) | At::Tls(host), .. }, .. } => {
                Some(host)
            }
            Server::At { .. } | Server::WatchedBy(_) => None,
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Server::At { address, .. } => address.at.fmt(f),
            Server::WatchedBy(sentinels) => sentinels.fmt(f),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
