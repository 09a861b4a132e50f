//! Makes up traffic: which subject makes a request when. The same seed makes the same traffic on every machine.

use clap::ValueEnum;

use super::duration;
use super::event::{Event, Vocabulary};
use super::random::Random;

/// The shape of the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shape {
    /// Evenly spaced, the subjects in turn.
    Steady,
    /// Bursts of twice the capacity, of one subject each, at random times.
    Bursty,
    /// One subject uses the whole capacity right before a window's end and again right after it.
    Boundary,
    /// Of many subjects the n-th makes 1/n as many requests as the first.
    Zipf,
}

impl Shape {
    /// Returns its name on the command line.
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// A pattern with all its numbers.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    shape: Shape,
    rate: Rate,
    length_us: u64,
    subjects: u64,
    seed: u64,
    /// The limit that sizes the traffic.
    limit: Reference,
    /// Attributes that all requests have.
    with: Vec<(String, String)>,
}

/// A number of requests in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) count: u64,
    pub(crate) period_us: u64,
}

/// The limit that sizes a pattern: its capacity, and the time in which that refills.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reference {
    pub(super) capacity: u64,
    pub(super) window_us: u64,
}

/// The flags of a pattern. Their defaults follow from the shape and the limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Options {
    pub(super) rate: Option<Rate>,
    pub(super) length_us: Option<u64>,
    pub(super) subjects: Option<u64>,
    pub(super) seed: u64,
    pub(super) with: Vec<(String, String)>,
}

impl Pattern {
    pub(super) fn new(shape: Shape, limit: Reference, options: Options) -> Result<Pattern, String> {
        let subjects = options.subjects.unwrap_or(match shape {
            Shape::Bursty => 5,
            Shape::Zipf => 1_000,
            Shape::Steady | Shape::Boundary => 1,
        });
        // In tenths of the rate that the limit admits in the long run.
        let tenths = match shape {
            Shape::Steady => 12 * subjects,
            Shape::Bursty => 5 * subjects,
            Shape::Boundary => 10,
            Shape::Zipf => 200,
        };
        let rate = options.rate.unwrap_or(Rate {
            count: limit.capacity.saturating_mul(tenths).max(1),
            period_us: limit.window_us.saturating_mul(10),
        });
        let length_us = options.length_us.unwrap_or(match shape {
            // Until the last burst has left the last window.
            Shape::Boundary => 6 * limit.window_us + limit.window_us / 5,
            Shape::Steady | Shape::Bursty | Shape::Zipf => 20 * limit.window_us,
        });
        let Options { seed, with, .. } = options;
        let pattern = Pattern { shape, rate, length_us, subjects, seed, limit, with };
        match pattern.count() {
            0..=EVENTS_MAX => Ok(pattern),
            count => Err(format!(
                "{} at this rate for {} is {count} requests, at most {EVENTS_MAX}; lower --rate, or write a shorter --for",
                shape.name(),
                duration::shown(length_us)
            )),
        }
    }

    pub(super) fn for_people(&self) -> String {
        let subjects = crate::counted(self.subjects as usize, "subject");
        let (name, length) = (self.shape.name(), duration::shown(self.length_us));
        format!("made-up traffic: {name}, {subjects}, {length}, seed {}", self.seed)
    }

    /// Returns the instants at which it begins and ends.
    pub(super) fn span_us(&self) -> (u64, u64) {
        (START_US, START_US + self.length_us)
    }

    /// Returns the approximate number of requests.
    fn count(&self) -> u128 {
        let whole = u128::from(self.length_us) * u128::from(self.rate.count);
        whole / u128::from(self.rate.period_us.max(1))
    }

    /// Passes every event to `emit`, in order. `emit` may swap an event for one that is no longer needed.
    pub(super) fn make(&self, words: &Vocabulary, emit: &mut dyn FnMut(&mut Event)) {
        let mut event = Event::default();
        let mut ask = |at_us: u64, subject: u64| {
            event.clear();
            event.at_us = START_US + at_us;
            for (number, name) in words.names().iter().enumerate() {
                match self.with.iter().find(|(known, _)| known == name) {
                    Some((_, value)) => event.add(number, value.as_bytes()),
                    None => event.add(number, value_of(name, subject).as_bytes()),
                }
            }
            emit(&mut event);
        };
        let mut random = Random::new(self.seed);
        match self.shape {
            Shape::Steady => self.make_steady(&mut ask),
            Shape::Bursty => self.make_bursty(&mut random, &mut ask),
            Shape::Boundary => self.make_boundary(&mut ask),
            Shape::Zipf => self.make_zipf(&mut random, &mut ask),
        }
    }

    fn make_steady(&self, ask: &mut impl FnMut(u64, u64)) {
        for number in 0.. {
            let at_us = self.time_of(number);
            if at_us >= self.length_us {
                return;
            }
            ask(at_us, number % self.subjects);
        }
    }

    fn make_bursty(&self, random: &mut Random, ask: &mut impl FnMut(u64, u64)) {
        let size = 2 * self.limit.capacity;
        let (every_us, gap_us) = (self.time_of(size), self.limit.window_us / 100 / size);
        let mut at_us = random.below(every_us);
        while at_us < self.length_us {
            let subject = random.below(self.subjects);
            let within = (0..size).map(|number| at_us + number * gap_us);
            within
                .take_while(|at_us| *at_us < self.length_us)
                .for_each(|at_us| ask(at_us, subject));
            let next_us = at_us + every_us / 2 + random.below(every_us.max(1));
            at_us = next_us.max(at_us + size * gap_us + 1);
        }
    }

    /// Every second window has no requests, so that the next burst finds a full quota.
    fn make_boundary(&self, ask: &mut impl FnMut(u64, u64)) {
        let Reference { capacity, window_us } = self.limit;
        let near_us = window_us / 20;
        let first_us = match window_us % DAY_US {
            0 => 0,
            _ => START_US.next_multiple_of(window_us) - START_US,
        };
        for boundary_us in (1..).step_by(2).map(|number| first_us + number * window_us) {
            if boundary_us + near_us > self.length_us {
                return;
            }
            for number in 0..2 * capacity {
                let into_us = u128::from(number) * u128::from(near_us) / u128::from(capacity);
                ask(boundary_us - near_us + into_us as u64, 0);
            }
        }
    }

    fn make_zipf(&self, random: &mut Random, ask: &mut impl FnMut(u64, u64)) {
        let mut total = 0;
        let below: Vec<u64> = (1..=self.subjects)
            .map(|rank| {
                total += HEAVIEST / rank;
                total
            })
            .collect();
        let mut at_us = 0;
        while at_us < self.length_us {
            let drawn = random.below(total);
            ask(at_us, below.partition_point(|end| *end <= drawn) as u64);
            at_us += random.below(2 * self.time_of(1)).max(1);
        }
    }

    /// Returns when the request of this number is due, if all come evenly.
    fn time_of(&self, number: u64) -> u64 {
        let us = u128::from(number) * u128::from(self.rate.period_us) / u128::from(self.rate.count);
        u64::try_from(us).unwrap_or(u64::MAX)
    }
}

/// Returns the value of an attribute of a subject.
pub(super) fn value_of(attribute: &str, subject: u64) -> String {
    match attribute {
        "ip" => {
            let [.., a, b, c] = (subject + 1).to_be_bytes();
            format!("10.{a}.{b}.{c}")
        }
        attribute => format!("{attribute}-{}", subject + 1),
    }
}

/// A Monday, the first of a month and of a year: every calendar window begins here.
const START_US: u64 = 1_704_067_200_000_000;
const DAY_US: u64 = 86_400_000_000;
/// A replay at a million requests a second takes an hour.
const EVENTS_MAX: u128 = 4_000_000_000;
/// The weight of the first Zipf subject. The last of 10,000,000 still weighs more than 400, so rounding is no matter.
const HEAVIEST: u64 = 1 << 32;

/// The most subjects that a pattern may have.
pub(crate) const SUBJECTS_MAX: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Reference = Reference { capacity: 100, window_us: 60_000_000 };

    /// Returns the instants since the start, and the subjects.
    fn made(shape: Shape, options: Options) -> Vec<(u64, Vec<u8>)> {
        let mut words = Vocabulary::default();
        words.learn("ip");
        let mut all = Vec::new();
        let pattern = Pattern::new(shape, LIMIT, options).unwrap();
        pattern.make(&words, &mut |event| {
            all.push((event.at_us - START_US, event.value(0).unwrap().to_vec()));
        });
        let length_us = pattern.span_us().1 - START_US;
        assert!(all.is_sorted_by_key(|(at_us, _)| *at_us));
        assert!(all.iter().all(|(at_us, _)| *at_us < length_us));
        all
    }

    #[test]
    fn every_shape_repeats_for_its_seed_and_makes_about_the_requested_number() {
        for &shape in Shape::value_variants() {
            let options = || Options { seed: 7, ..Options::default() };
            let all = made(shape, options());
            assert_eq!(all, made(shape, options()));
            let expected = Pattern::new(shape, LIMIT, options()).unwrap().count();
            let count = all.len() as u128;
            assert!(
                count * 10 > expected * 7 && count * 10 < expected * 13,
                "{shape:?}: {count} of {expected}"
            );
        }
    }

    #[test]
    fn the_boundary_shape_is_two_bursts_around_the_end_of_a_window() {
        let all = made(Shape::Boundary, Options::default());
        assert_eq!(all.len(), 600);
        let before =
            all.iter().filter(|(at_us, _)| (57_000_000..60_000_000).contains(at_us)).count();
        let after =
            all.iter().filter(|(at_us, _)| (60_000_000..63_000_000).contains(at_us)).count();
        assert_eq!((before, after), (100, 100));
    }

    #[test]
    fn the_second_zipf_subject_makes_half_as_many_requests_as_the_first() {
        let options = Options { length_us: Some(86_400_000_000), ..Options::default() };
        let all = made(Shape::Zipf, options);
        let count =
            |name: &str| all.iter().filter(|(_, subject)| subject == name.as_bytes()).count();
        let (first, second, tenth) = (count("10.0.0.1"), count("10.0.0.2"), count("10.0.0.10"));
        assert!(first.abs_diff(2 * second) * 20 < first, "{first} {second}");
        assert!(first.abs_diff(10 * tenth) * 10 < first, "{first} {tenth}");
    }

    #[test]
    fn a_pattern_with_too_many_requests_is_refused() {
        let options = Options {
            rate: Some(Rate { count: 1_000_000_000, period_us: 1_000 }),
            length_us: Some(DAY_US),
            ..Options::default()
        };
        assert!(Pattern::new(Shape::Steady, LIMIT, options).unwrap_err().contains("--rate"));
    }
}
