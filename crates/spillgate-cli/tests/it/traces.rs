//! Traces, as a collector receives them.
#![cfg(feature = "otlp")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use spillgate_testkit::{RedisServer, free_port};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::envoy::client::{Caller, descriptor};
use crate::server::{Server, TempFile, spillgate};

/// A collector, and all spans that it received.
struct Collector {
    // The collector's task ends with the runtime.
    _runtime: Runtime,
    url: String,
    spans: Spans,
}

#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Spans {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        self.0.lock().unwrap().extend(scopes.flat_map(|scope| scope.spans));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    fn start() -> Collector {
        let spans = Spans::default();
        let service = TraceServiceServer::new(spans.clone());
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tonic::transport::Server::builder().add_service(service);
        runtime.spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        Collector { _runtime: runtime, url, spans }
    }

    /// Starts a server with these settings, makes calls, and returns their spans.
    #[track_caller]
    fn after(&self, sample: &str, ask: impl FnOnce(&Server)) -> Vec<Span> {
        let redis = RedisServer::start();
        let settings = format!(
            "[telemetry.otlp]\ncollector = \"{}\"\nsample = \"{sample}\"\n{RULES}",
            self.url
        );
        let file = TempFile::new("traced.toml", &settings);
        let server = Server::start_on(&redis, &["--config", file.path()]);
        ask(&server);
        // The server sends the remaining spans before it ends.
        assert!(server.stop().success());
        std::mem::take(&mut *self.spans.0.lock().unwrap())
    }
}

/// Returns the attributes of a span as text.
fn attributes(span: &Span) -> BTreeMap<&str, String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        Value::BoolValue(flag) => flag.to_string(),
        other => panic!("{other:?}"),
    };
    let attributes = span
        .attributes
        .iter()
        .filter_map(|pair| Some((pair.key.as_str(), text(pair.value.as_ref()?.value.as_ref()?))));
    attributes.collect()
}

fn ask_as(server: &Server, traceparent: &str) {
    let headers = [("Host", "localhost"), ("traceparent", traceparent)];
    let reply = server.client().send_with("POST", "/v1/check", &headers, QUESTION).unwrap();
    assert_eq!(reply.status, 200);
}

#[test]
fn a_request_is_a_span_with_its_store_calls_inside() {
    let spans = Collector::start().after("100%", |server| {
        server.post("/v1/check", QUESTION);
        server.post("/v1/check", QUESTION);
        let question = std::str::from_utf8(QUESTION).unwrap();
        server.post("/v1/check/batch", format!("[{question},{question}]").as_bytes());
        Caller::of(server).ask(&[descriptor(&[("user", "canary")])]);
        server.resp().command(&["SG.CHECK", "default", "1", "user", "canary"]).unwrap();
        server.client().send("GET", "/v1/auth", b"").unwrap();
        server.client().send("GET", "/v1/openapi.json", b"").unwrap();
    });
    let requests: Vec<&Span> =
        spans.iter().filter(|span| span.kind == SpanKind::Server as i32).collect();
    let names: Vec<&str> = requests.iter().map(|span| span.name.as_str()).collect();
    let grpc = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let expected = ["/v1/check", "/v1/check", "/v1/check/batch", grpc, "RESP", "/v1/auth"];
    assert_eq!(names, expected);
    let allowed: Vec<_> =
        requests.iter().map(|span| attributes(span).remove("spillgate.allowed")).collect();
    let [yes, no] = ["true", "false"].map(|word| Some(word.to_owned()));
    let some_denied = [&yes, &no, &None, &no, &no, &yes];
    assert_eq!(allowed.iter().collect::<Vec<_>>(), some_denied);
    assert_eq!(attributes(requests[0])["spillgate.rule"], "one");
    assert_eq!(attributes(requests[0])["spillgate.source"], "store");
    assert_eq!(attributes(requests[2])["spillgate.checks"], "2");
    assert_eq!(attributes(requests[2])["spillgate.denied"], "2");
    let calls: Vec<&Span> = spans.iter().filter(|span| span.name == "store").collect();
    let of = |request: &Span| {
        let within = |call: &&&Span| call.parent_span_id == request.span_id;
        let within: Vec<_> = calls.iter().filter(within).collect();
        assert!(within.iter().all(|call| call.trace_id == request.trace_id));
        within.len()
    };
    // The second denial, and the calls after it, needed no store.
    assert_eq!(of(requests[0]), 1);
    assert_eq!(of(requests[1]), 1);
    assert_eq!(
        calls.len(),
        requests.iter().map(|request| of(request)).sum::<usize>(),
        "{spans:#?}"
    );
    assert_eq!(attributes(calls[0])["db.system.name"], "redis");
    assert!(requests.iter().all(|request| request.parent_span_id.is_empty()));
    assert!(!format!("{spans:?}").contains("canary"), "{spans:#?}");
}

#[test]
fn a_sampled_caller_is_followed_and_others_are_sampled_by_the_settings() {
    let ids = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
    let spans = Collector::start().after("0%", |server| {
        server.post("/v1/check", QUESTION);
        ask_as(server, &format!("00-{ids}-00"));
        ask_as(server, "nonsense");
        ask_as(server, &format!("00-{ids}-01"));
    });
    let [request] = &spans.iter().filter(|span| span.name != "store").collect::<Vec<_>>()[..]
    else {
        panic!("{spans:#?}");
    };
    assert_eq!(request.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes());
    assert_eq!(request.parent_span_id, 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
    let spans = Collector::start().after("100%", |server| ask_as(server, &format!("00-{ids}-00")));
    assert_eq!(spans, []);
}

#[test]
fn an_unreachable_collector_is_logged_once_and_delays_nothing() {
    let collector = format!("http://127.0.0.1:{}", free_port());
    let mut command = spillgate(&["serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.env("SPILLGATE_TELEMETRY__OTLP__COLLECTOR", collector);
    command.env("SPILLGATE_TELEMETRY__OTLP__SAMPLE", "100%");
    // The time for which spans are gathered, by OpenTelemetry's variable.
    let mut server = Server::start_command(command.env("OTEL_BSP_SCHEDULE_DELAY", "50"));
    server.check(r#"{"attributes":{}}"#);
    let mut log = server.log_until("the collector takes no traces");
    // The span of this call is sent, and fails, before the service ends.
    server.check(r#"{"attributes":{}}"#);
    log += &server.rest_of_log();
    let reports = log.lines().filter(|line| line.contains("the collector takes no traces"));
    assert_eq!(reports.count(), 1, "{log}");
}

#[test]
fn a_silent_collector_delays_neither_requests_nor_the_end() {
    // Its backlog accepts connections, and no one reads them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let collector = format!("http://{}", silent.local_addr().unwrap());
    let mut command = spillgate(&["serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.env("SPILLGATE_TELEMETRY__OTLP__COLLECTOR", collector);
    let server = Server::start_command(command.env("SPILLGATE_TELEMETRY__OTLP__SAMPLE", "100%"));
    let batch = format!("[{}]", [r#"{"attributes":{}}"#; 10].join(","));
    let mut client = server.client();
    // More than the queue holds.
    for _ in 0..3_000 {
        assert_eq!(client.post("/v1/check/batch", batch.as_bytes()).unwrap().status, 200);
    }
    // Within the fixture's patience, which is longer than the exporter's.
    assert!(server.stop().success());
    drop(silent);
}

const RULES: &str = "[[rule]]\nname = \"one\"\nkey = [\"user\"]\nlimits = [\"1/hour\"]\n";
const QUESTION: &[u8] = br#"{"attributes":{"user":"canary"}}"#;
