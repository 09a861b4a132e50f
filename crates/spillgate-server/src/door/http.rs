//! The HTTP door, `POST /v1/check` and `POST /v1/check/batch`: decodes a body, asks the app, writes
//! the answer. Every verdict is a 200; what cannot be understood is a problem, and nothing of it is
//! charged.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::{Method, Uri};
use spillgate::Question;
use tokio::time::timeout;

use crate::app::App;

mod answer;
mod json;
mod problem;
mod question;

use problem::Problem;
use question::{Batch, Check};

/// The door's paths.
pub(crate) fn routes(app: App) -> Router {
    Router::new()
        .route("/v1/check", post(check))
        .route("/v1/check/batch", post(check_batch))
        .fallback(no_such_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(app)
}

async fn check(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let body = read(body).await?;
    let check: Check<'_> = json::parse(&body)?;
    let decision = app.check(&check.question()?).await;
    Ok(answer::to_one(&decision))
}

async fn check_batch(State(app): State<App>, body: Body) -> Result<Response, Problem> {
    let body = read(body).await?;
    let batch: Batch<'_> = json::parse(&body)?;
    let questions: Vec<Question<'_>> = batch.questions()?;
    let decisions = app.decide(&questions).await;
    Ok(answer::to_many(&decisions))
}

async fn no_such_path(uri: Uri) -> Problem {
    Problem::no_such_path(uri.path())
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    Problem::wrong_method(&method, uri.path())
}

async fn read(mut body: Body) -> Result<Bytes, Problem> {
    match timeout(BODY_TIMEOUT, Limited::new(&mut body, BODY_MAX).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            discard(body).await;
            Err(Problem::too_large(BODY_MAX))
        }
        Ok(Err(_)) => Err(Problem::broken_off()),
        Err(_) => Err(Problem::too_slow(BODY_TIMEOUT)),
    }
}

/// Most clients read no answer before all is sent; closing in front of them would hide it.
async fn discard(mut body: Body) {
    let mut discarded = 0;
    let rest = async {
        while discarded < DISCARDED_MAX
            && let Some(Ok(frame)) = body.frame().await
        {
            discarded += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    // Too slow, too long or broken off: the problem is answered all the same.
    let _ = timeout(BODY_TIMEOUT, rest).await;
}

/// A batch of 1,000 checks with long attributes; what needs more is split by the caller.
const BODY_MAX: usize = 1024 * 1024;

/// Bodies are small and sent with their heads; a caller that takes longer is stuck.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// What of an overlong body is read for politeness' sake.
const DISCARDED_MAX: usize = 16 * BODY_MAX;
