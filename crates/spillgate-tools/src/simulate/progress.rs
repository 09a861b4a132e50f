//! A progress bar on the error output, if that is a terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::plot::grouped;

/// A bar that moves on a terminal; prints nothing elsewhere.
pub(super) struct Progress {
    bytes_read: Arc<AtomicU64>,
    total: Total,
    shown: Option<u64>,
    is_watched: bool,
}

/// The size of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Total {
    Bytes(u64),
    Events(u64),
    /// The length of a pipe is not known.
    Unknown,
}

impl Progress {
    pub(super) fn new(bytes_read: Arc<AtomicU64>, total: Total) -> Progress {
        Progress { bytes_read, total, shown: None, is_watched: io::stderr().is_terminal() }
    }

    /// Redraws the bar after this many events, if it changed.
    pub(super) fn show(&mut self, events: u64) {
        if !self.is_watched {
            return;
        }
        let step = match self.total {
            Total::Bytes(total) => per_mille(self.bytes_read.load(Ordering::Relaxed), total),
            Total::Events(total) => per_mille(events, total),
            Total::Unknown => events >> 16,
        };
        if self.shown != Some(step) {
            self.shown = Some(step);
            self.write(&bar(self.total, step, events));
        }
    }

    /// Removes the bar.
    pub(super) fn end(self) {
        if self.shown.is_some() {
            self.write("");
        }
    }

    fn write(&self, words: &str) {
        // A bar that cannot be written is not worth an error.
        let _ = write!(io::stderr(), "\r{words}\x1b[K");
        let _ = io::stderr().flush();
    }
}

fn bar(total: Total, step: u64, events: u64) -> String {
    let events = grouped(events);
    if total == Total::Unknown {
        return format!("{events} requests");
    }
    let full = (step * BAR / 1_000) as usize;
    let (full, empty) = ("█".repeat(full), "░".repeat(BAR as usize - full));
    format!("{full}{empty} {:>3} %  {events} requests", step / 10)
}

fn per_mille(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 1_000 / u128::from(whole.max(1))).min(1_000) as u64
}

const BAR: u64 = 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_the_progress() {
        let words = bar(Total::Bytes(1_000), per_mille(500, 1_000), 1_234);
        assert_eq!(words, format!("{}{}  50 %  1,234 requests", "█".repeat(15), "░".repeat(15)));
        assert!(bar(Total::Events(7), per_mille(9, 7), 9).contains("100 %"));
        assert_eq!(bar(Total::Unknown, 3, 9), "9 requests");
    }
}
