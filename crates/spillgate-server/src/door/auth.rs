//! Forward auth, `/v1/auth`: a proxy asks about a request before it lets it through. The answer is a
//! status: 200, or that of a refusal.
//!
//! Nothing that a client controls makes an error of it, for a proxy may take one for a yes: values of
//! any length and any bytes are judged as they are.

use std::net::IpAddr;
use std::sync::{Arc, Once};

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use hyper::{HeaderMap, StatusCode, Uri};
use spillgate::{ByIp, Decision, HeaderStyle, Question, Reason, Refusal, Value, normalised_host};

use super::Peer;
use super::http::problem::Problem;
use crate::app::App;
use crate::config::{Auth, Original, deny_status};

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod original;

use original::Told;

/// The paths below the door's own, for ext_authz puts the client's path behind it.
pub(crate) fn routes(app: App, auth: Auth, by_ip: ByIp) -> Router {
    let mut router = Router::new();
    for path in ["/v1/auth", "/v1/auth/", "/v1/auth/{*path}", "/v1/auth*"] {
        router = router.route(path, any(answer));
    }
    router.with_state(Arc::new(Gate {
        app,
        auth,
        by_ip,
        stranger: Once::new(),
        silent: Once::new(),
    }))
}

/// What decides about a proxy's questions.
struct Gate {
    app: App,
    auth: Auth,
    by_ip: ByIp,
    /// Told once that a peer asked who is not trusted.
    stranger: Once,
    /// Told once that a proxy does not say what it asks about.
    silent: Once,
}

async fn answer(
    State(gate): State<Arc<Gate>>,
    Extension(Peer(peer)): Extension<Peer>,
    request: Request,
) -> Response {
    let question = Question::Request(gate.question(peer, &request));
    if let Err(unknown) = gate.app.answers_question(&question) {
        // The operator's slip, not the client's: questions of proxies have one domain.
        let problem = Problem::from(unknown).with_status(StatusCode::INTERNAL_SERVER_ERROR);
        return problem.into_response();
    }
    let decision = gate.app.check(&question).await;
    gate.response(&decision, request.uri())
}

impl Gate {
    /// What is known of the client's request. Only a trusted proxy is believed about it; a stranger is
    /// asked about by its own address.
    fn question<'r>(&self, peer: IpAddr, request: &'r Request) -> spillgate::Request<'r> {
        let headers = request.headers();
        let ip = self.by_ip.attribute(self.by_ip.client(peer, headers));
        let mut question = self.with_headers(spillgate::Request::new().with("ip", ip), headers);
        if !self.by_ip.trusts(peer) {
            self.stranger.call_once(|| tracing::warn!(target: "spillgate", "{}", stranger(peer)));
            return question;
        }
        let told = Told::by(self.auth.original, request);
        if told.target.is_none() {
            self.silent.call_once(|| {
                tracing::warn!(target: "spillgate", "{}", silent(self.auth.original));
            });
        }
        if let Some(method) = told.method {
            question = question.with("method", original::upper_case(method));
        }
        if let Some(host) = told.host {
            question = question.with("host", normalised_host(host));
        }
        if let Some(target) = told.target {
            question = question.with("path", original::path(target));
            for (name, value) in original::parameters(target, &self.auth.query) {
                question = question.with(name, value);
            }
        }
        question
    }

    /// Of a repeated header the first line counts.
    fn with_headers<'r>(
        &self,
        question: spillgate::Request<'r>,
        headers: &'r HeaderMap,
    ) -> spillgate::Request<'r> {
        let present = self.auth.headers.iter().filter_map(|name| Some((name, headers.get(name)?)));
        present.fold(question, |question, (name, value)| {
            question.with(name.as_str().to_owned(), Value::from(value.as_bytes()))
        })
    }

    fn response(&self, decision: &Decision, uri: &Uri) -> Response {
        let Some(refusal) = Refusal::of(decision) else {
            let mut response = Response::new(Body::empty());
            decision.write_headers(HeaderStyle::Ietf, response.headers_mut());
            return response;
        };
        let refusal = match self.deny_status(uri) {
            // A block is 403 already, which every proxy understands.
            Some(status) if refusal.reason() != Reason::Blocked => refusal.with_status(status),
            Some(_) | None => refusal,
        };
        refusal.response(HeaderStyle::Ietf).map(Body::from)
    }

    /// As the proxy's own URL says, else the setting. In ext_authz the URL is the client's. What is no
    /// refusal is passed over: some proxies let the client's query through.
    fn deny_status(&self, uri: &Uri) -> Option<StatusCode> {
        let query = uri.query().filter(|_| self.auth.original != Original::Request);
        let mut parameters = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        let asked = parameters.find(|(name, _)| name == "deny_status");
        asked.and_then(|(_, text)| deny_status(&text).ok()).or(self.auth.deny_status)
    }
}

fn stranger(peer: IpAddr) -> String {
    format!(
        "forward auth: {peer} asked and is not in trusted_proxies, so only its own address is \
         judged; add it there if it is your proxy"
    )
}

fn silent(original: Original) -> String {
    let header = match original {
        Original::XForwarded => "X-Forwarded-Uri",
        Original::XOriginal => "X-Original-URI",
        Original::Request => "a path",
    };
    format!(
        "forward auth: a trusted proxy sends no {header}, so rules that match paths are not met; \
         let it send that, or set original under [server.auth] to what it does send"
    )
}
