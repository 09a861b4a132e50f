//! Reads bodies, within a bound on their length and time.

use std::time::Duration;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::timeout;

use super::problem::Problem;
use crate::listener::ConnectionState;

/// Reads a whole body. Most arrive in one piece with their heads, so that there is no wait.
///
/// # Errors
///
/// If the body is too long, too slow or incomplete.
pub async fn read<B>(mut body: B) -> Result<Bytes, Problem>
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    match timeout(BODY_TIMEOUT, whole(&mut body)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            discard(body).await;
            Err(Problem::too_large(BODY_MAX))
        }
        Ok(Err(_)) => Err(Problem::incomplete()),
        Err(_) => Err(Problem::too_slow(BODY_TIMEOUT)),
    }
}

/// Waits until the connection may buffer `bytes` of body and answer.
///
/// # Errors
///
/// If the listener's budget has no room for too long.
pub async fn room_for(connection: &ConnectionState, bytes: usize) -> Result<(), Problem> {
    let covered = timeout(BODY_TIMEOUT, connection.buffer_share.cover(bytes)).await;
    covered.map_err(|_| Problem::no_room())
}

async fn whole<B>(body: &mut B) -> Result<Bytes, BoxError>
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    let mut body = Limited::new(body, BODY_MAX);
    let Some(first) = body.frame().await else { return Ok(Bytes::new()) };
    let first = first?.into_data().unwrap_or_default();
    if body.is_end_stream() {
        return Ok(first);
    }
    let mut bytes = Vec::from(first);
    while let Some(frame) = body.frame().await {
        bytes.extend_from_slice(frame?.data_ref().map_or(&[], |data| data));
    }
    Ok(bytes.into())
}

/// Reads and drops the rest of an overlong body. Most clients read the answer only after they have sent all; closing
/// the connection before that would reset it, and they would see no answer.
async fn discard(mut body: impl HttpBody<Data = Bytes> + Unpin) {
    let mut discarded = 0;
    let rest = async {
        while discarded < DISCARDED_MAX
            && let Some(Ok(frame)) = body.frame().await
        {
            discarded += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    // The result does not matter: the answer is the same for a body that is too slow, too long or incomplete.
    let _ = timeout(BODY_TIMEOUT, rest).await;
}

/// The most bytes of a body: room for a batch of 1,000 checks with long attributes.
const BODY_MAX: usize = 1024 * 1024;

/// The longest time for a body, which clients send with its head.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes of an overlong body that are read and dropped.
const DISCARDED_MAX: usize = 16 * BODY_MAX;
