//! Writes log lines to the error output. Lines wait in a bounded queue, and one thread writes them. When the output
//! takes no bytes, lines are dropped and counted, and no thread that answers requests waits.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;
use std::{panic, thread};

use serde::Serialize;
use tracing_subscriber::fmt::format;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::config::Format;
use crate::metrics::{self, Kind};

/// The queue of this process, once [`start`] has run.
static SINK: OnceLock<Sink> = OnceLock::new();

/// The lines that wait for the error output.
#[derive(Debug)]
struct Sink {
    lines: Sender<Vec<u8>>,
    /// Bytes of the lines that are not written yet.
    waiting: AtomicUsize,
    /// Lines that were dropped since the start.
    dropped: AtomicU64,
    format: Format,
}

/// Starts the writer of a log in this format. From here on [`line`] returns at once, and panics are lines of the log.
pub(crate) fn start(format: Format) -> io::Result<()> {
    let (sink, lines) = Sink::new(format);
    if SINK.set(sink).is_err() {
        return Ok(());
    }
    let sink = SINK.get().expect("it was set a line above");
    let writer = thread::Builder::new().name("log".to_owned());
    writer.spawn(|| sink.write_all_of(lines, &mut io::stderr()))?;
    // The standard hook writes to the error output in the thread that panicked.
    panic::set_hook(Box::new(|panic| {
        let trace = Backtrace::capture();
        match trace.status() {
            BacktraceStatus::Captured => complain(&format!("{panic}\n{trace}")),
            _ => complain(panic),
        }
    }));
    Ok(())
}

/// Writes a message about the program itself to the error output. In a JSON log its level is `ERROR`.
pub fn complain(message: &impl fmt::Display) {
    announce("ERROR", &message.to_string());
}

/// Writes a line for operators and scripts, in the log's format and at every level of the log.
pub(crate) fn announce(level: &str, message: &str) {
    match SINK.get().map_or(Format::Text, |sink| sink.format) {
        Format::Text => line(&format!("spillgate: {message}\n")),
        Format::Json => line(&object(level, message, None)),
    }
}

/// Writes a line, which ends in a line feed. Before [`start`] the calling thread writes it.
pub(crate) fn line(text: &str) {
    match SINK.get() {
        Some(sink) => sink.push(text.as_bytes()),
        // There is no place to report that the error output fails.
        None => drop(io::stderr().write_all(text.as_bytes())),
    }
}

/// Waits until all lines are written, and no longer than [`LAST_LINES`].
pub(crate) fn flush() {
    if let Some(sink) = SINK.get() {
        sink.flush(LAST_LINES);
    }
}

/// Returns the count of dropped lines in the format of the limiter's metrics.
pub(crate) fn metrics_text() -> String {
    let dropped = SINK.get().map_or(0, |sink| sink.dropped.load(Ordering::Relaxed));
    let (mut text, name) = (String::new(), "spillgate_log_lines_dropped_total");
    metrics::family(&mut text, Kind::Counter, name, LINES_DROPPED);
    metrics::sample(&mut text, name, &[], dropped);
    text
}

/// Flushes the log when it is dropped: at the end of a command, and when its thread panics.
#[derive(Debug)]
pub struct FlushAtEnd;

impl Drop for FlushAtEnd {
    fn drop(&mut self) {
        flush();
    }
}

/// The output of `tracing`, which writes each event by one call of `write`.
pub struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match SINK.get() {
            Some(sink) => sink.push(bytes),
            None => io::stderr().write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink {
    fn new(format: Format) -> (Sink, Receiver<Vec<u8>>) {
        let (lines, received) = mpsc::channel();
        let (waiting, dropped) = (AtomicUsize::new(0), AtomicU64::new(0));
        (Sink { lines, waiting, dropped, format }, received)
    }

    /// Adds a line, or drops it if there is no room.
    fn push(&self, line: &[u8]) {
        let waiting = self.waiting.fetch_add(line.len(), Ordering::Relaxed);
        // An empty queue takes a line of any length: the line is in memory anyway.
        let has_room = waiting == 0 || waiting + line.len() <= WAITING_MAX;
        if !has_room || self.lines.send(line.to_vec()).is_err() {
            self.waiting.fetch_sub(line.len(), Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self, bound: Duration) {
        // The wait is bounded, so that a stalled reader does not keep the process from ending.
        let mut left = bound;
        while self.waiting.load(Ordering::Relaxed) > 0 && !left.is_zero() {
            thread::sleep(FLUSH_PAUSE);
            left = left.saturating_sub(FLUSH_PAUSE);
        }
    }

    /// Writes lines as they arrive. After one that was written it reports those that were dropped before.
    fn write_all_of(&self, lines: Receiver<Vec<u8>>, output: &mut impl Write) {
        let mut reported = 0;
        for line in lines {
            let written = write_all(output, &line);
            let refused = u64::from(written.is_err());
            let dropped = self.dropped.fetch_add(refused, Ordering::Relaxed) + refused;
            if written.is_ok()
                && dropped > reported
                && write_all(output, note(dropped - reported, self.format).as_bytes()).is_ok()
            {
                reported = dropped;
            }
            self.waiting.fetch_sub(line.len(), Ordering::Relaxed);
        }
    }
}

/// Writes all bytes, and waits for the output without a bound.
fn write_all(output: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match output.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Another process that shares the pipe has made it non-blocking.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                thread::sleep(FULL_PIPE_PAUSE)
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the line about dropped lines, in the log's format. It is written at every level of the log.
fn note(dropped: u64, format: Format) -> String {
    let message = format!("{dropped} log lines were dropped: the error output took no bytes");
    match format {
        Format::Text => format!("spillgate: warning: {message}\n"),
        Format::Json => object("WARN", &message, Some(dropped)),
    }
}

/// A line of a JSON log. Its fields have the order of the events that `tracing` writes.
#[derive(Serialize)]
struct Object<'a> {
    timestamp: &'a str,
    level: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    dropped: Option<u64>,
}

/// Returns a line of a JSON log, with the number of dropped lines if it is about them.
fn object(level: &str, message: &str, dropped: Option<u64>) -> String {
    let mut time = String::new();
    SystemTime.format_time(&mut format::Writer::new(&mut time)).expect("a string takes all text");
    let object = Object { timestamp: &time, level, message, dropped };
    serde_json::to_string(&object).expect("text and numbers are JSON") + "\n"
}

const LINES_DROPPED: &str = "Log lines that were dropped because the error output took no bytes.";

/// The most bytes that wait: some ten thousand lines, more than a healthy process logs at once.
const WAITING_MAX: usize = 1024 * 1024;

/// The longest wait for the last lines when the process ends. A working reader takes a pipe's 64 KiB in milliseconds.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The pause between two looks at the lines that wait when the process ends.
const FLUSH_PAUSE: Duration = Duration::from_millis(1);

/// The pause between two writes to a full pipe that does not block.
const FULL_PIPE_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc::{SyncSender, sync_channel};

    use super::*;

    /// An output that takes a write only when the test allows it.
    struct Gate {
        allowed: Receiver<()>,
        written: SyncSender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.allowed.recv().map_err(io::Error::other)?;
            self.written.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn start() -> (&'static Sink, SyncSender<()>, Receiver<Vec<u8>>) {
        let (sink, lines) = Sink::new(Format::Text);
        let sink: &'static Sink = Box::leak(Box::new(sink));
        let ((allow, allowed), (written, reads)) = (sync_channel(16), sync_channel(16));
        thread::spawn(move || sink.write_all_of(lines, &mut Gate { allowed, written }));
        (sink, allow, reads)
    }

    #[test]
    fn a_stalled_output_drops_lines_and_reports_them_once_when_it_takes_bytes_again() {
        let (sink, allow, reads) = start();
        // A line of any length finds room while none waits.
        let long = vec![b'x'; WAITING_MAX];
        sink.push(&long);
        for _ in 0..7 {
            sink.push(b"dropped\n");
        }
        assert_eq!(sink.dropped.load(Ordering::Relaxed), 7);
        (0..2).for_each(|_| allow.send(()).unwrap());
        assert_eq!(reads.recv().unwrap(), long);
        let note = String::from_utf8(reads.recv().unwrap()).unwrap();
        assert!(note.starts_with("spillgate: warning: 7 log lines were dropped"), "{note}");
        // Until then the long line takes its room.
        sink.flush(Duration::from_secs(60));
        sink.push(b"last\n");
        allow.send(()).unwrap();
        assert_eq!(reads.recv().unwrap(), b"last\n");
    }

    #[test]
    fn flush_waits_for_all_lines_and_gives_up_on_a_stalled_output() {
        let (sink, allow, reads) = start();
        sink.push(b"stalled\n");
        sink.flush(Duration::from_millis(1));
        assert!(reads.try_recv().is_err());
        allow.send(()).unwrap();
        sink.flush(Duration::from_secs(60));
        assert_eq!(reads.try_recv().unwrap(), b"stalled\n");
    }

    #[test]
    fn lines_that_an_output_refuses_are_counted() {
        let (sink, allow, _reads) = start();
        drop(allow);
        sink.push(b"refused\n");
        sink.flush(Duration::from_secs(60));
        assert_eq!(sink.dropped.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_note_about_dropped_lines_is_an_object_in_a_json_log() {
        let line = note(3, Format::Json);
        let object: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&object["level"], &object["dropped"]), (&"WARN".into(), &3.into()));
        assert!(object["timestamp"].as_str().unwrap().ends_with('Z'), "{line}");
    }

    /// A panic hook belongs to its process, so this test runs itself in another process, and panics there.
    #[test]
    fn a_panic_is_one_line_of_a_json_log_with_the_fields_in_the_order_of_events() {
        const PANICS: &str = "SPILLGATE_TEST_PANICS";
        if std::env::var_os(PANICS).is_some() {
            let _flush = FlushAtEnd;
            super::start(Format::Json).unwrap();
            panic!("first\nsecond");
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["a_panic_is_one_line_of_a_json_log", "--nocapture", "--test-threads", "1"]);
        let output = command.env(PANICS, "1").output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        let line = log.lines().find(|line| line.contains("first")).unwrap();
        let (time, rest) = line.split_once(',').unwrap();
        assert!(time.starts_with("{\"timestamp\":\""), "{log}");
        assert!(rest.starts_with("\"level\":\"ERROR\",\"message\":\""), "{log}");
        let object: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(object["message"].as_str().unwrap().contains("first\nsecond"), "{log}");
    }
}
