//! The limits of the campaign, and the bound of each algorithm: the most that any interval of a history of
//! admissions may hold.

use std::collections::BTreeMap;

use spillgate::{Algorithm, Limit};

use crate::support::limits;

/// One limit of the campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) algorithm: Algorithm,
    pub(super) lasts: Lasts,
}

/// How soon used quota comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lasts {
    /// Not while the campaign runs.
    Ages,
    Moment,
}

/// One admission of a process: when the call began and ended, by the clock that all processes share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admission {
    pub(super) limit: usize,
    pub(super) began_us: u64,
    pub(super) ended_us: u64,
    /// By this process's local share, because the store was unavailable.
    pub(super) local: bool,
}

/// The admissions of all processes, in the order in which calls ended.
pub(super) struct History {
    admissions: Vec<Admission>,
    /// The span in which all processes were checking.
    checking_us: (u64, u64),
}

impl Limits {
    pub(super) fn all() -> Vec<Limits> {
        let of = |lasts| Algorithm::ALL.map(|algorithm| Limits { algorithm, lasts });
        [of(Lasts::Ages), of(Lasts::Moment)].concat()
    }

    fn number(&self) -> usize {
        Limits::all().iter().position(|other| other == self).expect("one of all")
    }

    pub(super) fn name(&self) -> String {
        let lasts = if self.lasts == Lasts::Ages { "ages" } else { "moment" };
        format!("{}\t{lasts}", self.algorithm)
    }

    /// Returns the quota that comes back within the campaign, in full.
    pub(super) fn allowed(&self) -> u64 {
        if self.lasts == Lasts::Ages { AGES_COUNT } else { MOMENT_COUNT }
    }

    pub(super) fn limit(&self) -> Limit {
        let (count, period) = match self.lasts {
            Lasts::Ages => (AGES_COUNT, format!("{}ms", AGES_US / 1_000)),
            Lasts::Moment => (MOMENT_COUNT, format!("{}ms", MOMENT_US / 1_000)),
        };
        limits::spec(self.algorithm, count, &period).build().expect("a limit of ours")
    }

    fn period_us(&self) -> u64 {
        if self.lasts == Lasts::Ages { AGES_US } else { MOMENT_US }
    }

    /// Returns the most that an interval may hold without a fault.
    pub(super) fn most_within(&self, interval_us: u64) -> u64 {
        if self.lasts == Lasts::Ages {
            return AGES_COUNT;
        }
        let (count, period_us) = (MOMENT_COUNT, MOMENT_US);
        match self.algorithm {
            Algorithm::TokenBucket => count + interval_us * count / period_us,
            // As many windows as an interval can touch.
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                count * (interval_us.div_ceil(period_us) + 1)
            }
            // Half-open, so that an interval of exactly one period holds two.
            _ => count * (interval_us / period_us + 1),
        }
    }

    /// Returns two of the limit's longest waits, one for used quota and one for forced charges. Adds the time
    /// until a recovered server is found.
    pub(super) fn locked_out_most_us(&self) -> Option<u64> {
        let waits = if self.algorithm == Algorithm::SlidingWindow { 2 } else { 1 };
        (self.lasts == Lasts::Moment).then_some(2 * waits * MOMENT_US + FOUND_AGAIN_US)
    }
}

impl History {
    pub(super) fn new(mut admissions: Vec<Admission>, checking_us: (u64, u64)) -> History {
        admissions.sort_unstable_by_key(|admission| admission.ended_us);
        History { admissions, checking_us }
    }

    fn of(&self, limits: &Limits) -> impl Iterator<Item = &Admission> + Clone {
        let number = limits.number();
        self.admissions.iter().filter(move |admission| admission.limit == number)
    }

    pub(super) fn admitted(&self, limits: &Limits) -> u64 {
        self.of(limits).count() as u64
    }

    pub(super) fn admitted_locally(&self, limits: &Limits) -> u64 {
        self.of(limits).filter(|admission| admission.local).count() as u64
    }

    /// Returns by how much the worst interval exceeds the bound. Counts only calls that lie wholly within it,
    /// so that the excess is certain.
    pub(super) fn over(&self, limits: &Limits) -> u64 {
        let of: Vec<&Admission> = self.of(limits).collect();
        let mut most = 0;
        for start in of.iter().map(|admission| admission.began_us) {
            let mut held = 0;
            for admission in of.iter().filter(|admission| admission.began_us >= start) {
                held += 1;
                let bound = limits.most_within(admission.ended_us - start);
                most = most.max(u64::saturating_sub(held, bound));
            }
        }
        most
    }

    /// Returns in how many periods of a limit some calls were decided locally and others by the store: before
    /// all processes had noticed the outage, and until all had found the store again.
    ///
    /// Windows begin by the wall clock, which is `wall_ahead_us` ahead of the clock of the history.
    pub(super) fn mixed_periods(&self, limits: &Limits, wall_ahead_us: u64) -> u64 {
        let mut periods: BTreeMap<u64, (bool, bool)> = BTreeMap::new();
        for admission in self.of(limits) {
            let period = (admission.ended_us + wall_ahead_us) / limits.period_us();
            let (local, served) = periods.entry(period).or_default();
            *local |= admission.local;
            *served |= !admission.local;
        }
        periods.values().filter(|(local, served)| *local && *served).count() as u64
    }

    /// Returns the longest time after `from_us` in which all processes checked and none was admitted. Returns
    /// `None` for limits that do not come back.
    pub(super) fn locked_out_us(&self, limits: &Limits, from_us: u64) -> Option<u64> {
        limits.locked_out_most_us()?;
        let mut last_us = from_us;
        let mut longest_us = 0;
        let ends = self.of(limits).map(|admission| admission.ended_us);
        for at_us in ends.filter(|at_us| *at_us > from_us).chain([self.checking_us.1]) {
            longest_us = longest_us.max(at_us.saturating_sub(last_us));
            last_us = last_us.max(at_us);
        }
        Some(longest_us)
    }

    /// Returns whether the allowed quota was used: all of it, and of a rate 99 %.
    pub(super) fn uses(&self, limits: &Limits) -> bool {
        let admitted = self.admitted(limits);
        match (limits.lasts, limits.algorithm) {
            (Lasts::Ages, _) => admitted == AGES_COUNT,
            (Lasts::Moment, Algorithm::TokenBucket) => {
                let could = (self.checking_us.1 - self.checking_us.0) * MOMENT_COUNT / MOMENT_US;
                admitted * 100 >= could * 99
            }
            _ => admitted > MOMENT_COUNT,
        }
    }
}

const AGES_COUNT: u64 = 600;
const AGES_US: u64 = 366 * 86_400 * 1_000_000;
const MOMENT_COUNT: u64 = 24;
const MOMENT_US: u64 = 500_000;
/// Attempts to connect are up to one and a half seconds apart, and one fails.
const FOUND_AGAIN_US: u64 = 3_000_000;

#[test]
fn finds_an_interval_that_holds_too_much() {
    let bucket = Limits { algorithm: Algorithm::TokenBucket, lasts: Lasts::Moment };
    let log = Limits { algorithm: Algorithm::SlidingLog, lasts: Lasts::Moment };
    let at = |limits: Limits, began_us: u64| Admission {
        limit: limits.number(),
        began_us,
        ended_us: began_us + 1_000,
        local: false,
    };
    let history = |limits: Limits, all: &[u64]| {
        History::new(all.iter().map(|began_us| at(limits, *began_us)).collect(), (0, 3_000_000))
    };
    let burst: Vec<u64> = (0..MOMENT_COUNT).map(|call| call * 10).collect();
    assert_eq!(history(bucket, &burst).over(&bucket), 0);
    let more = [&burst[..], &[250, 251]].concat();
    assert_eq!(history(bucket, &more).over(&bucket), 2);
    // One period later there is room again.
    let later = [&burst[..], &[500_250, 500_251]].concat();
    assert_eq!(history(bucket, &later).over(&bucket), 0);
    assert_eq!(history(log, &later).over(&log), 0);
    let sooner = [&burst[..], &[400_000]].concat();
    assert_eq!((history(log, &sooner).over(&log), history(bucket, &sooner).over(&bucket)), (1, 0));
}

#[test]
fn counts_periods_with_decisions_of_the_store_and_local_ones() {
    let window = Limits { algorithm: Algorithm::FixedWindow, lasts: Lasts::Moment };
    let at = |(ended_us, local)| Admission {
        limit: window.number(),
        began_us: ended_us,
        ended_us,
        local,
    };
    let all = [(0, false), (499_999, true), (500_000, true), (1_000_000, true), (1_200_000, false)];
    let history = History::new(all.map(at).into(), (0, 2_000_000));
    assert_eq!(history.mixed_periods(&window, 0), 2);
    assert_eq!(
        history.mixed_periods(&window, 1),
        1,
        "the second window has begun only for the first admission"
    );
    assert_eq!(history.mixed_periods(&Limits { lasts: Lasts::Ages, ..window }, 0), 0);
}

#[test]
fn finds_the_longest_time_without_admissions() {
    let bucket = Limits { algorithm: Algorithm::TokenBucket, lasts: Lasts::Moment };
    let at =
        |began_us| Admission { limit: bucket.number(), began_us, ended_us: began_us, local: false };
    let history = History::new([10, 400, 450].map(at).into(), (0, 1_000));
    assert_eq!(history.locked_out_us(&bucket, 0), Some(550));
    assert_eq!(history.locked_out_us(&bucket, 500), Some(500));
    let ages = Limits { lasts: Lasts::Ages, ..bucket };
    assert_eq!(history.locked_out_us(&ages, 0), None);
}
