//! Reads the log of a server, line by line, with a bound on every wait.

use std::io::{BufRead, BufReader};
use std::process::ChildStderr;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The lines of a process's log, in order.
pub(super) struct LogLines {
    lines: Mutex<Receiver<String>>,
}

impl LogLines {
    /// Reads the lines as they come, so that no server waits for a test to read.
    pub(super) fn of(log: ChildStderr) -> LogLines {
        let (sender, lines) = channel();
        thread::spawn(move || {
            let mut log = BufReader::new(log);
            loop {
                let mut line = String::new();
                let is_over = log.read_line(&mut line).map_or(true, |length| length == 0);
                if is_over || sender.send(line).is_err() {
                    return;
                }
            }
        });
        LogLines { lines: Mutex::new(lines) }
    }

    /// Returns the next lines up to and including the one that `is_last`. The error has all lines, if the log ends or
    /// the wait is over before.
    #[expect(
        clippy::disallowed_methods,
        reason = "a bound on waiting, not a time of the limiter's"
    )]
    pub(super) fn until(&self, is_last: impl Fn(&str) -> bool) -> Result<String, String> {
        let give_up = Instant::now() + PATIENCE;
        let lines = self.lines.lock().unwrap();
        let mut text = String::new();
        loop {
            match lines.recv_timeout(give_up.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    text.push_str(&line);
                    if is_last(&line) {
                        return Ok(text);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(text),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("{text}(and nothing more for {PATIENCE:?})"));
                }
            }
        }
    }

    /// Returns the remaining lines of a process that has ended.
    pub(super) fn rest(&self) -> String {
        self.until(|_| false).unwrap_or_else(|rest| rest)
    }
}

/// Far longer than anything takes, and short enough to see which test hangs.
const PATIENCE: Duration = Duration::from_secs(30);
