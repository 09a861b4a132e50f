//! Refuses requests that a browser makes for a foreign page.
//!
//! A browser on this machine runs pages of other sites. Such a page can send requests to a loopback address. Its site
//! can also make its own host name resolve to that address (DNS rebinding). So both the host name of a request and the
//! page that sent it must belong to this machine.

use hyper::header::{FORWARDED, HOST, HeaderMap, HeaderName, ORIGIN, USER_AGENT, VIA};
use hyper::http::uri::Authority;
use hyper::{Request, http};

/// How a listener that decides treats requests of browsers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Browsers {
    /// All are admitted: clients need a token or a certificate, which no foreign page has.
    Admitted,
    /// Only pages of this machine are admitted.
    OwnOnly,
}

/// A page that is not this listener's own, with the field that shows it. A browser's request for it is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForeignPage {
    /// The `Host` is no name of this machine.
    Host(String),
    /// `Sec-Fetch-Site` names another site.
    Site(String),
    /// The `Origin` is another than this listener.
    Origin(String),
}

impl Browsers {
    /// Checks whether a request may be answered. `port` is the listener's own.
    ///
    /// Programs may call the listener by any name. A proxy that checks a browser's request passes the browser's fields
    /// on. The fields that the proxy adds distinguish it from a browser, with one exception: a page can add them to
    /// requests to its own origin, and its host name may resolve to this machine. Such a request has the listener's own
    /// port in its `Host`.
    ///
    /// # Errors
    ///
    /// The reason for which the request is refused.
    pub fn admit<B>(self, request: &Request<B>, port: u16) -> Result<(), ForeignPage> {
        let headers = request.headers();
        if self == Browsers::Admitted || !is_of_browser(headers) {
            return Ok(());
        }
        let host = match request.uri().authority() {
            Some(authority) => authority.as_str(),
            None => text(headers, &HOST).unwrap_or_default(),
        };
        let is_for_proxies = request.uri().path().starts_with(FOR_PROXIES);
        if is_for_proxies && OF_PROXIES.iter().any(|name| headers.contains_key(name)) {
            let is_rebound = !is_loopback(host) && port_of(host) == Some(port);
            return if is_rebound { Err(ForeignPage::Host(shortened(host))) } else { Ok(()) };
        }
        own_page(host, headers)
    }
}

impl ForeignPage {
    /// Returns the problem and the fix.
    pub fn message(&self) -> String {
        let problem = match self {
            ForeignPage::Host(host) => format!("Host is {host:?}, no name of this machine"),
            ForeignPage::Site(site) => format!("Sec-Fetch-Site is {site:?}"),
            ForeignPage::Origin(origin) => {
                format!("Origin is {origin:?}, another than this listener")
            }
        };
        format!(
            "a browser sent this for a page from elsewhere: {problem}; without a token this listener \
             answers programs of this machine and its own pages only; set data_token_file under \
             [server] and send Authorization: Bearer TOKEN from a server of yours"
        )
    }
}

/// Returns whether the `Host` of a request is this machine and, if a browser sent it, the page is this listener's own.
pub fn is_local(headers: &HeaderMap) -> bool {
    own_page(text(headers, &HOST).unwrap_or_default(), headers).is_ok()
}

fn own_page(host: &str, headers: &HeaderMap) -> Result<(), ForeignPage> {
    if !is_loopback(host) {
        return Err(ForeignPage::Host(shortened(host)));
    }
    if let Some(site) = text(headers, &SEC_FETCH_SITE)
        && !matches!(site, "same-origin" | "none")
    {
        return Err(ForeignPage::Site(shortened(site)));
    }
    if let Some(origin) = text(headers, &ORIGIN) {
        let from = origin.split_once("://").map(|(_, from)| from);
        if from.is_none_or(|from| !from.eq_ignore_ascii_case(host)) {
            return Err(ForeignPage::Origin(shortened(origin)));
        }
    }
    Ok(())
}

/// Returns whether a browser sent the request. Every browser sends one of these fields with each request that a page
/// can cause.
fn is_of_browser(headers: &HeaderMap) -> bool {
    headers.contains_key(ORIGIN)
        || headers.contains_key(SEC_FETCH_SITE)
        || headers.get(USER_AGENT).is_some_and(|agent| agent.as_bytes().starts_with(BROWSER))
}

/// Returns a header's value; empty if it is no ASCII text, so that it equals no name.
fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

/// Returns whether a `Host`, with or without a port, is `localhost` or a loopback address.
fn is_loopback(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    let address = name.parse::<std::net::IpAddr>();
    !host.contains('@')
        && (name.eq_ignore_ascii_case("localhost")
            || address.is_ok_and(|address| address.to_canonical().is_loopback()))
}

/// Returns the port of a `Host`; 80 if it names none.
fn port_of(host: &str) -> Option<u16> {
    let authority = host.parse::<http::uri::Authority>().ok()?;
    Some(authority.port_u16().unwrap_or(80))
}

fn shortened(text: &str) -> String {
    text.chars().take(QUOTED_MAX).collect()
}

/// The path of the forward-auth API, where proxies ask about requests of their clients.
const FOR_PROXIES: &str = "/v1/auth";

/// The fields that a proxy adds to a request. A page cannot add them to a request to another origin: the browser sends
/// a preflight request first, which is refused.
const OF_PROXIES: [HeaderName; 9] = [
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-uri"),
    HeaderName::from_static("x-original-uri"),
    HeaderName::from_static("x-original-url"),
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("x-envoy-internal"),
    FORWARDED,
    VIA,
];

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The beginning of the `User-Agent` of every browser.
const BROWSER: &[u8] = b"Mozilla/";

/// The most characters of a client's field that a message quotes.
const QUOTED_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u16 = 8080;

    fn admit(path: &str, headers: &[(&str, &str)]) -> Result<(), ForeignPage> {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Browsers::OwnOnly.admit(&request.body(()).unwrap(), PORT)
    }

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for host in ["localhost", "LOCALHOST:8082", "127.0.0.1:8082", "127.9.9.9", "[::1]:8082"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:8082",
            "192.0.2.1:8082",
            "evil@localhost",
            "localhost:80:80",
            "[::2]",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn a_page_of_another_port_is_foreign_even_on_this_machine() {
        let local = |host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, host.parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(ORIGIN, origin.parse().unwrap());
            }
            is_local(&headers)
        };
        assert!(local("localhost:8082", None));
        assert!(local("localhost:8082", Some("http://localhost:8082")));
        for origin in
            ["null", "http://localhost", "http://localhost:3000", "http://evil.example", ""]
        {
            assert!(!local("localhost:8082", Some(origin)), "{origin:?}");
        }
        assert!(!local("evil.example:8082", Some("http://evil.example:8082")));
        assert!(!is_local(&HeaderMap::new()));
    }

    #[test]
    fn programs_may_call_the_listener_by_any_name() {
        for headers in [
            &[][..],
            &[("host", "spillgate:8080")],
            &[("host", "h"), ("user-agent", "curl/8.0")],
            &[("host", "localhost:8080"), ("user-agent", "Mozilla/5.0")],
            &[("host", "127.0.0.1:8080"), ("sec-fetch-site", "none")],
            &[
                ("host", "localhost:8080"),
                ("sec-fetch-site", "same-origin"),
                ("origin", "http://localhost:8080"),
            ],
        ] {
            assert_eq!(admit("/v1/check", headers), Ok(()), "{headers:?}");
        }
    }

    #[test]
    fn a_browser_is_refused_by_site_by_origin_and_by_host() {
        let refusal = |headers: &[(&str, &str)]| admit("/v1/check", headers).unwrap_err();
        let host = ("host", "localhost:8080");
        for site in ["cross-site", "same-site", "anything"] {
            let headers = [host, ("sec-fetch-site", site)];
            assert_eq!(refusal(&headers), ForeignPage::Site(site.to_owned()));
        }
        for origin in ["null", "http://evil.example", "http://localhost:3000"] {
            assert_eq!(
                refusal(&[host, ("origin", origin)]),
                ForeignPage::Origin(origin.to_owned())
            );
        }
        let rebound = [("host", "evil.example:8080"), ("origin", "http://evil.example:8080")];
        assert_eq!(refusal(&rebound), ForeignPage::Host("evil.example:8080".to_owned()));
        let without_origin = [("host", "evil.example:8080"), ("user-agent", "Mozilla/5.0 (X11)")];
        assert_eq!(refusal(&without_origin), ForeignPage::Host("evil.example:8080".to_owned()));
    }

    #[test]
    fn a_proxy_that_passes_a_browsers_fields_on_is_admitted_on_the_auth_path() {
        let of_browser = [("origin", "https://shop.example"), ("sec-fetch-site", "cross-site")];
        for of_proxy in [
            &[("host", "127.0.0.1:8080"), ("x-original-uri", "/login")][..],
            &[("host", "shop.example"), ("x-forwarded-for", "192.0.2.1")],
            &[("host", "shop.example:8443"), ("x-envoy-internal", "true")],
        ] {
            let headers = [of_proxy, &of_browser].concat();
            assert_eq!(admit("/v1/auth", &headers), Ok(()), "{headers:?}");
            assert!(admit("/v1/check", &headers).is_err(), "{headers:?}");
        }
        let page = [&[("host", "127.0.0.1:8080")][..], &of_browser].concat();
        assert!(admit("/v1/auth", &page).is_err(), "a page adds none of a proxy's fields");
        let rebound = [
            &[("host", "evil.example:8080"), ("x-forwarded-for", "1.1.1.1")][..],
            &[("user-agent", "Mozilla/5.0")],
        ]
        .concat();
        assert!(admit("/v1/auth", &rebound).is_err(), "it may add them to its own origin");
    }
}
