//! The five algorithms by name.

use std::fmt;

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// In any interval L: at most burst + floor(L × rate). The default.
    TokenBucket,
    /// At most count in each window aligned to the epoch or to the calendar.
    FixedWindow,
    /// At most count in every window of one period, exactly.
    SlidingLog,
    /// The count of this window and a share of the last one's; a few bytes per subject.
    SlidingWindow,
    /// At most count slots held at once.
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

    /// The name as written in a policy: `token-bucket`.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::TokenBucket => "token-bucket",
            Algorithm::FixedWindow => "fixed-window",
            Algorithm::SlidingLog => "sliding-log",
            Algorithm::SlidingWindow => "sliding-window",
            Algorithm::Concurrency => "concurrency",
        }
    }

    /// The algorithm of that name.
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
