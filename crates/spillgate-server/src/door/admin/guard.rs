//! Who may use the admin door: whoever shows the token, or without one, programs of this machine
//! and pages that this door itself served.
//!
//! A browser on this machine runs pages of strangers. They can send requests to a loopback address,
//! and a name of theirs can be made to lead there: so the name must be ours, and so must the page.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use hyper::header::{HOST, HeaderMap, ORIGIN};
use hyper::{StatusCode, http};

use super::Problem;
use crate::door::Token;

/// What is asked of operators.
#[derive(Clone)]
pub(crate) enum Guard {
    Token(Token),
    /// A loopback `Host`, and an `Origin` only if it is the same.
    SameOrigin,
}

impl Guard {
    /// Whether a request with these headers is an operator's.
    pub(super) fn admits(&self, headers: &HeaderMap) -> bool {
        match self {
            Guard::Token(token) => token.is_in(headers),
            Guard::SameOrigin => is_local(headers),
        }
    }
}

/// Lets a request through, or answers in its place.
pub(super) async fn admit(
    State(guard): State<Guard>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    match guard {
        _ if guard.admits(request.headers()) => Ok(next.run(request).await),
        Guard::Token(_) => Err(Problem::no_token()),
        Guard::SameOrigin => Err(stranger()),
    }
}

fn is_local(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let Some(host) = text(HOST).filter(|host| is_loopback(host)) else { return false };
    text(ORIGIN).is_none_or(|origin| {
        origin.split_once("://").is_some_and(|(_, from)| from.eq_ignore_ascii_case(host))
    })
}

/// Whether a `Host` names this machine to itself, with or without a port.
fn is_loopback(host: &str) -> bool {
    let Ok(authority) = host.parse::<http::uri::Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    let address = name.parse::<std::net::IpAddr>();
    !host.contains('@')
        && (name.eq_ignore_ascii_case("localhost")
            || address.is_ok_and(|address| address.to_canonical().is_loopback()))
}

fn stranger() -> Problem {
    let message = "without a token this door answers only programs of this machine that call it \
                   localhost, 127.0.0.1 or [::1], and its own pages; do so, or set \
                   admin_token_file under [server] and send Authorization: Bearer TOKEN";
    Problem::of(StatusCode::FORBIDDEN, message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_page_from_elsewhere_is_a_stranger_even_on_this_machine() {
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
}
