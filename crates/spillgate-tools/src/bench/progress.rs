//! A progress bar on the error output, if that is a terminal.

use std::io::{self, IsTerminal, Write};

use super::report::time;
use super::run::Slice;
use crate::output::grouped;

/// A bar that moves on a terminal; prints nothing elsewhere.
pub(super) struct Progress {
    is_watched: bool,
    length_us: u64,
    /// The length of the runs before this one.
    before_us: u64,
}

impl Progress {
    pub(super) fn new(length_us: u64) -> Progress {
        Progress { is_watched: io::stderr().is_terminal(), length_us, before_us: 0 }
    }

    /// Redraws the bar with the figures of the last slice.
    pub(super) fn show(&self, name: &str, slice: &Slice) {
        if self.is_watched {
            self.write(&bar(name, self.before_us + slice.until_us, self.length_us, slice));
        }
    }

    /// Begins the next run.
    pub(super) fn next(&mut self, length_us: u64) {
        self.before_us += length_us;
    }

    /// Removes the bar.
    pub(super) fn end(&self) {
        if self.is_watched {
            self.write("");
        }
    }

    fn write(&self, words: &str) {
        // A bar that cannot be written is not worth an error.
        let _ = write!(io::stderr(), "\r{words}\x1b[K");
        let _ = io::stderr().flush();
    }
}

fn bar(name: &str, at_us: u64, length_us: u64, slice: &Slice) -> String {
    let per_mille = (u128::from(at_us) * 1_000 / u128::from(length_us.max(1))).min(1_000) as u64;
    let full = (per_mille * BAR / 1_000) as usize;
    let (full, empty) = ("█".repeat(full), "░".repeat(BAR as usize - full));
    let (percent, rate) = (per_mille / 10, grouped(slice.per_second(slice.allowed + slice.denied)));
    let failing = match slice.errors {
        0 => String::new(),
        errors => format!("  {} errors", grouped(errors)),
    };
    format!("{full}{empty} {percent:>3} %  {name} {rate}/s  p99 {}{failing}", time(slice.p99_ns))
}

const BAR: u64 = 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_the_progress_and_the_last_slice() {
        let slice = Slice {
            from_us: 400_000,
            until_us: 500_000,
            allowed: 100,
            denied: 23,
            errors: 0,
            p50_ns: 5,
            p99_ns: 1_234_567,
        };
        let drawn = bar("library", 500_000, 1_000_000, &slice);
        assert_eq!(
            drawn,
            format!("{}{}  50 %  library 1,230/s  p99 1.23 ms", "█".repeat(15), "░".repeat(15))
        );
        assert!(bar("x", 9, 7, &Slice { errors: 2, ..slice }).ends_with("  2 errors"));
    }
}
