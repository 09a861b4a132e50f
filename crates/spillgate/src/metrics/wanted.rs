//! The extent of counting.

/// The counts that the application wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Counts, times and the subjects with the most use.
    All,
    /// Counts and times.
    Unwatched,
    /// Only [`Stats`](crate::Stats).
    Nothing,
}

/// Returns everything; nothing in a build without the feature `metrics`, which could not show it.
impl Default for Wanted {
    fn default() -> Wanted {
        if cfg!(feature = "metrics") { Wanted::All } else { Wanted::Nothing }
    }
}
