//! `[telemetry]`: level and format of the log, and the traces that a collector gets.

use std::path::Path;

use tracing_subscriber::filter::LevelFilter;

use super::{Settings, environment, read, settings_in};

/// Which events the log holds, and how it writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) level: LevelFilter,
    pub(crate) format: Format,
    /// Whether it has the values of subjects in changes by operators.
    pub(crate) audit_subjects: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// One line of text for each event, for people.
    #[default]
    Text,
    /// One JSON object for each event, for programs.
    Json,
}

impl Default for Log {
    fn default() -> Log {
        Log { level: LevelFilter::INFO, format: Format::Text, audit_subjects: false }
    }
}

/// Returns the format of the log by file and environment, before all settings are read: a start that fails is reported
/// in this format. A file that cannot be read, or is no TOML outside its rules, names none.
pub(crate) fn log_format(file: Option<&Path>) -> Format {
    let of_file = |path: &Path| settings_in(&path.display().to_string(), &read(path).ok()?).ok();
    let mut given = file.and_then(of_file).unwrap_or_default();
    given.extend(environment::settings_in(std::env::vars_os()).0);
    given.retain(|given| given.name == "telemetry.log.format");
    let mut settings = Settings::default();
    // `Config::load` reports a wrong value, which leaves the one before it in force.
    settings.apply(&given);
    settings.log.format
}

/// The collector of traces, and how many of them it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Otlp {
    /// The address of a collector that takes OTLP over gRPC. Without one nothing is traced.
    pub(crate) collector: Option<String>,
    /// The share of requests that are traced, of those whose caller does not decide that.
    pub(crate) sample: Sample,
}

/// The share of requests that are traced, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample(pub(crate) u32);

impl Default for Otlp {
    fn default() -> Otlp {
        Otlp { collector: None, sample: Sample(10_000) }
    }
}

pub const LEVELS: [(&str, LevelFilter); 5] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
];
pub const FORMATS: [(&str, Format); 2] = [("text", Format::Text), ("json", Format::Json)];
