//! Bodies, read up to a bound and within a time.

use std::time::Duration;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::timeout;

use super::problem::Problem;
use crate::door::Seat;

/// All of it, or why not. Most come in one piece with their heads, and wait for nothing.
pub(in crate::door) async fn read<B>(mut body: B) -> Result<Bytes, Problem>
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    match timeout(BODY_TIMEOUT, whole(&mut body)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            discard(body).await;
            Err(Problem::too_large(BODY_MAX))
        }
        Ok(Err(_)) => Err(Problem::broken_off()),
        Err(_) => Err(Problem::too_slow(BODY_TIMEOUT)),
    }
}

/// Waits until the connection may buffer so many bytes of body and answer, or fails when it has waited for too long.
pub(super) async fn room_for(seat: &Seat, bytes: usize) -> Result<(), Problem> {
    let covered = timeout(BODY_TIMEOUT, seat.cover(bytes)).await;
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

/// Most clients read no answer before all is sent; closing in front of them would hide it.
async fn discard(mut body: impl HttpBody<Data = Bytes> + Unpin) {
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
