//! Admits operators to the admin API: clients with the token. If no token is set, programs of this machine and pages of
//! this listener are admitted instead; `browser` recognises them.

use axum::Extension;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::HeaderMap;

use super::Problem;
use crate::door::browser::is_local;
use crate::door::{Shown, Token, Tries};

/// The way to recognise an operator.
#[derive(Clone)]
pub(crate) enum Guard {
    Token(Token),
    /// A loopback `Host`, and an `Origin` only if it is the same.
    SameOrigin,
}

impl Guard {
    /// Returns whether a request with these headers is an operator's. A wrong token counts as a failure of its
    /// connection.
    pub(super) async fn admits(&self, headers: &HeaderMap, tries: &Tries) -> bool {
        let Guard::Token(token) = self else { return is_local(headers) };
        let shown = tries.judge(|| token.shown_in(headers));
        if shown == Shown::Wrong {
            tries.fail().await;
        }
        shown == Shown::Right
    }
}

/// Passes an operator's request on, and refuses any other.
pub(super) async fn admit(
    State(guard): State<Guard>,
    Extension(tries): Extension<Tries>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    match guard {
        _ if guard.admits(request.headers(), &tries).await => Ok(next.run(request).await),
        Guard::Token(_) => Err(Problem::no_token()),
        Guard::SameOrigin => Err(stranger()),
    }
}

fn stranger() -> Problem {
    let message = "without a token this listener answers only programs of this machine that call it \
                   localhost, 127.0.0.1 or [::1], and its own pages; use one of these names, or set \
                   admin_token_file under [server] and send Authorization: Bearer TOKEN";
    Problem::of(StatusCode::FORBIDDEN, message.to_owned())
}
