//! A server's address and login, parsed from a URL. Displayed, it never contains credentials.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use ::redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};
use arc_swap::ArcSwap;

use crate::error::BuildError;

/// A server's address, with the login for it.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) at: At,
    pub(crate) login: Login,
}

/// User, password and database at a server. Clones share it.
#[derive(Clone)]
pub(crate) struct Login(Arc<ArcSwap<RedisConnectionInfo>>);

/// The transport to a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum At {
    Tcp(Host),
    Tls(Host),
    Unix(PathBuf),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) port: u16,
}

impl Address {
    /// Parses `redis://`, `rediss://` and `unix://` URLs.
    pub(crate) fn parse(url: &str) -> Result<Address, BuildError> {
        let wrong = |why: String| BuildError::StoreUrl { url: redacted(url), why: why.into() };
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
        // The library would ignore such a parameter, and take what precedes it for the host.
        if scheme != "unix" && splits_login(rest) {
            return Err(wrong(format!("{ESCAPE}; {REMEDY}")));
        }
        let path = rest.split_once('?').map_or(rest, |(path, _)| path);
        if scheme == "unix" && path.contains(['&', ';']) {
            return Err(wrong(format!("parameters begin with a ?; {REMEDY}")));
        }
        let info = plain
            .as_str()
            .into_connection_info()
            .map_err(|_| wrong(format!("{}; {REMEDY}", wrong_part(scheme, rest))))?;
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

    /// Creates the address of another server with the same transport and login.
    pub(crate) fn of_host(host: &Host, secured: bool, login: &Login) -> Address {
        let at = if secured { At::Tls(host.clone()) } else { At::Tcp(host.clone()) };
        Address { at, login: login.clone() }
    }
}

impl Login {
    pub(crate) fn new(login: RedisConnectionInfo) -> Login {
        Login(Arc::new(ArcSwap::from_pointee(login)))
    }

    /// Returns the login for the next connection.
    pub(crate) fn get(&self) -> Arc<RedisConnectionInfo> {
        self.0.load_full()
    }

    /// Replaces the login, from the next connection on.
    pub(crate) fn set(&self, login: Arc<RedisConnectionInfo>) {
        self.0.store(login);
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

/// Debug output must not contain credentials.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(..)")
    }
}

/// Returns which part of a URL is wrong, since the library does not name it. The part is not
/// quoted: it may belong to a password.
fn wrong_part(scheme: &str, rest: &str) -> &'static str {
    if scheme == "unix" {
        return "the path must begin with /, and db must be a number";
    }
    let location = rest.split('?').next().unwrap_or_default();
    let location = location.rsplit_once('@').map_or(location, |(_, location)| location);
    let (server, path) = location.split_once('/').unwrap_or((location, ""));
    let database = path.trim_matches('/');
    // The colons of an IPv6 address are within brackets.
    let after_address = server.rfind(']').map_or(0, |end| end + 1);
    let (host, port) = match server[after_address..].split_once(':') {
        Some((name, port)) => (&server[..after_address + name.len()], port),
        None => (server, ""),
    };
    match host {
        "" => "the host is missing",
        "0.0.0.0" | "[::]" => "the host must be that of one server",
        _ if !port.is_empty() && port.parse::<u16>().is_err() => {
            "the port must be a number up to 65535"
        }
        _ if !database.is_empty() && database.parse::<i64>().is_err() => {
            "the database must be a number"
        }
        _ if rest.contains("protocol=") => "the protocol must be resp2 or resp3",
        _ => ESCAPE,
    }
}

/// Returns whether the first `?` is before an `@`, so that it belongs to a user or a password and begins no parameters.
fn splits_login(rest: &str) -> bool {
    rest.split_once('?').is_some_and(|(_, query)| query.contains('@'))
}

/// Replaces the credentials in a URL that cannot be parsed. Where it is unclear whether a part belongs to a password,
/// that part is replaced too.
fn redacted(url: &str) -> String {
    // A password may have `://` too, but then a character before it is not that of a scheme.
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            (&url[..scheme.len() + "://".len()], rest)
        }
        _ => ("", url),
    };
    let location = match rest.rsplit_once('@') {
        // The parameters of a socket may have a password with an @, but its path has no login.
        _ if scheme == "unix://" && rest.starts_with('/') => without_parameters(rest),
        // The last @ belongs to a password in the parameters or to one that should be escaped.
        Some((login, _)) if login.split_once('?').is_some_and(|(_, query)| query.contains('=')) => {
            "***".to_owned()
        }
        Some((_, server)) => format!("***@{}", without_parameters(server)),
        None if rest.starts_with('[') => without_parameters(rest),
        // Without an @, a password may follow the colon.
        None => match rest.find([':', '?']) {
            Some(sign) => format!("{}***", &rest[..=sign]),
            None => rest.to_owned(),
        },
    };
    format!("{scheme}{location}")
}

fn without_parameters(location: &str) -> String {
    // Parameters may begin with another sign by mistake.
    match location.find(['?', '&', ';', '#']) {
        Some(sign) => format!("{}***", &location[..=sign]),
        None => location.to_owned(),
    }
}

const ESCAPE: &str = "the host, the user or the password has a character that must be escaped, such as %2F for / and %3F for ?";
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
    fn an_invalid_address_is_refused_by_its_wrong_part() {
        for (url, part) in [
            ("redis://127.0.0.1:6379/x", "the database must be a number"),
            ("redis://[::1]:6379/x?protocol=resp3", "the database must be a number"),
            ("redis://127.0.0.1:99999", "the port must be a number up to 65535"),
            ("rediss://me:hunter2@[::1]:port/3", "the port must be a number up to 65535"),
            ("redis://", "the host is missing"),
            ("redis://me:hunter2@:6379", "the host is missing"),
            ("redis://0.0.0.0", "the host must be that of one server"),
            ("redis://store.example?protocol=9", "the protocol must be resp2 or resp3"),
            ("redis://me:hunt/er2@store.example", "the host, the user or the password has"),
            ("redis://me:hunt?er2@store.example", "the host, the user or the password has"),
            ("redis://me:1234?er2@store.example", "the host, the user or the password has"),
        ] {
            let BuildError::StoreUrl { why, .. } = Address::parse(url).unwrap_err() else {
                panic!("{url}");
            };
            assert!(why.starts_with(part) && why.ends_with(REMEDY), "{url}: {why}");
        }
    }

    #[test]
    fn a_password_that_is_not_escaped_is_never_quoted() {
        for (url, quoted) in [
            ("redis://me:hunter2?x@store.example:6379", "redis://***@store.example:6379"),
            ("redis://me:1234?hunter2@store.example/3?x", "redis://***@store.example/3?***"),
            ("redis://me:hunter2?x=y@store.example", "redis://***"),
            ("redis://store.example?pass=x@hunter2", "redis://***"),
            ("redis://me:hunter2", "redis://me:***"),
            ("redis://:hunter2?x", "redis://:***"),
            ("redis://me:hunter2/x?y", "redis://me:***"),
            ("me:hunter2://x", "me:***"),
            ("unix:///run/a.sock?pass=x@hunter2&db=x", "unix:///run/a.sock?***"),
            ("unix:///run/a.sock&pass=hunter2", "unix:///run/a.sock&***"),
            ("unix:///run/a.sock#hunter2", "unix:///run/a.sock#***"),
            ("unix://:hunter2?x@/run/a.sock", "unix://***@/run/a.sock"),
            ("redis://[::1]:6379/x?protocol=resp3", "redis://[::1]:6379/x?***"),
        ] {
            let BuildError::StoreUrl { url: found, .. } = Address::parse(url).unwrap_err() else {
                panic!("{url}");
            };
            assert_eq!(found, quoted, "{url}");
        }
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
