//! Counts over time in a bounded number of bins. When the bins are used up, neighbours are joined.

/// Two counts for each of several consecutive spans of time.
#[derive(Clone, Debug)]
pub(super) struct Bins {
    width: usize,
    /// The number of the first bin, counted from the epoch.
    first: u64,
    values: Vec<[u64; 2]>,
    join: Join,
}

/// How two bins are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    Sum,
    Most,
}

impl Bins {
    pub(super) fn new(join: Join) -> Bins {
        Bins { width: 0, first: 0, values: Vec::new(), join }
    }

    /// Adds counts to the bin of an instant, which must not be before the last one.
    #[inline]
    pub(super) fn add(&mut self, at_us: u64, counts: [u64; 2]) {
        let place = self.place(at_us);
        let bin = &mut self.values[place];
        *bin = self.join.of(*bin, counts);
    }

    /// Adds counts to each bin from one instant to another, which is no earlier.
    pub(super) fn cover(&mut self, (from_us, to_us): (u64, u64), counts: [u64; 2]) {
        self.place(from_us);
        let last = self.place(to_us);
        // Read again: the second call may have joined bins, which moves the first.
        let first = self.place(from_us);
        for bin in &mut self.values[first..=last] {
            *bin = self.join.of(*bin, counts);
        }
    }

    /// Returns the same counts in at most `bins_max` bins, or in the widest bins that there are.
    pub(super) fn joined(&self, bins_max: usize) -> Bins {
        let mut joined = self.clone();
        while joined.values.len() > bins_max && joined.width + 1 < WIDTHS_US.len() {
            joined.widen();
        }
        joined
    }

    /// Returns the length of a bin.
    pub(super) fn width_us(&self) -> u64 {
        WIDTHS_US[self.width]
    }

    /// Returns each bin's beginning and counts, in order.
    pub(super) fn all(&self) -> impl ExactSizeIterator<Item = (u64, [u64; 2])> {
        let width_us = self.width_us();
        self.values
            .iter()
            .enumerate()
            .map(move |(place, counts)| ((self.first + place as u64) * width_us, *counts))
    }

    /// Returns the place of an instant's bin, which it adds if needed.
    fn place(&mut self, at_us: u64) -> usize {
        if self.values.is_empty() {
            self.first = at_us / self.width_us();
        }
        loop {
            let place = (at_us / self.width_us()).saturating_sub(self.first);
            if place < BINS_MAX as u64 {
                if place as usize >= self.values.len() {
                    self.values.resize(place as usize + 1, [0; 2]);
                }
                return place as usize;
            }
            if self.width + 1 == WIDTHS_US.len() {
                // Half a year a bin: no limit has a longer window.
                return self.values.len() - 1;
            }
            self.widen();
        }
    }

    fn widen(&mut self) {
        let (width_us, join) = (self.width_us(), self.join);
        self.width += 1;
        let ratio = self.width_us() / width_us;
        let first = self.first / ratio;
        let mut wider = Vec::new();
        for (place, counts) in self.values.iter().enumerate() {
            let place = ((self.first + place as u64) / ratio - first) as usize;
            wider.resize(wider.len().max(place + 1), [0; 2]);
            wider[place] = join.of(wider[place], *counts);
        }
        (self.first, self.values) = (first, wider);
    }
}

impl Join {
    fn of(self, one: [u64; 2], other: [u64; 2]) -> [u64; 2] {
        let both = |number: usize| match self {
            Join::Sum => one[number] + other[number],
            Join::Most => one[number].max(other[number]),
        };
        [both(0), both(1)]
    }
}

/// Finer than any chart. Joining leaves at least a seventh of the bins.
const BINS_MAX: usize = 2_000;

/// Each divides the next, so that narrow bins end where wider ones do: up to half a year.
const WIDTHS_US: [u64; 22] = [
    1_000,
    2_000,
    10_000,
    20_000,
    100_000,
    200_000,
    1_000_000,
    2_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    900_000_000,
    1_800_000_000,
    3_600_000_000,
    7_200_000_000,
    21_600_000_000,
    43_200_000_000,
    86_400_000_000,
    7 * 86_400_000_000,
    28 * 86_400_000_000,
    196 * 86_400_000_000,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::random::Random;

    #[test]
    fn each_width_divides_the_next() {
        assert!(WIDTHS_US.windows(2).all(|pair| pair[1] % pair[0] == 0 && pair[1] / pair[0] <= 7));
    }

    /// A bin holds the counts of its instants, however often bins were joined before.
    #[test]
    fn joining_bins_neither_loses_nor_moves_a_count() {
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let mut bins = Bins::new(Join::Sum);
            let longest_us = 10_u64.pow(3 + random.below(9) as u32);
            let mut at_us = random.below(1 << 52);
            let mut added = Vec::new();
            for _ in 0..500 {
                at_us += random.below(longest_us);
                bins.add(at_us, [1, at_us % 7]);
                added.push(at_us);
            }
            assert!(bins.all().len() <= BINS_MAX, "seed {seed}");
            for (start_us, counts) in bins.all() {
                let within =
                    added.iter().filter(|at| (start_us..start_us + bins.width_us()).contains(at));
                let expected = within.fold([0, 0], |[n, sum], at| [n + 1, sum + at % 7]);
                assert_eq!(counts, expected, "seed {seed}");
            }
            assert_eq!(bins.all().map(|(_, [n, _])| n).sum::<u64>(), 500, "seed {seed}");
        }
    }

    #[test]
    fn joining_by_most_keeps_the_larger_count() {
        let mut bins = Bins::new(Join::Most);
        bins.add(0, [5, 1]);
        bins.add(1_000, [3, 2]);
        bins.add(3_000_000, [1, 1]);
        assert_eq!(bins.all().next(), Some((0, [5, 2])));
    }
}
