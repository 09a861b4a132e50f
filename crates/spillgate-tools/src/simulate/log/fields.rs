//! Makes a request of the fields of a log's line: finds the field of each attribute, and normalises its value as the
//! APIs of `spillgate serve` do.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use spillgate::http::{ByIp, normalised_host};
use spillgate::{Cost, Request, Value};

use super::instant::instant_us;
use super::shown;
use crate::printable;

/// The fields to read of each line.
#[derive(Debug)]
pub(crate) struct Wanted<'w> {
    domain: Option<&'w str>,
    /// Each attribute with its fields; the first that a line has counts.
    attributes: Vec<(&'w str, Vec<&'w str>)>,
    times: Vec<&'w str>,
    /// The unit of a cost, and its field.
    cost: Option<(&'w str, &'w str)>,
    /// The fields that flags name, so they must be there.
    named: Vec<&'w str>,
}

/// A `--map` flag: the field of an attribute or of the time, as in `user=account.id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) attribute: String,
    pub(crate) field: String,
}

impl<'w> Wanted<'w> {
    /// Returns the fields of these attributes: those of `--map`, else those of the usual names. `cost` is a flag
    /// `tokens=usage.total`, or a field whose last part is the unit.
    pub(crate) fn new(
        domain: Option<&'w str>,
        attributes: &[&'w str],
        mappings: &'w [Mapping],
        cost: Option<&'w str>,
    ) -> Result<Wanted<'w>, String> {
        let known = |mapping: &&Mapping| {
            mapping.attribute == TIME || attributes.contains(&mapping.attribute.as_str())
        };
        if let Some(unused) = mappings.iter().find(|mapping| !known(mapping)) {
            let (name, names) = (&unused.attribute, attributes.join(", "));
            return Err(format!("--map: no rule uses attribute {name}; the rules use {names}"));
        }
        let fields_of = |attribute: &'w str| -> Vec<&'w str> {
            let mapped = mappings.iter().filter(|mapping| mapping.attribute == attribute);
            let mapped: Vec<&str> = mapped.map(|mapping| mapping.field.as_str()).collect();
            if !mapped.is_empty() {
                return mapped;
            }
            let usual: Vec<&str> = names_of(attribute).collect();
            if usual.is_empty() { vec![attribute] } else { usual }
        };
        let of_unit = |flag: &'w str| {
            flag.split_once('=').unwrap_or((flag.rsplit('.').next().unwrap_or(flag), flag))
        };
        let cost = cost.map(of_unit);
        let mapped = mappings.iter().map(|mapping| mapping.field.as_str());
        let named = mapped.filter(|field| !field.starts_with(QUERY));
        Ok(Wanted {
            domain,
            attributes: attributes.iter().map(|name| (*name, fields_of(name))).collect(),
            times: fields_of(TIME),
            cost,
            named: named.chain(cost.map(|(_, field)| field)).collect(),
        })
    }

    /// Refuses a log whose lines have these fields, if the time or a field that a flag names is not among them.
    pub fn check(&self, fields: &[&str]) -> Result<(), String> {
        let is_there = |name: &str| fields.iter().any(|field| field.eq_ignore_ascii_case(name));
        let has = |name: &&&str| {
            is_there(name) || matches!(**name, "method" | "path") && is_there("request")
        };
        let problem = match self.named.iter().find(|name| !has(name)) {
            Some(missing) => format!("there is no field {missing:?}"),
            None if self.times.iter().any(|name| has(&name)) => return Ok(()),
            None => NO_TIME.to_owned(),
        };
        let list: String = printable(&fields.join(", ")).chars().take(LIST_MAX).collect();
        let parts = if is_there("request") { ", and of the request method, path" } else { "" };
        Err(format!("{problem}; the fields are {list}{parts}"))
    }

    /// Returns the instant and the request of a line with these fields, or the line's problem.
    pub fn event<'l>(
        &self,
        field: impl Fn(&str) -> Option<Cow<'l, [u8]>>,
    ) -> Result<(u64, Request<'w>), String> {
        // An empty value, or the `-` that logs write for none, is no value.
        let field = |name: &str| field(name).filter(|value| !matches!(&**value, b"" | b"-"));
        let time = self.times.iter().find_map(|name| field(name)).ok_or(NO_TIME)?;
        let at_us = instant_us(&time).ok_or_else(|| {
            let time = shown(&time);
            format!("{time:?} is not a valid time; write RFC 3339 or seconds since 1970")
        })?;
        let line = field("request").unwrap_or_default();
        let (method, target) = request_line(&line).unzip();
        let mut request = Request::new();
        for (attribute, fields) in &self.attributes {
            let value = fields.iter().find_map(|name| match (name.strip_prefix(QUERY), *name) {
                (Some(parameter), _) => {
                    let path = names_of("path").find_map(field);
                    parameter_of(path.as_deref().or(target)?, parameter)
                }
                (None, "method") => {
                    Some(normalised(attribute, name, field(name).as_deref().or(method)?))
                }
                (None, "path") => {
                    Some(normalised(attribute, name, field(name).as_deref().or(target)?))
                }
                (None, _) => Some(normalised(attribute, name, &field(name)?)),
            });
            if let Some(value) = value {
                request.set(*attribute, value);
            }
        }
        if let Some(domain) = self.domain {
            request = request.in_domain(domain);
        }
        if let Some((unit, name)) = self.cost {
            let amount = field(name).map_or(Ok(0), |value| whole_number(&value))?;
            request = request.costing(Cost::default().and(unit, amount));
        }
        Ok((at_us, request))
    }
}

/// Returns the value of an attribute, normalised as the attribute's own name or that of its field asks for.
fn normalised(attribute: &str, field: &str, value: &[u8]) -> Value<'static> {
    let kind = match attribute {
        "ip" | "method" | "path" | "host" => attribute,
        _ => well_known(field),
    };
    match kind {
        "ip" => address(value).into(),
        "method" => value.to_ascii_uppercase().into(),
        "path" => Value::of_path(value).into_owned(),
        "host" => normalised_host(value).into(),
        _ => value.to_vec().into(),
    }
}

/// Normalises an address as an API does: without a port. The policy cuts IPv6 to the prefix of a client. Other text,
/// such as a host name that a server looked up, stays as it is.
fn address(value: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let parsed = bare.parse::<IpAddr>().ok();
    match parsed.or_else(|| text.parse().ok().map(|with_port: SocketAddr| with_port.ip())) {
        Some(address) => ByIp::direct().attribute(address).into_bytes(),
        None => value.to_vec(),
    }
}

/// Splits `GET /path HTTP/1.1` into method and target. Returns `None` for bytes that are not a request line.
fn request_line(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = line.iter().position(|byte| *byte == b' ')?;
    let (method, target) = (&line[..space], &line[space + 1..]);
    let target = match target.iter().rposition(|byte| *byte == b' ') {
        Some(end) if target[end + 1..].starts_with(b"HTTP/") => &target[..end],
        _ => target,
    };
    let is_method =
        !method.is_empty() && method.iter().all(|byte| byte.is_ascii_alphabetic() || *byte == b'-');
    (is_method && !target.is_empty()).then_some((method, target))
}

/// Returns a parameter of a target's query, as forward auth reads it.
fn parameter_of(target: &[u8], name: &str) -> Option<Value<'static>> {
    let query = &target[target.iter().position(|byte| *byte == b'?')? + 1..];
    let query = query.split(|byte| *byte == b'#').next().unwrap_or_default();
    let values = form_urlencoded::parse(query).filter(|(known, _)| known == name);
    let values: Vec<_> = values.map(|(_, value)| value).collect();
    Value::of_repeated(values.iter().map(|value| value.as_bytes())).map(Value::into_owned)
}

/// Reads a whole number, and drops its fraction.
fn whole_number(text: &[u8]) -> Result<u64, String> {
    let whole = text.split(|byte| *byte == b'.').next().unwrap_or_default();
    let parsed = std::str::from_utf8(whole).ok().and_then(|digits| digits.parse().ok());
    parsed.ok_or_else(|| format!("{:?} is not a valid cost; write a whole number", shown(text)))
}

/// Returns the usual names of an attribute's field; the first is the attribute's own name.
fn names_of(attribute: &str) -> impl Iterator<Item = &'static str> + use<> {
    let names = WELL_KNOWN.into_iter().find(|names| names.split(' ').next() == Some(attribute));
    names.into_iter().flat_map(|names| names.split(' '))
}

/// Returns the attribute that a field of this name usually holds, or else the name itself.
fn well_known(field: &str) -> &str {
    let names = WELL_KNOWN.into_iter().find(|names| names.split(' ').any(|name| name == field));
    names.and_then(|names| names.split(' ').next()).unwrap_or(field)
}

/// The name by which `--map` names the time.
pub const TIME: &str = "time";
/// The prefix of the name of a query parameter.
pub const QUERY: &str = "query:";
/// The most characters of a list of fields in a message.
const LIST_MAX: usize = 400;
const NO_TIME: &str = "no field holds the time; name it: --map time=FIELD";

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

    fn text(value: Value<'_>) -> String {
        String::from_utf8(value.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn values_are_normalised_as_by_the_apis() {
        for (attribute, written, expected) in [
            ("ip", "203.0.113.7", "203.0.113.7"),
            ("ip", "203.0.113.7:4711", "203.0.113.7"),
            ("ip", "::ffff:203.0.113.7", "203.0.113.7"),
            ("ip", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2:3:4:5:6"),
            ("ip", "[2001:db8:1:2:3:4:5:6]:443", "2001:db8:1:2:3:4:5:6"),
            ("ip", "[2001:db8:1:2:3:4:5:6]", "2001:db8:1:2:3:4:5:6"),
            ("ip", "host.example", "host.example"),
            ("method", "get", "GET"),
            ("path", "//a/../b/%7e?x=1", "/b/~"),
            ("host", "Example.ORG.:8443", "example.org"),
            ("host", ":80", ""),
            ("user", "Ann", "Ann"),
        ] {
            assert_eq!(text(normalised(attribute, attribute, written.as_bytes())), expected);
        }
    }

    #[test]
    fn the_attribute_decides_the_normalisation_and_else_the_field() {
        assert_eq!(text(normalised("ip", "anything", b"[::1]")), "::1");
        assert_eq!(text(normalised("route", "request_uri", b"//a")), "/a");
        assert_eq!(text(normalised("route", "handler", b"//a")), "//a");
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
    }

    #[test]
    fn several_different_values_of_a_parameter_are_one_subject() {
        let user = |target: &str| parameter_of(target.as_bytes(), "user").map(text);
        assert_eq!(user("/a?x=1&user=a%20b&user=a+b#?user=d").as_deref(), Some("a b"));
        assert_eq!(user("/a?user=a&user=b").as_deref(), Some("several values"));
        assert_eq!(user("/a"), None);
    }
}
