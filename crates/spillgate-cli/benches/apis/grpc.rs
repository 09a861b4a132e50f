//! The gRPC API by tonic's client, beside a tonic service that answers the same message with the
//! same shape and judges nothing. Eight connections of 32 calls each, as a proxy's workers have.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::Outcome;
use crate::contender::Contender;
use crate::pair;
use crate::rounds::{Effort, Rounds, Run};
use crate::table::{Floor, Table};

#[rustfmt::skip]
#[allow(clippy::all, missing_docs, unreachable_pub, reason = "generated; the bench needs a part of it")]
#[path = "../../../spillgate-server/src/listener/envoy/proto/all.rs"]
mod proto;

use proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

/// What makes this program the echo.
pub const FLAG: &str = "--echo-grpc";

pub fn against_a_baseline(effort: Effort) -> Outcome {
    let rules = std::env::temp_dir().join(format!("spillgate-bench-{}.toml", std::process::id()));
    std::fs::write(&rules, RULES)?;
    let ours = Contender::spillgate_with("--grpc", &["--config".as_ref(), rules.as_os_str()])?;
    let echo = Contender::program(FLAG)?;
    let runtime = Runtime::new()?;
    let callers = |server: &Contender| runtime.block_on(connections(server.port));
    let (to_ours, to_echo) = (callers(&ours)?, callers(&echo)?);
    let run = |server: &Contender, channels: &[Channel]| {
        server.measured(|| {
            let began = Instant::now();
            let calls = runtime.block_on(calls(channels, effort.span * 2)) as f64;
            (calls / began.elapsed().as_secs_f64(), calls)
        })
    };
    let mut contenders: Vec<Box<dyn FnMut() -> Run>> =
        vec![Box::new(|| run(&ours, &to_ours)), Box::new(|| run(&echo, &to_echo))];
    let rounds = Rounds::of(effort, &mut contenders);
    // A leftover temporary file is no reason to fail a measurement.
    let _ = std::fs::remove_file(&rules);
    let measure = "ShouldRateLimit, one rule, against a tonic echo";
    let rows = pair::rows(&rounds, measure, (0, 1), Floor::AtLeast(1.0)).into();
    let title = "gRPC on memory, 8 connections × 32 streams, by tonic's client";
    Ok(vec![Table { title: title.to_owned(), rows }])
}

async fn connections(port: u16) -> Result<Vec<Channel>, Box<dyn Error>> {
    let mut channels = Vec::new();
    for _ in 0..CONNECTIONS {
        let endpoint = Endpoint::new(format!("http://127.0.0.1:{port}"))?.tcp_nodelay(true);
        channels.push(endpoint.connect().await?);
    }
    Ok(channels)
}

/// How many calls are answered within a time.
async fn calls(channels: &[Channel], span: Duration) -> u64 {
    let answered = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + span;
    let mut streams = tokio::task::JoinSet::new();
    for stream in 0..channels.len() * STREAMS {
        let (channel, answered) = (channels[stream % channels.len()].clone(), answered.clone());
        streams.spawn(async move {
            let mut user = stream;
            while Instant::now() < until {
                user = (user + 7_919) % 100_000;
                let status = call(channel.clone(), user).await;
                assert!(status.is_ok(), "{status:?}");
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    streams.join_all().await;
    answered.load(Ordering::Relaxed)
}

async fn call(channel: Channel, user: usize) -> Result<Response<RateLimitResponse>, Status> {
    let entry = |key: &str, value: String| Entry { key: key.to_owned(), value: value.into() };
    let entries = vec![entry("remote_address", format!("10.0.{user}")), entry("path", "/a".into())];
    let descriptors = vec![RateLimitDescriptor { entries, ..Default::default() }];
    let request = RateLimitRequest { domain: "default".to_owned(), descriptors, hits_addend: 0 };
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path =
        PathAndQuery::from_static("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    client.unary(Request::new(request), path, ProstCodec::default()).await
}

/// Prints its port, and echoes until it is killed.
pub fn serve() -> std::process::ExitCode {
    let served = Runtime::new().map_err(Into::<Box<dyn Error>>::into).and_then(|runtime| {
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
            println!("{}", listener.local_addr()?.port());
            let incoming = tonic::transport::server::TcpIncoming::from(listener);
            let service = RateLimitServiceServer::new(Echo);
            let incoming = incoming.with_nodelay(Some(true));
            Ok(Server::builder().add_service(service).serve_with_incoming(incoming).await?)
        })
    });
    match served {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(_) => std::process::ExitCode::FAILURE,
    }
}

struct Echo;

#[tonic::async_trait]
impl RateLimitService for Echo {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let status = |_: &RateLimitDescriptor| DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(RateLimit {
                requests_per_unit: 1_000_000,
                unit: 1,
                name: "api".into(),
            }),
            limit_remaining: 999_999,
            duration_until_reset: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
            ..DescriptorStatus::default()
        };
        Ok(Response::new(RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: request.get_ref().descriptors.iter().map(status).collect(),
            ..RateLimitResponse::default()
        }))
    }
}

const RULES: &str = "[server.grpc]\nheaders = \"none\"\n[[rule]]\nname = \"api\"\nkey = [\"remote_address\"]\nlimits = [\"1000000/second\"]\n";
const CONNECTIONS: usize = 8;
const STREAMS: usize = 32;
