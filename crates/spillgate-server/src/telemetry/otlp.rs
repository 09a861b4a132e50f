//! The way of traces to a collector, by OTLP over gRPC. Spans are gathered and sent by a thread of the SDK's own; a
//! collector that is slow or gone costs the spans that do not fit into its queue, and no request
//! anything. What was sent and what was lost is counted.

use std::sync::Arc;
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
    Sampler, SdkTracer, SdkTracerProvider, Span as SdkSpan, SpanData, SpanExporter, SpanProcessor,
};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::traces::{Caller, SpanCounts};

/// Spans on their way, until this is closed.
pub(super) struct Exporting {
    provider: SdkTracerProvider,
}

impl Exporting {
    /// Within a runtime, which carries the connections. The collector need not be there yet.
    pub(super) fn to(collector: &str, counts: &Arc<SpanCounts>) -> Result<Exporting, String> {
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_endpoint(collector)
            .with_timeout(PATIENCE)
            .build()
            .map_err(|error| error.to_string())?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder().with_service_name("spillgate").with_attribute(version);
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            // Whoever opens a span has drawn already.
            .with_sampler(Sampler::AlwaysOn)
            .with_span_processor(Ended(Arc::clone(counts)))
            .with_batch_exporter(Told {
                exporter,
                counts: Arc::clone(counts),
                failing: AtomicBool::new(false),
            })
            .build();
        Ok(Exporting { provider })
    }

    pub(super) fn tracer(&self) -> SdkTracer {
        self.provider.tracer("spillgate")
    }

    /// Sends what is left, and waits for it no longer than [`PATIENCE`].
    pub(super) fn close(&self) {
        if self.provider.shutdown_with_timeout(PATIENCE).is_err() {
            tracing::warn!(target: "spillgate", "the last traces were not taken by the collector");
        }
    }
}

/// Makes a span part of its caller's trace.
pub(super) fn follow(span: &tracing::Span, caller: Caller) {
    let context = SpanContext::new(
        TraceId::from_bytes(caller.trace.to_be_bytes()),
        SpanId::from_bytes(caller.span.to_be_bytes()),
        TraceFlags::SAMPLED,
        true,
        TraceState::default(),
    );
    // No error where it was opened a moment ago; and where nobody takes spans, nobody misses it.
    let _ = span.set_parent(Context::new().with_remote_span_context(context));
}

/// Counts what ends.
#[derive(Debug)]
struct Ended(Arc<SpanCounts>);

impl SpanProcessor for Ended {
    fn on_start(&self, _span: &mut SdkSpan, _context: &Context) {}

    fn on_end(&self, _span: SpanData) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Counts what is sent, and says once when a collector begins to fail and once when it is well again.
#[derive(Debug)]
struct Told<E> {
    exporter: E,
    counts: Arc<SpanCounts>,
    /// Whether the collector did not take the last batch.
    failing: AtomicBool,
}

impl<E: SpanExporter> SpanExporter for Told<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len() as u64;
        let result = self.exporter.export(batch).await;
        let counts = &self.counts;
        let was_failing = self.failing.swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Ok(()) => {
                counts.sent.fetch_add(spans, Ordering::Relaxed);
                if was_failing {
                    tracing::info!(target: "spillgate", "the collector takes traces again");
                }
            }
            Err(error) => {
                counts.failed.fetch_add(spans, Ordering::Relaxed);
                if !was_failing {
                    tracing::warn!(target: "spillgate", %error, "the collector takes no traces: they are lost");
                }
            }
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

/// How long one batch may take, and the last ones when the service stops.
const PATIENCE: Duration = Duration::from_secs(2);
