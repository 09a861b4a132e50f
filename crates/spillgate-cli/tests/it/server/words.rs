//! What a server says, line by line, never waited for without a bound.

use std::io::{BufRead, BufReader};
use std::process::ChildStderr;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The lines of one process, in order.
pub(super) struct Words {
    lines: Mutex<Receiver<String>>,
}

impl Words {
    /// Reads them as they come, so that no server waits for a test to listen.
    pub(super) fn of(said: ChildStderr) -> Words {
        let (told, lines) = channel();
        thread::spawn(move || {
            let mut said = BufReader::new(said);
            loop {
                let mut line = String::new();
                let is_over = said.read_line(&mut line).map_or(true, |length| length == 0);
                if is_over || told.send(line).is_err() {
                    return;
                }
            }
        });
        Words { lines: Mutex::new(lines) }
    }

    /// Its next lines up to the one that `is_last`, which it ends with; otherwise what it said until it
    /// ended, or until nobody waits any longer.
    #[expect(
        clippy::disallowed_methods,
        reason = "a bound on waiting, not a time of the limiter's"
    )]
    pub(super) fn until(&self, is_last: impl Fn(&str) -> bool) -> Result<String, String> {
        let give_up = Instant::now() + PATIENCE;
        let lines = self.lines.lock().unwrap();
        let mut words = String::new();
        loop {
            match lines.recv_timeout(give_up.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    words.push_str(&line);
                    if is_last(&line) {
                        return Ok(words);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(words),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("{words}(and nothing more for {PATIENCE:?})"));
                }
            }
        }
    }

    /// All that is left, of a process that has ended.
    pub(super) fn rest(&self) -> String {
        self.until(|_| false).unwrap_or_else(|rest| rest)
    }
}

/// Far longer than anything takes, short enough to see which test hangs.
const PATIENCE: Duration = Duration::from_secs(30);
