//! Normalises the value of a field for its attribute, as the APIs of `spillgate serve` do.

use std::borrow::Cow;
use std::net::IpAddr;

use spillgate::http::{ByIp, normalised_host};

use crate::simulate::event::Event;

/// How a value is normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    Address,
    Method,
    Path,
    Host,
    AsItIs,
}

impl Spelling {
    /// Returns the normalisation of the attribute, else that of the field that holds it.
    pub(super) fn of(attribute: &str, field: &str) -> Spelling {
        match Spelling::of_name(attribute) {
            Spelling::AsItIs => Spelling::of_name(well_known(field).unwrap_or(field)),
            spelling => spelling,
        }
    }

    fn of_name(name: &str) -> Spelling {
        match name {
            "ip" => Spelling::Address,
            "method" => Spelling::Method,
            "path" => Spelling::Path,
            "host" => Spelling::Host,
            _ => Spelling::AsItIs,
        }
    }

    /// Adds the normalised value to the event. An empty value, or the `-` that logs write for none, is not added.
    pub(super) fn add(self, value: &[u8], attribute: usize, event: &mut Event) {
        if value.is_empty() || value == b"-" {
            return;
        }
        match self {
            Spelling::AsItIs => event.add(attribute, value),
            Spelling::Address => event.add(attribute, &address(value)),
            Spelling::Method => event.add(attribute, &upper_case(value)),
            Spelling::Path => event.add_path(attribute, value),
            Spelling::Host => event.add(attribute, &normalised_host(value)),
        }
    }
}

/// Splits `GET /path HTTP/1.1` into method and target. Returns `None` for bytes that are no request line.
pub(super) fn request_line(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = memchr::memchr(b' ', line)?;
    let (method, target) = (&line[..space], &line[space + 1..]);
    let target = match memchr::memrchr(b' ', target) {
        Some(end) if target[end + 1..].starts_with(b"HTTP/") => &target[..end],
        _ => target,
    };
    let is_method =
        !method.is_empty() && method.iter().all(|byte| byte.is_ascii_alphabetic() || *byte == b'-');
    (is_method && !target.is_empty()).then_some((method, target))
}

/// Returns a parameter of a target's query. If it has several values, it is the subject that forward auth gives them.
pub(super) fn parameter<'t>(target: &'t [u8], name: &str) -> Option<Cow<'t, str>> {
    let query = &target[memchr::memchr(b'?', target)? + 1..];
    let query = query.split(|byte| *byte == b'#').next().unwrap_or_default();
    let mut values = form_urlencoded::parse(query).filter(|(known, _)| known == name);
    let (_, first) = values.next()?;
    Some(if values.all(|(_, value)| value == first) { first } else { "several values".into() })
}

/// Returns the usual names of an attribute's field; the first is the attribute's own name.
pub(super) fn names_of(attribute: &str) -> impl Iterator<Item = &'static str> + use<> {
    let names = WELL_KNOWN.into_iter().find(|names| names.split(' ').next() == Some(attribute));
    names.into_iter().flat_map(|names| names.split(' '))
}

/// Returns the attribute that a field of this name usually holds.
fn well_known(field: &str) -> Option<&'static str> {
    let names = WELL_KNOWN.into_iter().find(|names| names.split(' ').any(|name| name == field));
    names.and_then(|names| names.split(' ').next())
}

/// Normalises an address as an API does: without a port. The policy cuts IPv6 to the prefix of a client. Other text,
/// such as a host name that a server looked up, stays as it is.
fn address(value: &[u8]) -> Cow<'_, [u8]> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let bare = text.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(bare, _)| bare);
    let parsed = bare.unwrap_or(text).parse::<IpAddr>().ok();
    match parsed.or_else(|| text.parse().ok().map(|with_port: std::net::SocketAddr| with_port.ip()))
    {
        // IPv4 without leading zeros has only one notation.
        Some(IpAddr::V4(_)) if bare.is_none() && !text.contains(':') => Cow::Borrowed(value),
        Some(address) => Cow::Owned(ByIp::direct().attribute(address).into_bytes()),
        None => Cow::Borrowed(value),
    }
}

fn upper_case(value: &[u8]) -> Cow<'_, [u8]> {
    match value.iter().any(u8::is_ascii_lowercase) {
        true => Cow::Owned(value.to_ascii_uppercase()),
        false => Cow::Borrowed(value),
    }
}

/// The names in nginx, Apache, Caddy, Traefik, Envoy, HAProxy and the clouds, the attribute's own name first.
const WELL_KNOWN: [&str; 10] = [
    "time timestamp @timestamp ts time_iso8601 time_local start_time StartUTC datetime date msec \
     requestTime",
    "ip client_ip remote_addr remote_ip clientip ClientHost downstream_remote_address source_ip \
     src_ip client.ip source.ip request.client_ip request.remote_ip httpRequest.remoteIp \
     remote_host",
    "method request_method http_method RequestMethod verb request.method http.request.method \
     httpRequest.requestMethod",
    "path request_uri uri url RequestPath request_path target request.uri request.path \
     request.url url.original url.path httpRequest.requestUrl",
    "host http_host RequestHost vhost authority server_name request.host url.domain",
    "user remote_user user_id username auth_user ClientUsername user.name user.id",
    "status status_code response_code DownstreamStatus http_status httpRequest.status \
     http.response.status_code",
    "bytes body_bytes_sent bytes_sent size response_size DownstreamContentSize \
     httpRequest.responseSize http.response.body.bytes",
    "referer http_referer referrer request_Referer httpRequest.referer",
    "user-agent http_user_agent user_agent agent request_User-Agent user_agent.original \
     httpRequest.userAgent",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(spelling: Spelling, value: &str) -> Option<String> {
        let mut event = Event::default();
        spelling.add(value.as_bytes(), 0, &mut event);
        event.value(0).map(|value| String::from_utf8(value.to_vec()).unwrap())
    }

    #[test]
    fn values_are_normalised_as_by_the_apis() {
        for (spelling, written, expected) in [
            (Spelling::Address, "203.0.113.7", "203.0.113.7"),
            (Spelling::Address, "203.0.113.7:4711", "203.0.113.7"),
            (Spelling::Address, "::ffff:203.0.113.7", "203.0.113.7"),
            (Spelling::Address, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2:3:4:5:6"),
            (Spelling::Address, "[2001:db8:1:2:3:4:5:6]:443", "2001:db8:1:2:3:4:5:6"),
            (Spelling::Address, "host.example", "host.example"),
            (Spelling::Method, "get", "GET"),
            (Spelling::Path, "//a/../b/%7e?x=1", "/b/~"),
            (Spelling::Host, "Example.ORG.:8443", "example.org"),
            (Spelling::Host, ":80", ""),
            (Spelling::AsItIs, "Ann", "Ann"),
        ] {
            assert_eq!(spelled(spelling, written).as_deref(), Some(expected), "{written}");
        }
        assert_eq!(spelled(Spelling::AsItIs, "-"), None);
        assert_eq!(spelled(Spelling::AsItIs, ""), None);
    }

    #[test]
    fn the_attribute_decides_the_normalisation_and_else_the_field() {
        assert_eq!(Spelling::of("ip", "anything"), Spelling::Address);
        assert_eq!(Spelling::of("route", "request_uri"), Spelling::Path);
        assert_eq!(Spelling::of("route", "handler"), Spelling::AsItIs);
    }

    #[test]
    fn a_request_line_has_a_method_and_a_target() {
        let parts = |line: &'static str| request_line(line.as_bytes());
        assert_eq!(parts("GET /a?b HTTP/1.1"), Some((&b"GET"[..], &b"/a?b"[..])));
        assert_eq!(parts("GET /a b HTTP/1.1"), Some((&b"GET"[..], &b"/a b"[..])));
        assert_eq!(parts("GET /old"), Some((&b"GET"[..], &b"/old"[..])));
        for line in ["", "-", "\\x16\\x03\\x01 x", "GET ", " /a"] {
            assert_eq!(parts(line), None, "{line}");
        }
        let user = |target: &'static str| parameter(target.as_bytes(), "user");
        assert_eq!(user("/a?x=1&user=a%20b&user=a+b#?user=d").as_deref(), Some("a b"));
        assert_eq!(user("/a?user=a&user=b").as_deref(), Some("several values"));
        assert_eq!(parameter(b"/a", "user"), None);
    }
}
