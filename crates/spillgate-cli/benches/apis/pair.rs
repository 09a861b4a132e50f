//! An API beside its baseline: what it answers, and what each answer costs its server.

use crate::rounds::Rounds;
use crate::table::{Floor, Row, micros, rate};

/// Two rows: so many a second, against the floor, and the processor's time for each.
pub fn rows(
    rounds: &Rounds,
    measure: &str,
    (ours, baseline): (usize, usize),
    floor: Floor,
) -> [Row; 2] {
    let answered = Row {
        measure: measure.to_owned(),
        ours: rate(rounds.figure(ours)),
        baseline: rate(rounds.figure(baseline)),
        ratio: Some(rounds.figure_ratio(ours, baseline)),
        floor,
    };
    let cost = Row {
        measure: "the server's CPU for each".to_owned(),
        ours: micros(rounds.store_us(ours)),
        baseline: micros(rounds.store_us(baseline)),
        ratio: Some(rounds.store_us_ratio(ours, baseline)),
        floor: Floor::Nothing,
    };
    [answered, cost]
}
