//! The sources of a request's attributes.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::{HeaderName, HeaderValue};

use super::Head;
use super::diagnostics::{Diagnostic, Diagnostics};
use crate::identity::ByIp;
use spillgate_core::Value;
use spillgate_core::ip::AddressText;

/// The source of an attribute's value: [`ByIp`], or one of the functions of this module.
///
/// [`RateLimitLayer::with`](super::RateLimitLayer::with) takes it.
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

/// The value of an attribute in one request.
pub(crate) enum Found<'r> {
    Borrowed(&'r [u8]),
    Owned(Vec<u8>),
    Address(AddressText),
    Value(Value<'r>),
}

/// Takes the header field of this name. Requests that repeat it with several values share one subject, since some
/// handlers take the first value and some the last; see [`Value::of_repeated`].
///
/// Clients choose their headers. Limit by a header only if it was authenticated before, or if
/// clients gain nothing by changing it.
///
/// # Panics
/// If `name` is not a valid header name.
///
/// ```
/// # use spillgate::tower::{RateLimitLayer, from_header};
/// # fn with_attribute(layer: RateLimitLayer) -> RateLimitLayer {
/// layer.with("api_key", from_header("x-api-key"))
/// # }
/// ```
#[track_caller]
pub fn from_header(name: &str) -> Identity {
    match HeaderName::try_from(name) {
        Ok(name) => Identity(Kind::Header(name)),
        Err(_) => panic!("{name:?} is not a header name; write one such as \"x-api-key\""),
    }
}

/// Takes the method, in upper case as it is sent.
///
/// A rule for `GET` does not limit `HEAD`, which axum gives to handlers of `GET`.
///
/// ```
/// # use spillgate::tower::{RateLimitLayer, from_method};
/// # fn with_attribute(layer: RateLimitLayer) -> RateLimitLayer {
/// layer.with("method", from_method())
/// # }
/// ```
pub fn from_method() -> Identity {
    Identity(Kind::Method)
}

/// Takes the path in its [normal form](crate::http::normalised_path). In axum it is the path that the outermost router got: nested
/// routers do not shorten it, and a rewrite behind that router does not count. [`from_request`] can take a rewritten path.
///
/// axum matches the path as it was sent: to the route `/{version}/search` it gives `/./search`, whose normal form is
/// `/search`. Limit a route with parameters by `from_matched_path` (feature `axum`), so that no spelling avoids its rule.
///
/// ```
/// # use spillgate::tower::{RateLimitLayer, from_path};
/// # fn with_attribute(layer: RateLimitLayer) -> RateLimitLayer {
/// layer.with("path", from_path())
/// # }
/// ```
pub fn from_path() -> Identity {
    Identity(Kind::Path)
}

/// Takes one segment of the path of [`from_path`], counted from 0. Segment 1 of `/users/42/posts` is
/// `42`, also in a nested router of axum. There is no value beyond the last segment.
///
/// ```
/// # use spillgate::tower::{RateLimitLayer, from_path_segment};
/// # fn with_attribute(layer: RateLimitLayer) -> RateLimitLayer {
/// layer.with("user", from_path_segment(1))
/// # }
/// ```
pub fn from_path_segment(place: usize) -> Identity {
    Identity(Kind::PathSegment(place))
}

/// Takes the path template of axum's router, for example `/users/{id}`. There is no value if no
/// route matched.
///
/// ```
/// # use spillgate::tower::{RateLimitLayer, from_matched_path};
/// # fn with_attribute(layer: RateLimitLayer) -> RateLimitLayer {
/// layer.with("route", from_matched_path())
/// # }
/// ```
#[cfg(feature = "axum")]
pub fn from_matched_path() -> Identity {
    Identity(Kind::MatchedPath)
}

/// Takes a parameter of the path that axum's router matched, decoded: `id` of `/users/{id}`.
///
/// ```
/// # use spillgate::tower::{RateLimitLayer, from_path_parameter};
/// # fn with_attribute(layer: RateLimitLayer) -> RateLimitLayer {
/// layer.with("user", from_path_parameter("id"))
/// # }
/// ```
#[cfg(feature = "axum")]
pub fn from_path_parameter(name: &str) -> Identity {
    Identity(Kind::PathParameter(name.into()))
}

/// Gives every request the same value.
///
/// ```
/// # use spillgate::tower::{RateLimitLayer, constant};
/// # fn with_attribute(layer: RateLimitLayer) -> RateLimitLayer {
/// layer.with("service", constant("checkout"))
/// # }
/// ```
pub fn constant(value: &str) -> Identity {
    Identity(Kind::Constant(value.as_bytes().into()))
}

/// Takes the value that a closure returns for a request, if it returns one.
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
    pub(crate) fn by_ip(&self) -> Option<&ByIp> {
        match &self.0 {
            Kind::Ip(by_ip) => Some(by_ip),
            _ => None,
        }
    }

    pub(crate) fn find<'r>(
        &'r self,
        head: Head<'r>,
        diagnostics: &Diagnostics,
    ) -> Option<Found<'r>> {
        match &self.0 {
            Kind::Ip(by_ip) => Some(address(by_ip, head, diagnostics)),
            Kind::Header(name) => {
                let lines = head.headers.get_all(name).iter().map(HeaderValue::as_bytes);
                Value::of_repeated(lines).map(Found::Value)
            }
            Kind::Method => Some(Found::Borrowed(head.method.as_str().as_bytes())),
            Kind::Path => Some(Found::Value(Value::of_path(whole_path(head)))),
            Kind::PathSegment(place) => {
                let path = Value::of_path(whole_path(head));
                let segment = |path: &[u8]| {
                    let segment = path.get(1..)?.split(|byte| *byte == b'/').nth(*place)?;
                    (!segment.is_empty()).then(|| segment.to_vec())
                };
                // Readings of different subjects make it a repeated value, so that a client cannot choose the segment.
                let readings = || std::iter::once(path.as_bytes()).chain(path.other_readings());
                let subjects = readings().map(|one| path.subject(|other| other == one));
                let mut segments: Vec<_> = subjects.filter_map(segment).collect();
                // A client could hide a segment by a `%2F..` that its server takes for a part of it.
                if segments.is_empty() {
                    segments.extend(path.other_readings().find_map(segment));
                }
                let found = Value::of_repeated(segments.iter().map(|one| &**one));
                Some(Found::Value(found?.into_owned()))
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

impl Found<'_> {
    pub(crate) fn value(&self) -> Value<'_> {
        match self {
            Found::Borrowed(bytes) => Value::from(*bytes),
            Found::Owned(bytes) => Value::from(&bytes[..]),
            Found::Address(text) => Value::from(text.as_bytes()),
            Found::Value(value) => value.borrowed(),
        }
    }
}

/// Returns the path that axum's outermost router got, else that of the URI. A nested router takes its prefix off the URI.
fn whole_path(head: Head<'_>) -> &str {
    #[cfg(feature = "axum")]
    if let Some(original) = head.extensions.get::<axum::extract::OriginalUri>() {
        return original.0.path();
    }
    head.uri.path()
}

/// Returns the client's address. Requests with an unknown peer share one subject. Without a value
/// no limit by address would apply to them.
fn address<'r>(by_ip: &ByIp, head: Head<'_>, diagnostics: &Diagnostics) -> Found<'r> {
    let Some(peer) = peer(head) else {
        diagnostics.warn_once(Diagnostic::NoPeerAddress, || {
            "requests have no peer address, so all clients count as one: put a SocketAddr into its \
             extensions; with axum, serve into_make_service_with_connect_info::<SocketAddr>(); with \
             axum or tonic, enable the feature of that name"
                .to_owned()
        });
        return Found::Borrowed(NOBODY.as_bytes());
    };
    diagnostics.of_address(by_ip, peer, head);
    Found::Address(by_ip.attribute_text(by_ip.client(peer, head.headers)))
}

/// Returns the peer's address from the extensions, where servers store it.
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

/// Reads data of axum's router.
#[cfg(feature = "axum")]
mod routed {
    use super::{Head, whole_path};
    use axum::extract::MatchedPath;

    pub fn matched_path(head: Head<'_>) -> Option<&str> {
        head.extensions.get::<MatchedPath>().map(MatchedPath::as_str)
    }

    /// Returns the segment in place of the template's parameter, or the rest of the path for
    /// `{*rest}`.
    pub fn path_parameter(head: Head<'_>, name: &str) -> Option<Vec<u8>> {
        let template = matched_path(head)?;
        let mut rest = whole_path(head);
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

/// The address of requests with an unknown peer.
const NOBODY: &str = "unknown";
