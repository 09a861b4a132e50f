//! A claim about all bytes that the RESP API receives.
//!
//! The first byte of an input is the size of the pieces in which the rest arrives.

use spillgate::Request;

use super::batch::{Access, Batch, End, Entry};
use super::frame::{Frame, Malformed, REQUEST_MAX, decode};
use super::reply::Replies;
use super::session::{Next, Session};
use crate::bounds::BATCH_MAX;

/// Panics if the pieces in which bytes arrive change the requests that are decoded, or if a command of a batch gets no
/// answer.
pub fn holds(input: &[u8]) {
    let Some((piece, bytes)) = input.split_first() else { return };
    let (at_once, end) = requests(bytes, bytes.len().max(1));
    let (in_pieces, end_in_pieces) = requests(bytes, usize::from(*piece).max(1));
    assert_eq!(at_once, in_pieces);
    // In pieces the decoder may still wait for bytes when the error shows only in later ones.
    assert!(end_in_pieces.is_none() || end == end_in_pieces, "{end:?}, {end_in_pieces:?}");
    for access in [Access::Open, Access::Barred] {
        answered(bytes, access);
    }
}

/// Decodes bytes that arrive in pieces, trying again whenever there are as many as were wanted.
fn requests(bytes: &[u8], piece: usize) -> (Vec<Vec<Vec<u8>>>, Option<Malformed>) {
    let mut requests = Vec::new();
    let (mut start, mut received, mut wanted) = (0, 0, 1);
    while received < bytes.len() {
        received = bytes.len().min(received + piece);
        while received - start >= wanted {
            match decode(&bytes[start..received]) {
                Ok(Frame::Whole { arguments, length }) => {
                    assert!((1..=REQUEST_MAX).contains(&length), "{length} bytes");
                    requests.push(arguments.iter().map(|word| word.to_vec()).collect());
                    start += length;
                    wanted = 1;
                }
                Ok(Frame::Partial { wanted: more }) => {
                    let held = received - start;
                    assert!(held < more && more <= REQUEST_MAX, "{held} of {more} bytes");
                    wanted = more;
                }
                Err(malformed) => return (requests, Some(malformed)),
            }
        }
    }
    (requests, None)
}

/// Takes batch after batch, as a connection does, and checks that each command has an answer.
fn answered(bytes: &[u8], access: Access) {
    let (mut session, mut rest) = (Session::new(1, None), bytes);
    loop {
        let batch = Batch::of(rest, access, BATCH_MAX, |_| None);
        assert!(batch.entries.len() <= BATCH_MAX);
        let checks = batch.entries.iter().filter(|entry| matches!(entry, Entry::Answer(_)));
        assert_eq!(checks.count(), batch.requests.len());
        assert!(access == Access::Open || batch.requests.is_empty());
        batch.requests.iter().for_each(is_bounded);
        for entry in &batch.entries {
            let Entry::Control(control) = entry else { continue };
            let mut replies = Replies::default();
            let next = session.run(control, &mut replies);
            assert!(replies.bytes().ends_with(b"\r\n"), "{control:?}");
            assert!(next == Next::Stay || control.ends_batch(), "{control:?}");
        }
        rest = &rest[batch.length..];
        if batch.end != End::Cut || batch.length == 0 {
            return;
        }
    }
}

fn is_bounded(request: &Request<'_>) {
    match request.inline_limit() {
        None => {
            assert!(request.attributes().count() <= 32);
            assert!(
                request.attributes().all(|(name, value)| name.len() <= 64 && value.len() <= 4_096)
            );
        }
        Some((key, limit)) => {
            assert!((1..=4_096).contains(&key.len()));
            assert!(limit.capacity().is_some_and(|capacity| capacity <= 1_000_000_000));
        }
    }
}
