//! Puts requests in the order of their instants.
//!
//! A server writes a line when a request ends, and some servers log when it began. So each request is held until one
//! that is later by the whole delay has been read. A request that comes later than that is moved to the newest instant
//! that was emitted: time never goes back, as for a limiter.

use std::collections::BTreeMap;

/// Holds requests until no earlier one can come.
#[derive(Debug)]
pub struct Order<R> {
    delay_us: u64,
    spread: Spread,
    /// The held requests by instant, and by the number of their line.
    held: BTreeMap<(u64, u64), R>,
    lines: u64,
    newest_us: u64,
    emitted_us: u64,
    /// How many requests came after a later one and were put in order.
    pub(crate) sorted: u64,
    /// How many requests came too late for that.
    pub(crate) late: u64,
}

/// How to treat the requests of one instant, if the log has whole seconds only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// All of them happen at that instant.
    No,
    /// They are spread evenly over the second.
    OverTheSecond,
}

impl<R> Order<R> {
    pub fn new(delay_us: u64, spread: Spread) -> Order<R> {
        // To spread a second, all its requests must be known before the first is emitted.
        let delay_us = if spread == Spread::No { delay_us } else { delay_us.max(1) };
        let held = BTreeMap::new();
        Order { delay_us, spread, held, lines: 0, newest_us: 0, emitted_us: 0, sorted: 0, late: 0 }
    }

    /// Takes a request and emits those that are due, with their instants.
    pub fn take(&mut self, at_us: u64, request: R, mut emit: impl FnMut(u64, R)) {
        let due_us = at_us.max(self.emitted_us);
        if due_us > at_us {
            self.late += 1;
        } else if due_us < self.newest_us {
            self.sorted += 1;
        }
        self.newest_us = self.newest_us.max(due_us);
        self.held.insert((due_us, self.lines), request);
        self.lines += 1;
        while let Some((&(first_us, _), _)) = self.held.first_key_value() {
            if first_us + self.delay_us > self.newest_us && self.held.len() <= HELD_MAX {
                break;
            }
            self.emit_instant(first_us, &mut emit);
        }
    }

    /// Emits all requests that are left.
    pub fn finish(&mut self, mut emit: impl FnMut(u64, R)) {
        while let Some((&(first_us, _), _)) = self.held.first_key_value() {
            self.emit_instant(first_us, &mut emit);
        }
    }

    /// Emits the requests of the first instant.
    fn emit_instant(&mut self, at_us: u64, emit: &mut impl FnMut(u64, R)) {
        let count = self.held.range(..(at_us + 1, 0)).count() as u64;
        let is_spread = self.spread == Spread::OverTheSecond && at_us.is_multiple_of(SECOND_US);
        for number in 0..count {
            let Some((_, request)) = self.held.pop_first() else { return };
            let later_us = if is_spread { SECOND_US * number / count } else { 0 };
            self.emitted_us = self.emitted_us.max(at_us + later_us);
            emit(self.emitted_us, request);
        }
    }
}

const SECOND_US: u64 = 1_000_000;
/// Ten seconds at 6,500 requests a second. At a higher rate, requests out of order are late sooner.
const HELD_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the instants as emitted, and how many requests were sorted and late.
    fn ordered(delay_us: u64, spread: Spread, instants: &[u64]) -> (Vec<u64>, u64, u64) {
        let mut order = Order::new(delay_us, spread);
        let mut emitted = Vec::new();
        for at_us in instants {
            order.take(*at_us, (), |at_us, ()| emitted.push(at_us));
        }
        order.finish(|at_us, ()| emitted.push(at_us));
        (emitted, order.sorted, order.late)
    }

    #[test]
    fn lines_within_the_delay_are_put_in_order() {
        let (emitted, sorted, late) = ordered(10, Spread::No, &[5, 3, 4, 12, 9, 30, 21]);
        assert_eq!((emitted, sorted, late), (vec![3, 4, 5, 9, 12, 21, 30], 4, 0));
    }

    #[test]
    fn a_line_beyond_the_delay_counts_when_it_comes() {
        let (emitted, sorted, late) = ordered(10, Spread::No, &[5, 7, 30, 6]);
        assert_eq!((emitted, sorted, late), (vec![5, 7, 7, 30], 0, 1));
    }

    #[test]
    fn time_never_goes_back_in_any_input() {
        for seed in 0..200 {
            let mut random = crate::random::Random::new(seed);
            let unit = [1, 1_000, 1_000_000][random.below(3) as usize];
            let instants: Vec<u64> = (0..300).map(|_| random.below(1_000) * unit).collect();
            let spread = [Spread::No, Spread::OverTheSecond][random.below(2) as usize];
            let (emitted, _, _) = ordered(random.below(300) * unit, spread, &instants);
            assert!(emitted.is_sorted(), "seed {seed}");
            assert_eq!(emitted.len(), instants.len());
        }
    }

    #[test]
    fn whole_seconds_are_spread_evenly() {
        let second = 1_000_000;
        let instants = [second, second, second, second, 2 * second, 3 * second, 3 * second];
        let (emitted, _, _) = ordered(0, Spread::OverTheSecond, &instants);
        let expected = [
            second,
            second + 250_000,
            second + 500_000,
            second + 750_000,
            2 * second,
            3 * second,
            3 * second + 500_000,
        ];
        assert_eq!(emitted, expected);
    }
}
