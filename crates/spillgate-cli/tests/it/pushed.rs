//! Metrics, as a collector receives them by OTLP.
#![cfg(feature = "otlp")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use spillgate_testkit::{RedisServer, eventually, free_port};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tonic::transport::server::{Router, TcpIncoming};
use tonic::{Request, Response, Status};

use crate::server::{LISTENING, Server, TempFile, spillgate};

/// A collector, and all messages that it received.
struct Collector {
    // The collector's task ends with the runtime.
    _runtime: Runtime,
    url: String,
    messages: Messages,
}

#[derive(Clone, Default)]
struct Messages(Arc<Mutex<Vec<ExportMetricsServiceRequest>>>);

#[tonic::async_trait]
impl MetricsService for Messages {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

/// Serves a collector's service on a free port until the runtime is dropped, and returns its URL.
pub(crate) fn collect(service: Router) -> (Runtime, String) {
    let runtime = Runtime::new().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    runtime.spawn(service.serve_with_incoming(TcpIncoming::from(listener)));
    (runtime, url)
}

impl Collector {
    fn start() -> Collector {
        let messages = Messages::default();
        let service = MetricsServiceServer::new(messages.clone());
        let (_runtime, url) = collect(tonic::transport::Server::builder().add_service(service));
        Collector { _runtime, url, messages }
    }

    fn settings(&self, every: &str) -> TempFile {
        let otlp = format!("collector = \"{}\"\nmetrics_every = \"{every}\"", self.url);
        TempFile::new("pushed.toml", &format!("[telemetry.otlp]\n{otlp}\n{RULES}"))
    }

    fn received(&self) -> usize {
        self.messages.0.lock().unwrap().len()
    }

    /// Returns the last message: its families by name, and the attributes of the process.
    fn last(&self) -> (BTreeMap<String, Data>, BTreeMap<String, String>) {
        let message = self.messages.0.lock().unwrap().last().unwrap().clone();
        let [resource] = <[_; 1]>::try_from(message.resource_metrics).unwrap();
        let [scope] = <[_; 1]>::try_from(resource.scope_metrics).unwrap();
        let families = scope.metrics.into_iter().map(|family| (family.name, family.data.unwrap()));
        (families.collect(), attributes(&resource.resource.unwrap().attributes))
    }
}

fn attributes(pairs: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |pair: &KeyValue| match pair.value.as_ref().unwrap().value.as_ref().unwrap() {
        Value::StringValue(text) => text.clone(),
        other => panic!("{other:?}"),
    };
    pairs.iter().map(|pair| (pair.key.clone(), text(pair))).collect()
}

/// Returns the families of a text for Prometheus that have samples, with their types.
fn families_with_samples(text: &str) -> BTreeMap<String, String> {
    let mut families = BTreeMap::new();
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.windows(2) {
        if let Some(family) = pair[0].strip_prefix("# TYPE ")
            && !pair[1].starts_with('#')
        {
            let (name, kind) = family.split_once(' ').unwrap();
            families.insert(name.to_owned(), kind.to_owned());
        }
    }
    families
}

fn kind(data: &Data) -> &'static str {
    match data {
        Data::Sum(_) => "counter",
        Data::Gauge(_) => "gauge",
        Data::Histogram(_) => "histogram",
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_collector_gets_the_families_of_the_metrics_page_with_their_counts() {
    let (collector, redis) = (Collector::start(), RedisServer::start());
    let file = collector.settings("100ms");
    let server = Server::start_on(&redis, &["--config", file.path()]);
    server.check(QUESTION);
    server.check(QUESTION);
    let scraped = || {
        let text = server.metrics();
        families_with_samples(&text)
    };
    let pushed = || -> BTreeMap<String, String> {
        let (families, _) = collector.last();
        families.iter().map(|(name, data)| (name.clone(), kind(data).to_owned())).collect()
    };
    eventually(|| collector.received() > 0);
    // A family may get its first sample between the two readings.
    eventually(|| scraped() == pushed());
    assert!(pushed().len() > 20, "{:?}", pushed());

    let decisions = || {
        let (mut families, _) = collector.last();
        let Some(Data::Sum(sum)) = families.remove("spillgate_decisions_total") else {
            panic!("{families:?}");
        };
        let counts = sum.data_points.into_iter().map(|point| {
            let labels = attributes(&point.attributes);
            assert!(labels["rule"] == "one" && labels.len() == 5, "{labels:?}");
            let Some(Number::AsDouble(count)) = point.value else { panic!("{point:?}") };
            ((labels["decision"].clone(), labels["reason"].clone()), count.to_string())
        });
        counts.collect::<BTreeMap<_, _>>()
    };
    let count = |decision: &str, reason: &str, count: &str| {
        ((decision.to_owned(), reason.to_owned()), count.to_owned())
    };
    let expected =
        BTreeMap::from([count("allowed", "", "1"), count("denied", "limit-exceeded", "1")]);
    eventually(|| decisions() == expected);

    let (families, process) = collector.last();
    let Data::Histogram(times) = &families["spillgate_decision_seconds"] else {
        panic!("{families:?}");
    };
    let [times] = &times.data_points[..] else { panic!("{times:?}") };
    assert_eq!((times.count, times.bucket_counts.iter().sum::<u64>()), (2, 2));
    assert_eq!(times.bucket_counts.len(), times.explicit_bounds.len() + 1);
    assert!(times.time_unix_nano > times.start_time_unix_nano);
    assert_eq!(process["service.name"], "spillgate");
    assert!(process["service.instance.id"].len() > 8, "{process:?}");
}

#[test]
fn the_last_counts_are_sent_at_the_end() {
    let collector = Collector::start();
    let file = collector.settings("60s");
    let server = Server::start(&["--config", file.path()]);
    eventually(|| collector.received() == 1);
    server.check(QUESTION);
    assert!(server.stop().success());
    assert_eq!(collector.received(), 2);
    let (families, _) = collector.last();
    assert!(families.contains_key("spillgate_decisions_total"), "{:?}", families.keys());
}

#[test]
fn a_lost_collector_is_logged_once_and_delays_nothing() {
    let collector = format!("http://127.0.0.1:{}", free_port());
    let mut command = spillgate(&[&["serve"], &LISTENING[..]].concat());
    command.env("SPILLGATE_TELEMETRY__OTLP", collector);
    command.env("SPILLGATE_TELEMETRY__OTLP__METRICS_EVERY", "10ms");
    let server = Server::start_command(&mut command);
    for _ in 0..100 {
        server.check(r#"{"attributes":{}}"#);
    }
    let log = server.rest_of_log();
    let reports = log.lines().filter(|line| line.contains("the collector takes no metrics"));
    assert_eq!(reports.count(), 1, "{log}");
}

#[test]
fn metrics_without_a_collector_are_an_error() {
    let file = TempFile::new("pushed.toml", "[telemetry.otlp]\nmetrics_every = \"15s\"\n");
    let output = spillgate(&["serve", "--config", file.path()]).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && complaint.contains("there is no collector"), "{complaint}");
}

const RULES: &str = "[[rule]]\nname = \"one\"\nkey = [\"user\"]\nlimits = [\"1/hour\"]\n";
const QUESTION: &str = r#"{"attributes":{"user":"canary"}}"#;
