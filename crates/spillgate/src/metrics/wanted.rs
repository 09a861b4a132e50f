//! How much is counted.

/// What somebody wants of what can be counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Counts and times, and who uses most.
    #[default]
    All,
    /// Not whose decisions they are.
    Unwatched,
    /// Nothing but [`Stats`](crate::Stats).
    Nothing,
}
