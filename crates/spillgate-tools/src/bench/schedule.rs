//! Decides which subject calls when: a pure function of the seed, the same on every machine.

use std::fmt;
use std::sync::Arc;

use clap::ValueEnum;

use crate::output::grouped;
use crate::simulate::{Rate, duration, random::Random};

/// The pattern of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// Evenly spaced, the subjects in turn.
    Steady,
    /// All calls of a second in its first tenth.
    Burst,
    /// Nine of ten calls are for one subject.
    HotKey,
    /// Of many subjects the n-th calls 1/n as often as the first.
    Zipf,
    /// A million subjects, all equally likely.
    ManyTenants,
    /// Steady, while the store is killed and comes back empty.
    Outage,
}

impl Scenario {
    /// Returns the number of subjects without --subjects.
    fn subjects(self) -> u64 {
        match self {
            Scenario::Steady | Scenario::Burst | Scenario::HotKey | Scenario::Outage => 1_000,
            Scenario::Zipf => 100_000,
            Scenario::ManyTenants => 1_000_000,
        }
    }
}

impl fmt::Display for Scenario {
    /// Writes the name on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no scenario is skipped").get_name())
    }
}

/// How often calls are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// At due times that do not depend on the answers: an open loop.
    At(Rate),
    /// Each caller calls again when it is answered: a closed loop.
    Max,
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pace::Max => f.write_str("as fast as answers come"),
            Pace::At(Rate { count, period_us: 1_000_000 }) => {
                write!(f, "{}/second", grouped(*count))
            }
            Pace::At(Rate { count, period_us }) => {
                write!(f, "{} in {}", grouped(*count), duration::shown(*period_us))
            }
        }
    }
}

/// A scenario with all its numbers.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    pub(super) scenario: Scenario,
    pub(super) pace: Pace,
    pub(super) length_us: u64,
    pub(super) subjects: u64,
    pub(super) seed: u64,
    ranks: Ranks,
}

/// Running totals of the subjects' weights: entry n is the sum of the first n + 1. Only Zipf has them.
type Ranks = Option<Arc<[u64]>>;

/// One call that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// Nanoseconds since the start.
    pub(super) at_ns: u64,
    pub(super) subject: u64,
}

impl Schedule {
    pub(super) fn new(
        scenario: Scenario,
        pace: Pace,
        length_us: u64,
        subjects: Option<u64>,
        seed: u64,
    ) -> Result<Schedule, String> {
        let subjects = subjects.unwrap_or(scenario.subjects());
        let ranks = (scenario == Scenario::Zipf).then(|| ranks(subjects));
        let schedule = Schedule { scenario, pace, length_us, subjects, seed, ranks };
        if let Pace::At(rate) = pace
            && u128::from(rate.count) * 1_000_000
                > u128::from(RATE_MAX) * u128::from(rate.period_us)
        {
            return Err(format!(
                "--rate: at most {RATE_MAX} calls a second can be sent on time; lower the rate, or write \
                 --rate max for as many calls as are answered"
            ));
        }
        match schedule.count() {
            0 if pace != Pace::Max => Err(format!(
                "--rate: there is no call within {}; raise the rate, or write a longer --duration",
                duration::shown(length_us)
            )),
            _ => Ok(schedule),
        }
    }

    /// Returns the schedule of one of several equal parts of the time, with a seed of its own.
    pub(super) fn part(&self, parts: u64, number: u64) -> Schedule {
        let seed = self.seed.wrapping_add(number.wrapping_mul(0x9e37_79b9));
        Schedule { length_us: self.length_us / parts, seed, ..self.clone() }
    }

    /// Returns the number of calls; 0 if the answers set the pace.
    pub(super) fn count(&self) -> u64 {
        let Pace::At(rate) = self.pace else { return 0 };
        let whole = u128::from(self.length_us) * u128::from(rate.count);
        u64::try_from(whole / u128::from(rate.period_us)).unwrap_or(u64::MAX)
    }

    /// Returns every call in order of time; none if the answers set the pace.
    pub(super) fn arrivals(&self) -> impl Iterator<Item = Arrival> + Send + use<> {
        let mut subjects = self.subjects_of_caller(0);
        let mut random = Random::new(!self.seed);
        let schedule = self.clone();
        (0..self.count()).map(move |number| {
            let subject = subjects.draw();
            Arrival { at_ns: schedule.at_ns(number, &mut random), subject }
        })
    }

    /// Returns the endless sequence of subjects of one of several callers.
    pub(super) fn subjects_of_caller(&self, caller: u64) -> Subjects {
        Subjects {
            scenario: self.scenario,
            subjects: self.subjects,
            ranks: self.ranks.clone(),
            // Callers start apart, so that they do not call for the same subject at the same time.
            next: caller.wrapping_mul(7_919),
            random: Random::new(self.seed.wrapping_add(caller)),
        }
    }

    fn at_ns(&self, number: u64, random: &mut Random) -> u64 {
        let begins = self.slot_ns(number);
        match self.scenario {
            Scenario::Steady | Scenario::Outage => begins,
            Scenario::Burst => begins / SECOND_NS * SECOND_NS + begins % SECOND_NS / 10,
            // At a random instant within its slot: uneven, in order, and exactly as many calls as asked for.
            Scenario::HotKey | Scenario::Zipf | Scenario::ManyTenants => {
                begins + random.below(self.slot_ns(number + 1) - begins)
            }
        }
    }

    fn slot_ns(&self, number: u64) -> u64 {
        let Pace::At(rate) = self.pace else { return 0 };
        let ns = u128::from(number) * u128::from(rate.period_us) * 1_000;
        u64::try_from(ns / u128::from(rate.count)).unwrap_or(u64::MAX)
    }
}

/// The subjects of the next calls.
#[derive(Clone, Debug)]
pub(super) struct Subjects {
    scenario: Scenario,
    subjects: u64,
    ranks: Ranks,
    next: u64,
    random: Random,
}

impl Subjects {
    pub(super) fn draw(&mut self) -> u64 {
        match self.scenario {
            Scenario::Steady | Scenario::Burst | Scenario::Outage => {
                let subject = self.next % self.subjects;
                self.next = self.next.wrapping_add(1);
                subject
            }
            Scenario::HotKey if self.random.below(10) < 9 || self.subjects == 1 => 0,
            Scenario::HotKey => 1 + self.random.below(self.subjects - 1),
            Scenario::ManyTenants => self.random.below(self.subjects),
            Scenario::Zipf => {
                let ranks = self.ranks.as_deref().unwrap_or_default();
                let drawn = self.random.below(ranks.last().copied().unwrap_or(0));
                ranks.partition_point(|end| *end <= drawn) as u64
            }
        }
    }
}

fn ranks(subjects: u64) -> Arc<[u64]> {
    let mut total = 0;
    let weighed = (1..=subjects).map(|rank| {
        total += HEAVIEST / rank;
        total
    });
    weighed.collect()
}

const SECOND_NS: u64 = 1_000_000_000;
/// The weight of the first Zipf subject. The last of 10,000,000 still weighs more than 400, so rounding is no matter.
const HEAVIEST: u64 = 1 << 32;
/// One thread sends all calls, and each takes it a microsecond.
const RATE_MAX: u64 = 1_000_000;
/// The most subjects of a schedule. With `zipf` each takes eight bytes.
pub(crate) const SUBJECTS_MAX: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(scenario: Scenario, per_second: u64, seed: u64) -> Schedule {
        let pace = Pace::At(Rate { count: per_second, period_us: 1_000_000 });
        Schedule::new(scenario, pace, 3_000_000, None, seed).unwrap()
    }

    fn arrivals(scenario: Scenario, seed: u64) -> Vec<Arrival> {
        schedule(scenario, 20_000, seed).arrivals().collect()
    }

    fn share_of_first(all: &[Arrival]) -> usize {
        all.iter().filter(|arrival| arrival.subject == 0).count() * 1_000 / all.len()
    }

    #[test]
    fn every_scenario_makes_the_requested_calls_in_order_and_repeats_them_for_its_seed() {
        for &scenario in Scenario::value_variants() {
            let all = arrivals(scenario, 7);
            assert_eq!(all.len(), 60_000, "{scenario}");
            assert!(all.is_sorted_by_key(|arrival| arrival.at_ns), "{scenario}");
            assert!(all.iter().all(|arrival| arrival.at_ns < 3 * SECOND_NS), "{scenario}");
            let subjects = scenario.subjects();
            assert!(all.iter().all(|arrival| arrival.subject < subjects), "{scenario}");
            assert_eq!(all, arrivals(scenario, 7), "{scenario}");
        }
        assert_ne!(arrivals(Scenario::Zipf, 7), arrivals(Scenario::Zipf, 8));
    }

    #[test]
    fn steady_calls_are_evenly_spaced_and_go_round_the_subjects() {
        let all = arrivals(Scenario::Steady, 1);
        assert!(all.windows(2).all(|pair| pair[1].at_ns - pair[0].at_ns == 50_000));
        assert_eq!((all[0].subject, all[999].subject, all[1_000].subject), (0, 999, 0));
    }

    #[test]
    fn a_burst_is_over_in_the_first_tenth_of_its_second() {
        let all = arrivals(Scenario::Burst, 1);
        assert!(all.iter().all(|arrival| arrival.at_ns % SECOND_NS < SECOND_NS / 10));
        let second = |number| all.iter().filter(move |it| it.at_ns / SECOND_NS == number).count();
        assert_eq!([second(0), second(1), second(2)], [20_000; 3]);
    }

    #[test]
    fn nine_of_ten_calls_are_for_the_hot_key() {
        assert!((890..910).contains(&share_of_first(&arrivals(Scenario::HotKey, 3))));
        let single = Schedule { subjects: 1, ..schedule(Scenario::HotKey, 100, 3) };
        assert!(single.arrivals().all(|arrival| arrival.subject == 0));
    }

    #[test]
    fn the_first_zipf_subject_calls_twice_as_often_as_the_second_and_tenants_are_alike() {
        let all = arrivals(Scenario::Zipf, 3);
        let of = |subject| all.iter().filter(|arrival| arrival.subject == subject).count();
        assert!(of(0).abs_diff(2 * of(1)) * 10 < of(0), "{} {}", of(0), of(1));
        let mut tenants: Vec<u64> =
            arrivals(Scenario::ManyTenants, 3).iter().map(|arrival| arrival.subject).collect();
        tenants.sort_unstable();
        tenants.dedup();
        assert!(tenants.len() > 57_000, "{} tenants in 60,000 calls", tenants.len());
    }

    #[test]
    fn callers_of_a_closed_loop_have_subjects_of_their_own() {
        let schedule = schedule(Scenario::Zipf, 100, 3);
        let drawn = |caller| {
            let mut subjects = schedule.subjects_of_caller(caller);
            (0..20).map(|_| subjects.draw()).collect::<Vec<_>>()
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }

    #[test]
    fn a_rate_that_cannot_be_sent_or_sends_nothing_is_refused() {
        let of = |count, period_us| {
            let pace = Pace::At(Rate { count, period_us });
            Schedule::new(Scenario::Steady, pace, 1_000_000, None, 1).map(|it| it.count())
        };
        assert_eq!(of(1_000_000, 1_000_000), Ok(1_000_000));
        assert!(of(1_000_001, 1_000_000).unwrap_err().contains("--rate max"));
        assert!(of(1, 60_000_000).unwrap_err().contains("longer --duration"));
    }
}
