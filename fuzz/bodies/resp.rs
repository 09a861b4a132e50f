//! What holds of any bytes that the RESP door receives: shared by the fuzz target, and by the test that
//! replays its corpus in the gate. Stands beside a module `frame`, the codec.
//!
//! An input is one byte that says in pieces of how many bytes the rest arrives.

use super::frame::{Frame, Malformed, REQUEST_MAX, decode};

/// Panics if the pieces in which bytes arrive change the requests that are read from them.
pub(super) fn holds(input: &[u8]) {
    let Some((piece, bytes)) = input.split_first() else { return };
    let (at_once, end) = requests(bytes, bytes.len().max(1));
    let (in_pieces, end_in_pieces) = requests(bytes, usize::from(*piece).max(1));
    assert_eq!(at_once, in_pieces);
    // In pieces it may still wait for bytes that at once were seen not to matter.
    assert!(end_in_pieces.is_none() || end == end_in_pieces, "{end:?}, {end_in_pieces:?}");
}

/// What the door reads, asking again whenever there are as many bytes as were wanted.
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
