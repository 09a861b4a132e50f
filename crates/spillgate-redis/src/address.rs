//! A server's address and login, parsed from a URL. Displayed, it never contains credentials.

use std::fmt;
use std::path::PathBuf;

use ::redis::{ConnectionAddr, IntoConnectionInfo};

use super::access::Login;
use crate::error::BuildError;

/// A server's address, with the login for it.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) at: At,
    /// User, password and database.
    pub(super) login: Login,
}

/// The transport to a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum At {
    Tcp(Host),
    Tls(Host),
    Unix(PathBuf),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) port: u16,
}

impl Address {
    /// Parses `redis://`, `rediss://` and `unix://` URLs.
    pub(super) fn parse(url: &str) -> Result<Address, BuildError> {
        let wrong = |why: String| BuildError::StoreUrl { url: redacted(url), why };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong(REMEDY.into()))?;
        if rest.contains('#') {
            return Err(wrong("nothing may follow a #; name the CA to trust instead".into()));
        }
        // The library parses both in the same way; TLS is handled here.
        let plain = match scheme {
            "redis" | "rediss" => format!("redis://{rest}"),
            "unix" => url.to_owned(),
            _ => return Err(wrong(REMEDY.into())),
        };
        let info = plain
            .as_str()
            .into_connection_info()
            .map_err(|error| wrong(format!("{}; {REMEDY}", error.category())))?;
        let at = match info.addr() {
            ConnectionAddr::Tcp(name, port) => {
                let host = Host { name: name.clone(), port: *port };
                if scheme == "rediss" { At::Tls(host) } else { At::Tcp(host) }
            }
            ConnectionAddr::Unix(path) => At::Unix(path.clone()),
            _ => return Err(wrong(REMEDY.into())),
        };
        Ok(Address { at, login: Login::new(info.redis_settings().clone()) })
    }
}

impl Address {
    /// Creates the address of another server with the same transport and login.
    pub(super) fn of_host(host: &Host, secured: bool, login: &Login) -> Address {
        let at = if secured { At::Tls(host.clone()) } else { At::Tcp(host.clone()) };
        Address { at, login: login.clone() }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Tcp(host) => write!(f, "redis://{host}"),
            At::Tls(host) => write!(f, "rediss://{host}"),
            At::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

/// Shows the transport and the host, without the login.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.at, f)
    }
}

/// Replaces the credentials in a URL, wherever it has some.
fn redacted(url: &str) -> String {
    let scheme = url.find("://").map_or(0, |at| at + 3);
    let (location, query) = url[scheme..].split_once('?').unwrap_or((&url[scheme..], ""));
    let location = match location.rfind('@') {
        Some(at) => format!("***{}", &location[at..]),
        None => location.to_owned(),
    };
    let query = if query.is_empty() { "" } else { "?***" };
    format!("{}{location}{query}", &url[..scheme])
}

const REMEDY: &str =
    "write redis://user:password@host:port/database, rediss:// for TLS, or unix:///path?db=0";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_is_read_and_shown_without_credentials() {
        for (url, shown) in [
            ("redis://me:hunter2@store.example:7000/3", "redis://store.example:7000"),
            ("redis://store.example", "redis://store.example:6379"),
            ("rediss://:hunter2@[::1]:7000", "rediss://[::1]:7000"),
            ("unix:///run/redis.sock?db=2&pass=hunter2", "unix:///run/redis.sock"),
        ] {
            assert_eq!(format!("{:?}", Address::parse(url).unwrap()), shown);
        }
        let address = Address::parse("redis://me:hunter2@store.example:7000/3").unwrap();
        let login = address.login.get();
        assert_eq!((login.username(), login.db()), (Some("me"), 3));
        assert_eq!(login.password(), Some("hunter2"));
    }

    #[test]
    fn an_invalid_address_is_quoted_without_credentials() {
        for url in [
            "http://me:hunter2@store.example",
            "redis://me:hunter2@store.example:port",
            "redis://me:hunter2@store.example/database",
            "rediss://me:hunter2@store.example/#insecure",
            "unix://store?pass=hunter2",
            "store.example",
            "",
        ] {
            let said = Address::parse(url).unwrap_err().to_string();
            assert!(!said.contains("hunter2"), "{said}");
            assert!(said.contains("redis://user") || said.contains("CA"), "{said}");
        }
    }
}
