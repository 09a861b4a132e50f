//! The middleware: it checks each request, and answers those that are denied.

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{Error, HttpResponse, web};
use http::HeaderMap;
use spillgate::http::{ByIp, DenialResponse, HeaderStyle};
use spillgate::{Decision, Limiter, Request, Value};

use crate::permits::{Holding, Permits};

pub struct Limits {
    pub limiter: Limiter,
    pub by_ip: ByIp,
}

/// Passes a request on if the limits allow it. If the store is unavailable, the rule's `on_outage` decides.
pub async fn limit(
    limits: web::Data<Limits>,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let decision = limits.check(&request).await;
    if let Some(denial) = DenialResponse::from_decision(&decision) {
        return Ok(request.into_response(response_to(&denial)));
    }
    let permits = decision.receipt().map(|receipt| Permits::new(&limits.limiter, receipt));
    let mut response = next.call(request).await?.map_into_boxed_body();
    let mut fields = HeaderMap::new();
    HeaderStyle::Ietf.write(&decision, &mut fields);
    // The fields of the application stay, and are not mixed with others.
    if fields.keys().all(|name| !response.headers().contains_key(name.as_str())) {
        add(&fields, response.headers_mut());
    }
    Ok(response.map_body(|_, body| match permits {
        Some(permits) => Holding { body, _permits: permits }.boxed(),
        None => body,
    }))
}

impl Limits {
    async fn check(&self, request: &ServiceRequest) -> Decision {
        // `match_info` has the path that the router matches, without escapes. `ServiceRequest::match_pattern` takes
        // the path as it was sent.
        let route = request.resource_map().match_pattern(request.match_info().as_str());
        let request = Request::new()
            .with("ip", self.client(request))
            .with("method", request.method().as_str())
            .with("path", Value::of_path(request.path()))
            .with("route", route.unwrap_or_default());
        self.limiter.check(&request).await
    }

    /// Returns the address of the client, by `X-Forwarded-For` if a trusted proxy sent the request.
    fn client(&self, request: &ServiceRequest) -> String {
        // A Unix socket has no addresses: all its clients count as one.
        let Some(peer) = request.peer_addr() else { return "unknown".to_owned() };
        let mut forwarded = HeaderMap::new();
        for line in request.headers().get_all(header::X_FORWARDED_FOR) {
            if let Ok(line) = line.as_bytes().try_into() {
                forwarded.append(http::header::HeaderName::from_static("x-forwarded-for"), line);
            }
        }
        self.by_ip.attribute(self.by_ip.client(peer.ip(), &forwarded))
    }
}

/// Makes the response to a denied request: 429, 403 or 503 with problem details, or what the rule sets.
fn response_to(denial: &DenialResponse<'_>) -> HttpResponse {
    let (head, body) = denial.response(HeaderStyle::Ietf).into_parts();
    let status = StatusCode::from_u16(head.status.as_u16()).expect("both crates have all statuses");
    let mut response = HttpResponse::with_body(status, BoxBody::new(body));
    add(&head.headers, response.headers_mut());
    response
}

/// Copies fields into the types of actix-web, which has an older version of the crate `http`.
fn add(fields: &HeaderMap, headers: &mut header::HeaderMap) {
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_str().as_bytes());
        let value = HeaderValue::from_bytes(value.as_bytes());
        let (name, value) = name.ok().zip(value.ok()).expect("both crates have the same fields");
        headers.append(name, value);
    }
}
