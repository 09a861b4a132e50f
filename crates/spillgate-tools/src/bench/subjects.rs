//! Chooses which subject calls next: the same sequence for the same seed, on every machine.

use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;

use clap::ValueEnum;
use fastrand::Rng;
use serde::Serialize;

/// How calls are spread over the subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scenario {
    /// In turn.
    Steady,
    /// Nine of ten calls are for one subject.
    HotKey,
    /// The n-th subject calls 1/n as often as the first.
    Zipf,
}

impl Scenario {
    pub fn default_subjects(self) -> u64 {
        match self {
            Scenario::Steady | Scenario::HotKey => 1_000,
            Scenario::Zipf => 100_000,
        }
    }
}

impl fmt::Display for Scenario {
    /// Writes the name on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// An endless sequence of subjects, as numbers from 0.
#[derive(Clone, Debug)]
pub struct Subjects {
    scenario: Scenario,
    count: u64,
    next: u64,
    random: Rng,
    /// Running totals of the Zipf weights: entry n is the sum of the first n + 1. Empty for other scenarios.
    totals: Arc<[u64]>,
}

impl Subjects {
    pub fn new(scenario: Scenario, count: u64) -> Subjects {
        let weighed = if scenario == Scenario::Zipf { count } else { 0 };
        let mut total = 0;
        let totals = (1..=weighed).map(|rank| {
            total += HEAVIEST / rank;
            total
        });
        let totals = totals.collect();
        Subjects { scenario, count, next: 0, random: Rng::with_seed(0), totals }
    }

    /// Returns another sequence over the same subjects. Callers and rounds each have their own, so that they do not
    /// call for the same subject at the same time.
    pub fn seeded(&self, seed: u64) -> Subjects {
        Subjects { next: seed.wrapping_mul(7_919), random: Rng::with_seed(seed), ..self.clone() }
    }

    pub fn draw(&mut self) -> u64 {
        match self.scenario {
            Scenario::Steady => {
                let subject = self.next % self.count;
                self.next = self.next.wrapping_add(1);
                subject
            }
            Scenario::HotKey if self.count == 1 || self.random.u8(..10) < 9 => 0,
            Scenario::HotKey => self.random.u64(1..self.count),
            Scenario::Zipf => {
                let drawn = self.random.u64(..self.totals[self.totals.len() - 1]);
                self.totals.partition_point(|end| *end <= drawn) as u64
            }
        }
    }
}

/// Returns the name of a subject: an address, since that is valid for an attribute of any type. The network is
/// reserved, so no rule on networks names it by chance.
pub fn name(subject: u64) -> String {
    Ipv4Addr::from_bits(0xF000_0000 | subject as u32).to_string()
}

/// The weight of the first Zipf subject. The last of the most still weighs more than 400, so rounding is no matter.
const HEAVIEST: u64 = 1 << 32;
/// With `zipf` each subject takes eight bytes.
pub const SUBJECTS_MAX: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(scenario: Scenario, count: u64, seed: u64) -> Vec<u64> {
        let mut subjects = Subjects::new(scenario, count).seeded(seed);
        (0..60_000).map(|_| subjects.draw()).collect()
    }

    #[test]
    fn a_seed_repeats_its_sequence_and_another_has_another() {
        for &scenario in Scenario::value_variants() {
            let all = drawn(scenario, 1_000, 7);
            assert!(all.iter().all(|subject| *subject < 1_000), "{scenario:?}");
            assert_eq!(all, drawn(scenario, 1_000, 7), "{scenario:?}");
            assert_ne!(all, drawn(scenario, 1_000, 8), "{scenario:?}");
        }
    }

    #[test]
    fn steady_calls_go_round_the_subjects() {
        let all = drawn(Scenario::Steady, 1_000, 0);
        assert_eq!((all[0], all[999], all[1_000]), (0, 999, 0));
    }

    #[test]
    fn nine_of_ten_calls_are_for_the_hot_key() {
        let hot = drawn(Scenario::HotKey, 1_000, 3).iter().filter(|subject| **subject == 0).count();
        assert!((53_400..54_600).contains(&hot), "{hot}");
        assert!(drawn(Scenario::HotKey, 1, 3).iter().all(|subject| *subject == 0));
    }

    #[test]
    fn the_first_zipf_subject_calls_twice_as_often_as_the_second() {
        let all = drawn(Scenario::Zipf, 100_000, 3);
        let calls = |subject| all.iter().filter(|drawn| **drawn == subject).count();
        assert!(calls(0).abs_diff(2 * calls(1)) * 10 < calls(0), "{} {}", calls(0), calls(1));
    }

    #[test]
    fn subjects_are_addresses_of_their_own() {
        assert_eq!((name(0), name(SUBJECTS_MAX)), ("240.0.0.0".into(), "240.152.150.128".into()));
    }
}
