//! Checks that the requests of the RESP API are the same in whatever pieces their bytes arrive.
//!
//! The first byte of an input is the size of the pieces in which the rest arrives.

#[allow(dead_code, reason = "the listener uses the rest")]
#[path = "../../crates/spillgate-server/src/listener/resp/frame.rs"]
mod frame;

use frame::{Frame, Malformed, REQUEST_MAX, decode};

/// Panics if the pieces in which bytes arrive change the requests that are decoded.
pub fn holds(input: &[u8]) {
    let Some((piece, bytes)) = input.split_first() else { return };
    let (at_once, end) = requests(bytes, bytes.len().max(1));
    let (in_pieces, end_in_pieces) = requests(bytes, usize::from(*piece).max(1));
    assert_eq!(at_once, in_pieces);
    // In pieces the decoder may still wait for bytes when the error shows only in later ones.
    assert!(end_in_pieces.is_none() || end == end_in_pieces, "{end:?}, {end_in_pieces:?}");
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
