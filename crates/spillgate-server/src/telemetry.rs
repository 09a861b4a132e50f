//! The log: what changes, on the error output, as text or as JSON. Whoever reads it adds the time to text,
//! as journald and containers do.

use std::fmt;
use std::io;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, layer};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// What of it is written, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) level: LevelFilter,
    pub(crate) format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// A line each, for people.
    Text,
    /// An object each, for programs.
    Json,
}

impl Default for Log {
    fn default() -> Log {
        Log { level: LevelFilter::INFO, format: Format::Text }
    }
}

impl Log {
    /// From here on, for the whole process. What other crates have to say stays theirs: it may hold what
    /// callers sent.
    pub(crate) fn begin(self) {
        let ours = Targets::new().with_target("spillgate", self.level);
        let text = || layer().with_writer(io::stderr).event_format(Line).with_filter(ours.clone());
        let json = || {
            let json = layer().json().flatten_event(true).with_target(false);
            json.with_writer(io::stderr).with_filter(ours.clone())
        };
        let registry = tracing_subscriber::registry();
        // Whoever was there first stays: in tests many begin.
        let _ = match self.format {
            Format::Text => registry.with(text()).try_init(),
            Format::Json => registry.with(json()).try_init(),
        };
    }
}

/// As the commands complain: `spillgate: warning: breaker opened server=…`.
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = match *event.metadata().level() {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        };
        write!(writer, "spillgate: {level}")?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

pub(crate) const LEVELS: [(&str, LevelFilter); 5] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
];
pub(crate) const FORMATS: [(&str, Format); 2] = [("text", Format::Text), ("json", Format::Json)];
