//! A real gRPC server behind the layer, and a real client. A library of another project reads the details of
//! a denial.

use std::time::Duration;

use spillgate::http::ByIp;
use spillgate::tower::{RateLimitLayer, from_path};
use spillgate::{Cost, Limiter, LimiterBuilder, Policy};
use spillgate_testkit::free_port;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Server};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

use super::client::threads;

const RULE: &str = r#"
    [[rule]]
    name = "checks"
    match = { method = "/grpc.health.v1.Health/Check" }
    key = ["ip"]
    limits = ["2/minute", { quota = "9/day", name = "daily" }]
    on_outage = "deny"
"#;

/// A health service behind a layer, and a client of it.
fn health(builder: LimiterBuilder, cost: u64) -> (Runtime, HealthClient<Channel>) {
    let runtime = threads();
    let builder = builder.policy(Policy::from_toml(RULE).unwrap());
    let layer = RateLimitLayer::new(runtime.block_on(builder.build()).unwrap())
        .identify(ByIp::direct())
        .with("method", from_path())
        .cost(move |_| Cost::requests(cost));
    let client = runtime.block_on(async {
        let incoming = tonic::transport::server::TcpIncoming::bind("127.0.0.1:0".parse().unwrap());
        let incoming = incoming.unwrap();
        let port = incoming.local_addr().unwrap().port();
        let (_, service) = tonic_health::server::health_reporter();
        let server = Server::builder().layer(layer).add_service(service);
        tokio::spawn(server.serve_with_incoming(incoming));
        let channel = Channel::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
        HealthClient::new(channel.connect().await.unwrap())
    });
    (runtime, client)
}

async fn check(client: &mut HealthClient<Channel>) -> Result<tonic::metadata::MetadataMap, Status> {
    let request = HealthCheckRequest { service: String::new() };
    client.check(request).await.map(|response| response.metadata().clone())
}

fn text<'s>(metadata: &'s tonic::metadata::MetadataMap, name: &str) -> Option<&'s str> {
    metadata.get(name).map(|value| value.to_str().unwrap())
}

#[test]
fn a_denial_is_resource_exhausted_with_retry_time_and_limits() {
    let (runtime, mut client) = health(Limiter::builder(), 1);
    runtime.block_on(async {
        let admitted = check(&mut client).await.unwrap();
        let limits = text(&admitted, "ratelimit").unwrap();
        assert!(limits.starts_with("\"checks/0\";r=1;t=30, \"checks/daily\";r=8;t="), "{limits}");
        check(&mut client).await.unwrap();

        let denied = check(&mut client).await.unwrap_err();
        assert_eq!(denied.code(), Code::ResourceExhausted);
        assert_eq!(denied.message(), "The limit has no room at the moment.");
        let wait = denied.get_details_retry_info().unwrap().retry_delay.unwrap();
        assert!(wait > Duration::from_secs(1) && wait <= Duration::from_secs(30), "{wait:?}");
        let violations = denied.get_details_quota_failure().unwrap().violations;
        let subjects: Vec<&str> = violations.iter().map(|one| one.subject.as_str()).collect();
        assert_eq!(subjects, ["checks/0"]);
        let pushback: u128 =
            text(denied.metadata(), "grpc-retry-pushback-ms").unwrap().parse().unwrap();
        assert_eq!(pushback, wait.as_micros().div_ceil(1_000));
        let limits = text(denied.metadata(), "ratelimit").unwrap();
        assert!(limits.starts_with("\"checks/0\";r=0;t="), "{limits}");
        assert_eq!(text(denied.metadata(), "retry-after"), None);
    });
}

#[test]
fn a_denial_that_no_wait_ends_has_no_retry_info() {
    let (runtime, mut client) = health(Limiter::builder(), 3);
    let denied = runtime.block_on(check(&mut client)).unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert!(denied.get_details_retry_info().is_none());
    assert_eq!(denied.get_details_quota_failure().unwrap().violations.len(), 1);
    assert_eq!(text(denied.metadata(), "grpc-retry-pushback-ms"), Some("-1"));
}

#[test]
fn an_outage_is_unavailable() {
    let unreachable = Limiter::builder().redis(format!("redis://127.0.0.1:{}", free_port()));
    let (runtime, mut client) = health(unreachable, 1);
    let denied = runtime.block_on(check(&mut client)).unwrap_err();
    assert_eq!(denied.code(), Code::Unavailable);
    let wait = denied.get_details_retry_info().unwrap().retry_delay;
    assert_eq!(wait, Some(Duration::from_secs(1)));
    assert!(denied.get_details_quota_failure().is_none());
    assert_eq!(text(denied.metadata(), "ratelimit"), None);
}
