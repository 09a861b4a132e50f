//! Sends the metrics to a collector at intervals, by OTLP over gRPC. A slow or lost collector delays nothing. It loses no
//! count, since each message has the totals.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use jiff::Timestamp;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::transport::{Channel, Endpoint};

use super::PATIENCE;

mod message;

use message::{Times, attribute, metrics_of};

/// The export of metrics, until it is closed.
pub(crate) struct Pushing {
    task: JoinHandle<()>,
    end: oneshot::Sender<()>,
}

impl Pushing {
    /// Starts the export of the text that `metrics` returns. It needs a tokio runtime; the collector may start later.
    ///
    /// # Errors
    ///
    /// If the collector's address is invalid.
    pub(crate) fn start(
        collector: &str,
        every: Duration,
        metrics: impl Fn() -> String + Send + 'static,
    ) -> Result<Pushing, String> {
        let endpoint = Endpoint::from_shared(collector.to_owned());
        let endpoint = endpoint.map_err(|error| error.to_string())?;
        let channel = endpoint.connect_timeout(PATIENCE).timeout(PATIENCE).connect_lazy();
        let exporter = Exporter {
            client: MetricsServiceClient::new(channel),
            resource: this_instance(),
            began_ns: now_ns(),
            failing: false,
        };
        let (end, ended) = oneshot::channel();
        Ok(Pushing { task: tokio::spawn(exporter.send_at_intervals(every, metrics, ended)), end })
    }

    /// Sends the last counts, for at most [`PATIENCE`].
    pub(crate) async fn close(self) {
        drop(self.end);
        if timeout(PATIENCE, self.task).await.is_err() {
            tracing::warn!(target: "spillgate", "the collector did not take the last metrics");
        }
    }
}

struct Exporter {
    client: MetricsServiceClient<Channel>,
    resource: Resource,
    began_ns: u64,
    /// Whether the collector did not take the last message.
    failing: bool,
}

impl Exporter {
    async fn send_at_intervals(
        mut self,
        every: Duration,
        metrics: impl Fn() -> String,
        mut ended: oneshot::Receiver<()>,
    ) {
        let mut due = interval(every);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_last = tokio::select! {
                _ = due.tick() => false,
                _ = &mut ended => true,
            };
            self.send(&metrics()).await;
            if is_last {
                return;
            }
        }
    }

    /// Sends all metrics. Logs when the collector begins to fail, and when it takes metrics again.
    async fn send(&mut self, text: &str) {
        let times = Times { began_ns: self.began_ns, now_ns: now_ns() };
        let scope = ScopeMetrics { metrics: metrics_of(text, times), ..ScopeMetrics::default() };
        let resource = ResourceMetrics {
            resource: Some(self.resource.clone()),
            scope_metrics: vec![scope],
            ..ResourceMetrics::default()
        };
        let message = ExportMetricsServiceRequest { resource_metrics: vec![resource] };
        let result = self.client.export(message).await;
        match &result {
            Err(error) if !self.failing => {
                tracing::warn!(target: "spillgate", %error, "the collector takes no metrics");
            }
            Ok(_) if self.failing => {
                tracing::info!(target: "spillgate", "the collector takes metrics again");
            }
            _ => {}
        }
        self.failing = result.is_err();
    }
}

/// Returns the name of this instance and what `OTEL_RESOURCE_ATTRIBUTES` adds. Without an id of its own, the totals of
/// several instances would look like one that jumps.
fn this_instance() -> Resource {
    let known = super::resource();
    let mut attributes: Vec<_> =
        known.iter().map(|(key, value)| attribute(key.as_str(), value.to_string())).collect();
    if known.get(&INSTANCE_ID.into()).is_none() {
        let random = RandomState::new().hash_one(now_ns());
        attributes.push(attribute(INSTANCE_ID, format!("{random:016x}")));
    }
    Resource { attributes, ..Resource::default() }
}

fn now_ns() -> u64 {
    u64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(0)
}

const INSTANCE_ID: &str = "service.instance.id";
