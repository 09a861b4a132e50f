//! The parts of a request before its body.

use http::{Extensions, HeaderMap, Method, Request, Uri};

/// A request without its body.
///
/// [`RateLimitLayer::cost`](super::RateLimitLayer::cost) and other closures take it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Head<'r> {
    /// The method of the request.
    pub method: &'r Method,
    /// The target of the request. A nested router of axum takes its prefix off: its extension `OriginalUri` has it whole.
    pub uri: &'r Uri,
    /// The headers of the request.
    pub headers: &'r HeaderMap,
    /// Data that the server and other layers left for this request.
    pub extensions: &'r Extensions,
}

impl<'r> Head<'r> {
    pub(crate) fn from_request<B>(request: &'r Request<B>) -> Head<'r> {
        Head {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

/// Splits a request, so that it can be held across an await without its body.
pub fn without_body<B>(request: Request<B>) -> (Request<()>, B) {
    let (head, body) = request.into_parts();
    (Request::from_parts(head, ()), body)
}
