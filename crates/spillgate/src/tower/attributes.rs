//! Where the attributes of a request come from.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::HeaderName;

use super::Head;
use super::diagnostics::{Diagnostic, Diagnostics};
use crate::identity::{AddressText, ByIp};
use spillgate_core::path::normalised_path;

/// Where the value of an attribute comes from: [`ByIp`], or one of the functions of this module.
#[derive(Clone)]
pub struct Identity(Kind);

#[derive(Clone)]
enum Kind {
    Ip(ByIp),
    Header(HeaderName),
    Method,
    Path,
    PathSegment(usize),
    #[cfg(feature = "axum")]
    MatchedPath,
    #[cfg(feature = "axum")]
    PathParameter(Box<str>),
    Constant(Box<[u8]>),
    Closure(Arc<Closure>),
}

type Closure = dyn Fn(Head<'_>) -> Option<Vec<u8>> + Send + Sync;

/// The value that one request has for an attribute.
pub(super) enum Found<'r> {
    Borrowed(&'r [u8]),
    Owned(Vec<u8>),
    Address(AddressText),
}

/// The first header line of that name. Whoever sends the request chooses it: limit by a header only
/// what was authenticated before, or what nobody gains by changing.
///
/// # Panics
/// If this is no name of a header.
#[track_caller]
pub fn from_header(name: &str) -> Identity {
    match HeaderName::try_from(name) {
        Ok(name) => Identity(Kind::Header(name)),
        Err(_) => panic!("{name:?} is no name of a header; write one such as \"x-api-key\""),
    }
}

/// The method, upper-case as it is sent.
pub fn from_method() -> Identity {
    Identity(Kind::Method)
}

/// The path in its [one spelling](normalised_path).
pub fn from_path() -> Identity {
    Identity(Kind::Path)
}

/// One segment of the path in its one spelling, the first being 0: of `/users/42/posts` segment 1 is
/// `42`. None beyond the last.
pub fn from_path_segment(place: usize) -> Identity {
    Identity(Kind::PathSegment(place))
}

/// The path as the router of axum has it: `/users/{id}`. None where no route matched.
#[cfg(feature = "axum")]
pub fn from_matched_path() -> Identity {
    Identity(Kind::MatchedPath)
}

/// A parameter of the path that the router of axum matched, decoded: of `/users/{id}` the `id`.
#[cfg(feature = "axum")]
pub fn from_path_parameter(name: &str) -> Identity {
    Identity(Kind::PathParameter(name.into()))
}

/// The same for every request.
pub fn constant(value: &str) -> Identity {
    Identity(Kind::Constant(value.as_bytes().into()))
}

/// Whatever a closure says of a request; `None` if it has nothing to say.
///
/// ```
/// use spillgate::tower::from_request;
/// let size = from_request(|head| {
///     let length = head.headers.get("content-length")?.to_str().ok()?;
///     Some(if length.len() > 6 { "large" } else { "small" })
/// });
/// ```
pub fn from_request<V: Into<Vec<u8>>>(
    value: impl Fn(Head<'_>) -> Option<V> + Send + Sync + 'static,
) -> Identity {
    Identity(Kind::Closure(Arc::new(move |head| value(head).map(Into::into))))
}

impl From<ByIp> for Identity {
    fn from(by_ip: ByIp) -> Identity {
        Identity(Kind::Ip(by_ip))
    }
}

impl Identity {
    pub(super) fn by_ip(&self) -> Option<&ByIp> {
        match &self.0 {
            Kind::Ip(by_ip) => Some(by_ip),
            _ => None,
        }
    }

    pub(super) fn find<'r>(
        &'r self,
        head: Head<'r>,
        diagnostics: &Diagnostics,
    ) -> Option<Found<'r>> {
        match &self.0 {
            Kind::Ip(by_ip) => Some(address(by_ip, head, diagnostics)),
            Kind::Header(name) => Some(Found::Borrowed(head.headers.get(name)?.as_bytes())),
            Kind::Method => Some(Found::Borrowed(head.method.as_str().as_bytes())),
            Kind::Path => Some(Found::of_text(normalised_path(head.uri.path()))),
            Kind::PathSegment(place) => {
                let path = normalised_path(head.uri.path());
                let segment = path[1..].split('/').nth(*place).filter(|text| !text.is_empty())?;
                Some(Found::Owned(segment.into()))
            }
            #[cfg(feature = "axum")]
            Kind::MatchedPath => Some(Found::Borrowed(routed::matched_path(head)?.as_bytes())),
            #[cfg(feature = "axum")]
            Kind::PathParameter(name) => Some(Found::Owned(routed::path_parameter(head, name)?)),
            Kind::Constant(value) => Some(Found::Borrowed(value)),
            Kind::Closure(value) => value(head).map(Found::Owned),
        }
    }
}

impl<'r> Found<'r> {
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Found::Borrowed(bytes) => bytes,
            Found::Owned(bytes) => bytes,
            Found::Address(text) => text.as_bytes(),
        }
    }

    fn of_text(text: std::borrow::Cow<'r, str>) -> Found<'r> {
        match text {
            std::borrow::Cow::Borrowed(text) => Found::Borrowed(text.as_bytes()),
            std::borrow::Cow::Owned(text) => Found::Owned(text.into_bytes()),
        }
    }
}

/// Requests whose peer nobody knows are one subject: to leave the attribute out would be to limit
/// nobody.
fn address<'r>(by_ip: &ByIp, head: Head<'_>, diagnostics: &Diagnostics) -> Found<'r> {
    let Some(peer) = peer(head) else {
        diagnostics.warn_once(Diagnostic::NoPeerAddress, || {
            "no request tells its peer's address, so all clients are one: put a SocketAddr into its \
             extensions; with axum, serve into_make_service_with_connect_info::<SocketAddr>(); with \
             axum or tonic, enable the feature of that name"
                .to_owned()
        });
        return Found::Borrowed(NOBODY.as_bytes());
    };
    diagnostics.of_address(by_ip, peer, head);
    Found::Address(by_ip.attribute_text(by_ip.client(peer, head.headers)))
}

/// The peer's address, where servers leave it.
fn peer(head: Head<'_>) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(info) = head.extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
        return Some(info.0.ip());
    }
    #[cfg(feature = "tonic")]
    if let Some(info) = head.extensions.get::<tonic::transport::server::TcpConnectInfo>() {
        return info.remote_addr().map(|peer| peer.ip());
    }
    head.extensions.get::<SocketAddr>().map(SocketAddr::ip)
}

/// What axum's router knows of a request.
#[cfg(feature = "axum")]
mod routed {
    use super::Head;
    use axum::extract::{MatchedPath, OriginalUri};

    pub(super) fn matched_path(head: Head<'_>) -> Option<&str> {
        head.extensions.get::<MatchedPath>().map(MatchedPath::as_str)
    }

    /// The segment that stands where the template has the parameter, or all from there on for
    /// `{*rest}`.
    pub(super) fn path_parameter(head: Head<'_>, name: &str) -> Option<Vec<u8>> {
        let template = matched_path(head)?;
        // Inside a nested router the path has lost its beginning, the template has not.
        let original = head.extensions.get::<OriginalUri>().map(|uri| uri.0.path());
        let mut rest = original.unwrap_or(head.uri.path());
        for segment in template.split('/') {
            let (value, after) = rest.split_once('/').unwrap_or((rest, ""));
            let parameter = segment.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
            match parameter {
                Some(parameter) if parameter == name => return Some(decoded(value)),
                Some(parameter) if parameter.strip_prefix('*') == Some(name) => {
                    return Some(decoded(rest));
                }
                _ => rest = after,
            }
        }
        None
    }

    fn decoded(text: &str) -> Vec<u8> {
        let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
        while let [first, after @ ..] = rest {
            let digit = |place: usize| char::from(*after.get(place)?).to_digit(16);
            match (first, digit(0), digit(1)) {
                (b'%', Some(high), Some(low)) => {
                    bytes.push((high << 4 | low) as u8);
                    rest = &after[2..];
                }
                _ => {
                    bytes.push(*first);
                    rest = after;
                }
            }
        }
        bytes
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Ip(by_ip) => by_ip.fmt(f),
            Kind::Header(name) => write!(f, "from_header({name:?})"),
            Kind::Method => f.write_str("from_method()"),
            Kind::Path => f.write_str("from_path()"),
            Kind::PathSegment(place) => write!(f, "from_path_segment({place})"),
            #[cfg(feature = "axum")]
            Kind::MatchedPath => f.write_str("from_matched_path()"),
            #[cfg(feature = "axum")]
            Kind::PathParameter(name) => write!(f, "from_path_parameter({name:?})"),
            Kind::Constant(value) => write!(f, "constant({:?})", String::from_utf8_lossy(value)),
            Kind::Closure(_) => f.write_str("from_request(..)"),
        }
    }
}

/// What requests without a peer's address are called.
const NOBODY: &str = "unknown";
