//! What is known of a request before its body, wherever it stands.

use http::{Extensions, HeaderMap, Method, Request, Uri};

/// A request without its body.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Head<'r> {
    /// The method.
    pub method: &'r Method,
    /// The target, as it was sent.
    pub uri: &'r Uri,
    /// The headers.
    pub headers: &'r HeaderMap,
    /// What servers and other layers have left there.
    pub extensions: &'r Extensions,
}

impl<'r> Head<'r> {
    pub(super) fn of<B>(request: &'r Request<B>) -> Head<'r> {
        Head {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

/// A request in two: what can be held while others are waited for, and what need not be.
pub(super) fn without_body<B>(request: Request<B>) -> (Request<()>, B) {
    let (head, body) = request.into_parts();
    (Request::from_parts(head, ()), body)
}
