//! Follows one subject under one limit: how much was admitted in any one window, beside the limit.

use std::collections::VecDeque;

use super::super::bins::{Bins, Join};

/// The costs that a subject asked for, and those that were admitted, in the window that ends at each instant.
#[derive(Debug)]
pub(in crate::simulate) struct Followed {
    pub(in crate::simulate) rule: usize,
    pub(in crate::simulate) limit: usize,
    pub(in crate::simulate) subject: String,
    pub(in crate::simulate) capacity: u64,
    window_us: u64,
    asked: Window,
    admitted: Window,
    /// The instant since which the sums are unchanged.
    since_us: u64,
    /// The most that was admitted, and the most that was asked for, in every window that ends within a bin.
    pub(in crate::simulate) bins: Bins,
    /// The most that was admitted in any window, and when that window ended.
    pub(in crate::simulate) peak: (u64, u64),
    /// Whether a window had too many entries to keep.
    pub(in crate::simulate) lost_count: bool,
}

/// The costs of the last window, by instant.
#[derive(Debug, Default)]
struct Window {
    entries: VecDeque<(u64, u64)>,
    sum: u64,
}

impl Followed {
    pub(super) fn new(
        (rule, limit): (usize, usize),
        subject: String,
        capacity: u64,
        window_us: u64,
    ) -> Followed {
        Followed {
            rule,
            limit,
            subject,
            capacity,
            window_us,
            asked: Window::default(),
            admitted: Window::default(),
            since_us: 0,
            bins: Bins::new(Join::Most),
            peak: (0, 0),
            lost_count: false,
        }
    }

    pub(in crate::simulate) fn window_us(&self) -> u64 {
        self.window_us
    }

    /// Counts a request of this cost, admitted or not.
    pub(super) fn note(&mut self, at_us: u64, cost: u64, allowed: bool) {
        self.advance(at_us);
        self.asked.add(at_us, cost);
        if allowed {
            self.admitted.add(at_us, cost);
        }
        self.lost_count |= self.asked.entries.len() > ENTRIES_MAX;
        if self.lost_count {
            (self.asked, self.admitted) = (Window::default(), Window::default());
        }
        if self.admitted.sum > self.peak.0 {
            self.peak = (self.admitted.sum, at_us);
        }
        self.bins.add(at_us, [self.admitted.sum, self.asked.sum]);
    }

    /// Moves on to an instant, and records in the bins when entries leave the window.
    pub(super) fn advance(&mut self, at_us: u64) {
        while let Some(leaves_us) = self.leaves_us().filter(|leaves_us| *leaves_us <= at_us) {
            self.stay_until(leaves_us);
            self.asked.forget(leaves_us, self.window_us);
            self.admitted.forget(leaves_us, self.window_us);
        }
        self.stay_until(at_us);
    }

    /// Records unchanged sums up to an instant.
    fn stay_until(&mut self, at_us: u64) {
        if self.asked.sum > 0 && self.since_us < at_us {
            self.bins.cover((self.since_us, at_us - 1), [self.admitted.sum, self.asked.sum]);
        }
        self.since_us = at_us;
    }

    /// Returns when the next entry leaves the window.
    fn leaves_us(&self) -> Option<u64> {
        self.asked.entries.front().map(|(at_us, _)| at_us + self.window_us)
    }
}

impl Window {
    fn add(&mut self, at_us: u64, cost: u64) {
        self.sum += cost;
        match self.entries.back_mut() {
            Some((last_us, sum)) if *last_us == at_us => *sum += cost,
            _ => self.entries.push_back((at_us, cost)),
        }
    }

    /// Drops the entries that have left. A window is half open: an entry exactly one window ago is not in it.
    fn forget(&mut self, at_us: u64, window_us: u64) {
        while let Some((_, cost)) =
            self.entries.front().copied().filter(|(entry_us, _)| entry_us + window_us <= at_us)
        {
            self.sum -= cost;
            self.entries.pop_front();
        }
    }
}

/// At most 16 MB; requests of one instant share an entry.
const ENTRIES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::random::Random;

    #[test]
    fn the_peak_is_that_of_every_half_open_window() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let window_us = 1 + random.below(5_000);
            let mut followed = Followed::new((0, 0), String::new(), 10, window_us);
            let (mut at_us, mut admitted) = (1_000_000, Vec::new());
            for _ in 0..200 {
                at_us += random.below(700);
                let (cost, allowed) = (random.below(4), random.below(2) == 0);
                followed.note(at_us, cost, allowed);
                if allowed {
                    admitted.push((at_us, cost));
                }
            }
            let within = |start: u64| -> u64 {
                let entries =
                    admitted.iter().filter(|(at, _)| (start..start + window_us).contains(at));
                entries.map(|(_, cost)| cost).sum()
            };
            let most = admitted.iter().map(|(at, _)| within(*at)).max().unwrap_or(0);
            assert_eq!(followed.peak.0, most, "seed {seed}");
            let drawn = followed.bins.all().map(|(_, [admitted, _])| admitted).max();
            assert_eq!(drawn, Some(most), "seed {seed}");
        }
    }
}
