//! The proxy: it checks each request, and answers those that are denied.

use async_trait::async_trait;
use http::{HeaderMap, Method};
use pingora::http::ResponseHeader;
use pingora::prelude::{HttpPeer, ProxyHttp, Result, Session};
use spillgate::http::{ByIp, DenialResponse, HeaderStyle};
use spillgate::{Decision, Limiter, Request, Value};

pub struct Proxy {
    pub limiter: Limiter,
    pub by_ip: ByIp,
    pub upstream: String,
}

#[async_trait]
impl ProxyHttp for Proxy {
    type CTX = Option<Decision>;

    fn new_ctx(&self) -> Option<Decision> {
        None
    }

    /// Passes a request on if the limits allow it. If the store is unavailable, the rule's `on_outage` decides.
    async fn request_filter(
        &self,
        session: &mut Session,
        allowed: &mut Option<Decision>,
    ) -> Result<bool> {
        let decision = self.check(session).await;
        match DenialResponse::from_decision(&decision) {
            Some(denial) => deny(session, &denial).await?,
            None => *allowed = Some(decision),
        }
        Ok(allowed.is_none())
    }

    async fn response_filter(
        &self,
        _session: &mut Session,
        response: &mut ResponseHeader,
        allowed: &mut Option<Decision>,
    ) -> Result<()> {
        let Some(decision) = allowed else { return Ok(()) };
        let mut fields = HeaderMap::new();
        HeaderStyle::Ietf.write(decision, &mut fields);
        // The fields of the service behind stay, and are not mixed with others.
        if fields.keys().all(|name| !response.headers.contains_key(name)) {
            for (name, value) in &fields {
                response.append_header(name, value)?;
            }
        }
        Ok(())
    }

    /// Releases the permits of a concurrency limit, when the response has ended or the client is gone.
    async fn logging(
        &self,
        _session: &mut Session,
        _error: Option<&pingora::Error>,
        allowed: &mut Option<Decision>,
    ) {
        if let Some(receipt) = allowed.as_ref().and_then(Decision::receipt) {
            // A permit that cannot be released ends by itself, after `max_hold`.
            let _ = self.limiter.release(receipt).await;
        }
    }

    async fn upstream_peer(
        &self,
        _session: &mut Session,
        _allowed: &mut Option<Decision>,
    ) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(&*self.upstream, false, String::new())))
    }
}

impl Proxy {
    async fn check(&self, session: &Session) -> Decision {
        let head = session.req_header();
        let peer = session.client_addr().and_then(|peer| peer.as_inet());
        // A Unix socket has no addresses: all its clients count as one.
        let ip = peer.map_or("unknown".to_owned(), |peer| {
            self.by_ip.attribute(self.by_ip.client(peer.ip(), &head.headers))
        });
        let request = Request::new()
            .with("ip", ip)
            .with("method", head.method.as_str())
            .with("path", Value::of_path(head.uri.path()));
        self.limiter.check(&request).await
    }
}

/// Answers a denied request: 429, 403 or 503 with problem details, or what the rule sets.
async fn deny(session: &mut Session, denial: &DenialResponse<'_>) -> Result<()> {
    let (head, body) = denial.response(HeaderStyle::Ietf).into_parts();
    let mut response = ResponseHeader::build(head.status, None)?;
    for (name, value) in &head.headers {
        response.append_header(name, value)?;
    }
    response.insert_header("content-length", body.len())?;
    let is_head = session.req_header().method == Method::HEAD;
    session.write_response_header(Box::new(response), is_head).await?;
    if !is_head {
        session.write_response_body(Some(body.into()), true).await?;
    }
    Ok(())
}
