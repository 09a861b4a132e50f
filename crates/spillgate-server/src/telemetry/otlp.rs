//! Sends traces to a collector, by OTLP over gRPC. A thread of the SDK gathers and sends spans. A slow or lost collector
//! delays no request: spans that do not fit into the queue are dropped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, SpanData,
    SpanExporter,
};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::traces::Caller;

/// The export of spans, until it is closed.
pub struct Exporting {
    provider: SdkTracerProvider,
}

impl Exporting {
    /// Starts the export. It needs a tokio runtime for its connections; the collector may start later.
    ///
    /// # Errors
    ///
    /// If the collector's address is invalid.
    pub fn to(collector: &str) -> Result<Exporting, String> {
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_endpoint(collector)
            .with_timeout(PATIENCE)
            .build()
            .map_err(|error| error.to_string())?;
        let exporter = Reported { exporter, failing: AtomicBool::new(false) };
        let batches = BatchConfigBuilder::default().with_max_queue_size(SPANS_MAX);
        let spans =
            BatchSpanProcessor::builder(exporter).with_batch_config(batches.build()).build();
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder().with_service_name("spillgate").with_attribute(version);
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            // Spans are opened only for requests that were sampled, so the SDK samples no second time.
            .with_sampler(Sampler::AlwaysOn)
            .with_span_processor(spans)
            .build();
        Ok(Exporting { provider })
    }

    pub fn tracer(&self) -> SdkTracer {
        self.provider.tracer("spillgate")
    }

    /// Sends the spans that still wait, for at most [`PATIENCE`].
    pub fn close(&self) {
        if self.provider.shutdown_with_timeout(PATIENCE).is_err() {
            tracing::warn!(target: "spillgate", "the collector did not take the last traces");
        }
    }
}

/// Makes a span part of its caller's trace.
pub fn follow(span: &tracing::Span, caller: Caller) {
    let context = SpanContext::new(
        TraceId::from_bytes(caller.trace.to_be_bytes()),
        SpanId::from_bytes(caller.span.to_be_bytes()),
        TraceFlags::SAMPLED,
        true,
        TraceState::default(),
    );
    // A span that was just opened takes a parent. Without a subscriber the call fails, and there is no trace to join.
    let _ = span.set_parent(Context::new().with_remote_span_context(context));
}

/// Logs once when the collector begins to fail and once when it takes spans again.
#[derive(Debug)]
struct Reported<E> {
    exporter: E,
    /// Whether the collector did not take the last batch.
    failing: AtomicBool,
}

impl<E: SpanExporter> SpanExporter for Reported<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let result = self.exporter.export(batch).await;
        let was_failing = self.failing.swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Ok(()) if was_failing => {
                tracing::info!(target: "spillgate", "the collector takes traces again");
            }
            Err(error) if !was_failing => {
                tracing::warn!(target: "spillgate", %error, "the collector takes no traces: they are lost");
            }
            _ => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// The most spans that wait for the collector: some 2 MiB.
const SPANS_MAX: usize = 2_048;

/// The longest that one batch may take, and the last ones together when the service stops.
const PATIENCE: Duration = Duration::from_secs(2);
