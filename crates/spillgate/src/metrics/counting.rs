//! The extent of counting.

/// The counts that the application wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// Counts, times and the subjects with the most use.
    All,
    /// Counts and times.
    WithoutTop,
    /// Only [`Stats`](crate::Stats).
    Nothing,
}

/// Returns everything; nothing in a build without the feature `metrics`, which could not show it.
impl Default for Counting {
    fn default() -> Counting {
        if cfg!(feature = "metrics") { Counting::All } else { Counting::Nothing }
    }
}
