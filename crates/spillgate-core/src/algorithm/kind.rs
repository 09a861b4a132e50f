//! The algorithms by name.

use std::fmt;

/// The way in which a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    /// All algorithms, in the order of the documentation.
    pub const ALL: [Algorithm; 5] = [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::Concurrency,
    ];

    /// Returns the name in a policy: `token-bucket`.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::TokenBucket => "token-bucket",
            Algorithm::FixedWindow => "fixed-window",
            Algorithm::SlidingLog => "sliding-log",
            Algorithm::SlidingWindow => "sliding-window",
            Algorithm::Concurrency => "concurrency",
        }
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

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
