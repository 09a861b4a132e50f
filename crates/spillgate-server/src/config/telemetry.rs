//! `[telemetry]`: what the log holds, and which requests are traced.

use tracing_subscriber::filter::LevelFilter;

/// Which events the log holds, and how it writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) level: LevelFilter,
    pub(crate) format: Format,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// A line each, for people.
    #[default]
    Text,
    /// An object each, for programs.
    Json,
}

impl Default for Log {
    fn default() -> Log {
        Log { level: LevelFilter::INFO, format: Format::Text }
    }
}

/// Where traces go, and which requests are traced if their caller does not decide that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Otlp {
    /// A collector that takes OTLP over gRPC; none, and nothing is traced.
    pub(crate) collector: Option<String>,
    pub(crate) sample: Sample,
}

/// How many of a million requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample(pub(crate) u32);

impl Default for Otlp {
    fn default() -> Otlp {
        Otlp { collector: None, sample: Sample(10_000) }
    }
}

pub(super) const LEVELS: [(&str, LevelFilter); 5] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
];
pub(super) const FORMATS: [(&str, Format); 2] = [("text", Format::Text), ("json", Format::Json)];
