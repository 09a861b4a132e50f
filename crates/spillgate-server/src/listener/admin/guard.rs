//! Admits operators to the admin API: clients with a token, whose role shows whether they may write. If no token is
//! set, programs of this machine and pages of this listener are admitted instead; `browser` recognises them.

use axum::Extension;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use hyper::header::HeaderMap;
use hyper::{Method, StatusCode};

use super::Problem;
use super::tokens::{Holder, Tokens};
use crate::listener::browser::is_local;
use crate::listener::token::bearer_in;
use crate::listener::{FailedLogins, Peer};

/// The way to recognise an operator.
#[derive(Clone)]
pub(crate) enum Guard {
    Tokens(Tokens, FailedLogins),
    /// A loopback `Host`, and an `Origin` only if it is the same.
    SameOrigin,
}

impl Guard {
    /// Returns whether a client that was admitted with these headers still is: its token may have been removed.
    pub fn still_admits(&self, headers: &HeaderMap) -> bool {
        match self {
            Guard::Tokens(tokens, _) => {
                bearer_in(headers).is_some_and(|token| tokens.holder_of(token).is_some())
            }
            Guard::SameOrigin => true,
        }
    }

    /// Returns the holder of the token that a request with these headers shows. Logs a wrong token.
    pub fn holder(&self, headers: &HeaderMap, peer: Peer) -> Option<Holder> {
        let Guard::Tokens(tokens, failed_logins) = self else {
            return is_local(headers).then(Holder::local);
        };
        let holder = tokens.holder_of(bearer_in(headers)?);
        if holder.is_none() {
            failed_logins.report(peer.0);
        }
        holder
    }
}

/// Passes on a request that the holder of its token may make, with the holder. Refuses any other request.
pub async fn admit(
    State(guard): State<Guard>,
    Extension(peer): Extension<Peer>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let Some(holder) = guard.holder(request.headers(), peer) else {
        return Err(match guard {
            Guard::Tokens(..) => Problem::no_token(),
            Guard::SameOrigin => not_local(),
        });
    };
    if !request.method().is_safe() && !holder.role.may_write() {
        return Err(viewer(&holder, request.method()));
    }
    request.extensions_mut().insert(holder);
    Ok(next.run(request).await)
}

fn viewer(Holder { name, .. }: &Holder, method: &Method) -> Problem {
    let message = format!(
        "the token {name} is a viewer's, which may only read; send {method} with a token that \
         admin_token_file gives the role operator"
    );
    Problem::new(StatusCode::FORBIDDEN, message)
}

fn not_local() -> Problem {
    let message = "without a token this listener answers only programs of this machine that call it \
                   localhost, 127.0.0.1 or [::1], and its own pages; use one of these names, or set \
                   admin_token_file under [server] and send Authorization: Bearer TOKEN";
    Problem::new(StatusCode::FORBIDDEN, message.to_owned())
}
