//! The target of a link's connections: an address, or the primary that sentinels name.

use std::fmt;
use std::sync::Arc;

use ::redis::RedisResult;

use super::access::Connector;
use super::address::{Address, At, Host};
use super::sentinel::Sentinels;
use super::wire::{self, Wire};

/// A primary, and how to find it.
#[derive(Clone)]
pub(crate) enum Server {
    At { address: Address, tls: Connector },
    WatchedBy(Arc<Sentinels>),
}

impl Server {
    /// Opens a connection. The caller must bound the wait.
    pub(crate) async fn dial(&self) -> RedisResult<Wire> {
        match self {
            Server::At { address, tls } => wire::dial(address, tls).await,
            Server::WatchedBy(sentinels) => sentinels.dial().await,
        }
    }

    /// Returns the host and port, if the server is identified by them.
    pub(crate) fn host(&self) -> Option<&Host> {
        match self {
            Server::At { address: Address { at: At::Tcp(host) | At::Tls(host), .. }, .. } => {
                Some(host)
            }
            // A Unix socket has no host, and sentinels may name another one at any time.
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
