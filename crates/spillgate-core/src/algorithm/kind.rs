//! The algorithms by name.

use std::fmt;

use super::{Profile, concurrency, fixed_window, sliding_log, sliding_window, token_bucket};

/// The way in which a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Algorithm {
    /// In any interval L: at most burst + floor(L × rate). The default.
    TokenBucket,
    /// At most count in each window. Windows are aligned to the epoch or to the calendar.
    FixedWindow,
    /// At most count in every interval of one period, exactly.
    SlidingLog,
    /// The count of this window and a part of the last one's; takes a few bytes per subject.
    SlidingWindow,
    /// At most count permits held at once.
    Concurrency,
}

impl Algorithm {
    /// All algorithms. Their order is stored in names of counters and records of reservations, and sent to scripts: a new
    /// one goes to the end, and there are at most 8.
    pub const ALL: [Algorithm; 5] = [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::Concurrency,
    ];

    /// Returns the name in a policy: `token-bucket`.
    pub fn name(self) -> &'static str {
        self.profile().name
    }

    /// Returns its number in programs for Redis: its place among the includes of `check.lua`, counted from 1.
    #[doc(hidden)]
    pub fn number(self) -> u8 {
        self as u8 + 1
    }

    /// Returns what sets it apart.
    #[doc(hidden)]
    pub fn profile(self) -> &'static Profile {
        match self {
            Algorithm::TokenBucket => &token_bucket::PROFILE,
            Algorithm::FixedWindow => &fixed_window::PROFILE,
            Algorithm::SlidingLog => &sliding_log::PROFILE,
            Algorithm::SlidingWindow => &sliding_window::PROFILE,
            Algorithm::Concurrency => &concurrency::PROFILE,
        }
    }

    /// Returns whether it counts permits, which are held and released, instead of requests over time.
    pub fn counts_permits(self) -> bool {
        self.profile().counts_permits
    }

    /// Returns the algorithm with a name.
    ///
    /// ```
    /// # use spillgate_core::Algorithm;
    /// assert_eq!(Algorithm::named("sliding-log"), Some(Algorithm::SlidingLog));
    /// assert_eq!(Algorithm::named("leaky"), None);
    /// ```
    pub fn named(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|a| a.name() == name)
    }
}

/// Lists the names of the algorithms that have a property: `a, b or c`.
pub fn names_of(has: impl Fn(&Profile) -> bool) -> String {
    let profiles = Algorithm::ALL.map(Algorithm::profile).into_iter();
    let names: Vec<&str> = profiles.filter(|it| has(it)).map(|it| it.name).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
