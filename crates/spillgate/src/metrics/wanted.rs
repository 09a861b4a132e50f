//! How much is counted.

/// What somebody wants of what can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Counts and times, and who uses most.
    All,
    /// Not whose decisions they are.
    Unwatched,
    /// Nothing but [`Stats`](crate::Stats).
    Nothing,
}

/// Everything; nothing in a build that cannot show it.
impl Default for Wanted {
    fn default() -> Wanted {
        if cfg!(feature = "metrics") { Wanted::All } else { Wanted::Nothing }
    }
}
