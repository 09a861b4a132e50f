//! The forward-auth API, `/v1/auth`: a proxy asks about a request before it forwards it. The answer is a status: 200,
//! or that of a denial.
//!
//! No value that a client controls causes an error, because some proxies admit a request on an error. Values of any
//! length and any bytes are checked as they are.

use std::net::IpAddr;
use std::sync::{Arc, Once};

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use hyper::{HeaderMap, StatusCode, Uri};
use spillgate::http::{ByIp, DenialResponse, HeaderStyle, normalised_host};
use spillgate::{Decision, Value};

use super::Peer;
use super::http::problem::Problem;
use crate::app::App;
use crate::config::{Auth, Original, deny_status};

mod original;

use original::Reported;

/// Returns the routes of the API. They include every path below it, since ext_authz appends the client's path.
pub(crate) fn routes(app: App, auth: Auth, by_ip: ByIp) -> Router {
    let mut router = Router::new();
    for path in ["/v1/auth", "/v1/auth/", "/v1/auth/{*path}", "/v1/auth*"] {
        router = router.route(path, any(answer));
    }
    router.with_state(Arc::new(Gate {
        app,
        auth,
        by_ip,
        untrusted_peer: Once::new(),
        silent: Once::new(),
    }))
}

/// The state behind the forward-auth API.
struct Gate {
    app: App,
    auth: Auth,
    by_ip: ByIp,
    /// The warning about a peer that is no trusted proxy, logged once.
    untrusted_peer: Once,
    /// The warning about a trusted proxy that does not send the client's path, logged once.
    silent: Once,
}

async fn answer(
    State(gate): State<Arc<Gate>>,
    Extension(Peer(peer)): Extension<Peer>,
    request: Request,
) -> Response {
    let asked = gate.request(peer, &request);
    if let Err(unknown) = gate.app.require_domain_of(&asked) {
        // A mistake of the operator and not of the client: all requests of this API have one domain.
        let status = gate.understood(StatusCode::INTERNAL_SERVER_ERROR);
        return Problem::from(unknown).with_status(status).into_response();
    }
    let decision = gate.app.check(&asked).await;
    gate.response(&decision, request.uri())
}

impl Gate {
    /// Returns the request to check. Only a trusted proxy may report a client's request; for any other peer the request
    /// has the peer's own address and the configured headers.
    fn request<'r>(&self, peer: IpAddr, request: &'r Request) -> spillgate::Request<'r> {
        let headers = request.headers();
        let ip = self.by_ip.attribute(self.by_ip.client(peer, headers));
        let mut asked = self.with_headers(spillgate::Request::new().with("ip", ip), headers);
        if !self.by_ip.trusts(peer) {
            self.untrusted_peer.call_once(|| {
                tracing::warn!(target: "spillgate", "{}", untrusted_peer(peer));
            });
            return asked;
        }
        let reported = Reported::by(self.auth.original, request);
        if reported.target.is_none() {
            self.silent.call_once(|| {
                tracing::warn!(target: "spillgate", "{}", silent(self.auth.original));
            });
        }
        if let Some(method) = reported.method {
            asked = asked.with("method", original::upper_case(method));
        }
        if let Some(host) = reported.host {
            asked = asked.with("host", normalised_host(host));
        }
        if let Some(target) = reported.target {
            asked = asked.with("path", Value::of_path(target));
            asked = original::with_parameters(asked, target, &self.auth.query);
        }
        asked
    }

    /// Adds the configured headers as attributes. Envoy joins the lines of a repeated header by commas before it asks.
    fn with_headers<'r>(
        &self,
        asked: spillgate::Request<'r>,
        headers: &'r HeaderMap,
    ) -> spillgate::Request<'r> {
        let are_joined = self.auth.original == Original::Request;
        self.auth.headers.iter().fold(asked, |asked, name| {
            let lines = headers.get_all(name).iter().map(|line| line.as_bytes());
            let values = lines.flat_map(|line| line.split(|&byte| are_joined && byte == b','));
            match Value::of_repeated(values.map(<[u8]>::trim_ascii)) {
                Some(value) => asked.with(name.as_str().to_owned(), value),
                None => asked,
            }
        })
    }

    fn response(&self, decision: &Decision, uri: &Uri) -> Response {
        let Some(refusal) = DenialResponse::from_decision(decision) else {
            let mut response = Response::new(Body::empty());
            HeaderStyle::Ietf.write(decision, response.headers_mut());
            return response;
        };
        let refusal = match self.deny_status(uri) {
            // Every proxy understands 403: that of a block, or of a rule.
            Some(status) if refusal.status() != StatusCode::FORBIDDEN => {
                refusal.with_status(status)
            }
            Some(_) | None => refusal,
        };
        let status = self.understood(refusal.status());
        refusal.with_status(status).response(HeaderStyle::Ietf).map(Body::from)
    }

    /// Returns the status by which the proxy denies. Envoy's ext_authz takes every 5xx for a failure of the server that it
    /// asks, and with `failure_mode_allow` lets the request pass.
    fn understood(&self, status: StatusCode) -> StatusCode {
        if self.auth.original == Original::Request && status.is_server_error() {
            StatusCode::TOO_MANY_REQUESTS
        } else {
            status
        }
    }

    /// Returns the status of a denial: `deny_status` in the query of the proxy's URL, else the setting. The query is
    /// ignored with ext_authz, where the URL is the client's. A status that is no error is ignored too, because some
    /// proxies pass the client's query on.
    fn deny_status(&self, uri: &Uri) -> Option<StatusCode> {
        let query = uri.query().filter(|_| self.auth.original != Original::Request);
        let mut parameters = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        let asked = parameters.find(|(name, _)| name == "deny_status");
        asked.and_then(|(_, text)| deny_status(&text).ok()).or(self.auth.deny_status)
    }
}

fn untrusted_peer(peer: IpAddr) -> String {
    format!(
        "forward auth: {peer} sent a request and is not in trusted_proxies, so only its own address \
         counts, and rules with a path, method or host never match; add it there if it is your proxy"
    )
}

fn silent(original: Original) -> String {
    let header = match original {
        Original::XForwarded => "X-Forwarded-Uri",
        Original::XOriginal => "X-Original-URI",
        Original::Request => "a path",
    };
    format!(
        "forward auth: a trusted proxy sends no {header}, so rules that match paths do not apply; \
         make it send that, or set original under [server.auth] to the fields that it sends"
    )
}
