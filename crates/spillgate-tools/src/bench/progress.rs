//! A line of progress on the error output, if that is a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use super::report::time;
use super::tally::Tally;
use crate::output::grouped;

/// Writes the results of a run so far over the last line.
pub fn show(name: &str, at: Duration, length: Duration, tally: impl FnOnce() -> Tally) {
    if io::stderr().is_terminal() {
        write_over(&line(name, at, length, &tally()));
    }
}

/// Removes the line.
pub fn end() {
    if io::stderr().is_terminal() {
        write_over("");
    }
}

fn line(name: &str, at: Duration, length: Duration, tally: &Tally) -> String {
    let percent = at.as_millis() * 100 / length.as_millis().max(1);
    let [allowed, denied, errors] = [tally.allowed, tally.denied, tally.errors()].map(grouped);
    let p99 = time(tally.latency.value_at_quantile(0.99));
    format!("{name} {percent} %: {allowed} allowed, {denied} denied, {errors} errors, p99 {p99}")
}

fn write_over(line: &str) {
    // Progress that cannot be written is not worth an error.
    let _ = write!(io::stderr(), "\r{line}\x1b[K");
    let _ = io::stderr().flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_the_counts_so_far() {
        let tally = Tally { allowed: 1_200, denied: 34, ..Tally::new() };
        let drawn = line("library", Duration::from_secs(5), Duration::from_secs(10), &tally);
        assert_eq!(drawn, "library 50 %: 1,200 allowed, 34 denied, 0 errors, p99 0ns");
    }
}
