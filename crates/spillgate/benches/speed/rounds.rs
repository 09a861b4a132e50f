//! Runs contenders in turns, so that other load on the machine affects all of them equally.

use std::time::Duration;

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    pub rounds: usize,
    /// Of one contender in one round.
    pub span: Duration,
}

impl Effort {
    pub const FULL: Effort = Effort { rounds: 7, span: Duration::from_millis(500) };
    pub const QUICK: Effort = Effort { rounds: 3, span: Duration::from_millis(200) };
}

/// The result of one contender in one round.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Decisions a second, or µs where a time is measured.
    pub figure: f64,
    /// The store's CPU time per decision; 0 without a store.
    pub store_us: f64,
}

/// Each contender's runs, one a round.
pub struct Rounds(Vec<Vec<Run>>);

/// Over several rounds.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Rounds {
    /// Runs every contender once per round, after one round that does not count. Every other round runs in
    /// reverse, so that no contender always follows the same one.
    pub fn of(effort: Effort, contenders: &mut [Box<dyn FnMut() -> Run + '_>]) -> Rounds {
        let mut runs = vec![Vec::new(); contenders.len()];
        for round in 0..=effort.rounds {
            let mut order: Vec<usize> = (0..contenders.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for contender in order {
                let run = contenders[contender]();
                if round > 0 {
                    runs[contender].push(run);
                }
            }
        }
        Rounds(runs)
    }

    pub fn figure(&self, contender: usize) -> f64 {
        Spread::of(self.0[contender].iter().map(|run| run.figure)).median
    }

    pub fn store_us(&self, contender: usize) -> f64 {
        Spread::of(self.0[contender].iter().map(|run| run.store_us)).median
    }

    pub fn figure_ratio(&self, contender: usize, to: usize) -> Spread {
        self.ratio(contender, to, |run| run.figure)
    }

    pub fn store_us_ratio(&self, contender: usize, to: usize) -> Spread {
        self.ratio(contender, to, |run| run.store_us)
    }

    /// Returns how much more one contender takes than another, relative to a third.
    pub fn added_ratio(&self, with: usize, without: usize, to: usize) -> Spread {
        let rounds = self.0[with].iter().zip(&self.0[without]).zip(&self.0[to]);
        Spread::of(rounds.map(|((with, without), to)| (with.figure - without.figure) / to.figure))
    }

    fn ratio(&self, contender: usize, to: usize, of: fn(&Run) -> f64) -> Spread {
        Spread::of(self.0[contender].iter().zip(&self.0[to]).map(|(a, b)| of(a) / of(b)))
    }
}

impl Spread {
    pub fn of(figures: impl Iterator<Item = f64>) -> Spread {
        let mut sorted: Vec<f64> = figures.collect();
        sorted.sort_by(f64::total_cmp);
        Spread { median: sorted[sorted.len() / 2], min: sorted[0], max: sorted[sorted.len() - 1] }
    }
}
