//! The log, on the error output, as text or as JSON, and traces if the settings name a collector. Lines of text have no
//! time: journald and container runtimes add it.

use std::fmt;

#[cfg(feature = "otlp")]
use tracing::Metadata;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::Targets;
#[cfg(feature = "otlp")]
use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, layer};
#[cfg(feature = "otlp")]
use tracing_subscriber::layer::Context;
use tracing_subscriber::layer::{Identity, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{Format, Log, Otlp, Problem};

#[cfg(feature = "otlp")]
mod otlp;
pub(crate) mod sink;
mod traces;

pub(crate) use traces::Traces;

/// The log and the traces of this process, until it is closed.
pub(crate) struct Telemetry {
    pub(crate) traces: Traces,
    #[cfg(feature = "otlp")]
    exporting: Option<otlp::Exporting>,
}

impl Telemetry {
    /// Starts the log and the traces of the whole process. Events of other crates are left out: they may hold values
    /// that callers sent.
    ///
    /// # Errors
    ///
    /// If the collector's address is invalid.
    #[cfg(feature = "otlp")]
    pub(crate) fn begin(log: Log, otlp: &Otlp) -> Result<Telemetry, Problem> {
        let Some(collector) = &otlp.collector else {
            begin_log(log, None::<Identity>);
            return Ok(Telemetry { traces: Traces::default(), exporting: None });
        };
        let exporting = otlp::Exporting::to(collector)
            .map_err(|error| Problem::of_setting("telemetry.otlp.collector", error))?;
        let spans = tracing_opentelemetry::layer().with_tracer(exporting.tracer());
        let spans = spans.with_location(false).with_threads(false).with_target(false);
        begin_log(log, Some(spans.with_filter(dynamic_filter_fn(is_traced))));
        let traces = Traces::sampling(otlp.sample);
        Ok(Telemetry { traces, exporting: Some(exporting) })
    }

    #[cfg(not(feature = "otlp"))]
    pub(crate) fn begin(log: Log, otlp: &Otlp) -> Result<Telemetry, Problem> {
        if otlp.collector.is_some() {
            let message = "this program was built without traces; build it with --features otlp, or leave the setting out";
            return Err(Problem::of_setting("telemetry.otlp.collector", message.to_owned()));
        }
        begin_log(log, None::<Identity>);
        Ok(Telemetry { traces: Traces::default() })
    }

    /// Sends the spans that still wait, within a bound.
    pub(crate) async fn close(self) {
        #[cfg(feature = "otlp")]
        if let Some(exporting) = self.exporting {
            // Closing blocks, so it runs on a blocking thread. The task fails only when the process ends anyway.
            let _ = tokio::task::spawn_blocking(move || exporting.close()).await;
        }
    }
}

/// Returns whether a span is exported: the first span of a sampled request, and those within it. Events are not.
#[cfg(feature = "otlp")]
fn is_traced<S: Subscriber + for<'a> LookupSpan<'a>>(
    metadata: &Metadata<'_>,
    context: &Context<'_, S>,
) -> bool {
    let begins = metadata.target() == traces::REQUEST;
    let within = metadata.target() == "spillgate" && context.lookup_current().is_some();
    metadata.is_span() && (begins || within)
}

fn begin_log(log: Log, spans: Option<impl Layer<Registry> + Send + Sync>) {
    let ours = Targets::new().with_target("spillgate", log.level);
    let lines = || sink::Lines;
    let text = || layer().with_writer(lines).event_format(Line).with_filter(ours.clone());
    let json = || {
        let json = layer().json().flatten_event(true).with_target(false);
        let json = json.with_current_span(false).with_span_list(false);
        json.with_writer(lines).with_filter(ours.clone())
    };
    let registry = tracing_subscriber::registry().with(spans);
    // The first subscriber of a process stays. Tests start several, so an error here is no problem.
    let _ = match log.format {
        Format::Text => registry.with(text()).try_init(),
        Format::Json => registry.with(json()).try_init(),
    };
}

/// The format of a line of text, as the commands write theirs: `spillgate: warning: breaker opened server=…`.
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
