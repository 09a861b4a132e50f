//! Replays the stored fuzzing inputs of the parsers that public functions reach.

#[path = "../../../../fuzz/public.rs"]
mod public;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

use public::Target;

#[test]
fn stored_fuzzing_inputs_stay_within_bounds() {
    replay::all(&public::TARGETS);
}
