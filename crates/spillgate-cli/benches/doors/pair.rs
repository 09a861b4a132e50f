//! A door beside its yardstick: what it answers, and what each answer costs its server.

use crate::rounds::Rounds;
use crate::table::{Budget, Row, micros, rate};

/// Two rows: so many a second, against the budget, and the processor's time for each.
pub fn rows(
    rounds: &Rounds,
    measure: &str,
    (ours, yardstick): (usize, usize),
    budget: Budget,
) -> [Row; 2] {
    let answered = Row {
        measure: measure.to_owned(),
        ours: rate(rounds.figure(ours)),
        yardstick: rate(rounds.figure(yardstick)),
        ratio: Some(rounds.figure_ratio(ours, yardstick)),
        budget,
    };
    let cost = Row {
        measure: "the server's CPU for each".to_owned(),
        ours: micros(rounds.store_us(ours)),
        yardstick: micros(rounds.store_us(yardstick)),
        ratio: Some(rounds.store_us_ratio(ours, yardstick)),
        budget: Budget::Nothing,
    };
    [answered, cost]
}
