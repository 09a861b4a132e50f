//! Envoy's rate limit service: many checks at once on each connection.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::Mutex;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic_prost::ProstCodec;

use super::{
    Answer, ByRules, Checks, Endpoint, connect, host_and_port, key, no_token, unreachable,
};
use crate::Failure;

mod messages;

use messages::{Code, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};

pub(in crate::bench) struct Grpc {
    pub(super) endpoint: Endpoint,
    origin: Uri,
    token: Option<MetadataValue<Ascii>>,
    rules: ByRules,
    /// Opened again when they break.
    connections: Vec<Mutex<Option<SendRequest<Body>>>>,
    next: AtomicUsize,
}

impl Grpc {
    pub(super) async fn connect(endpoint: Endpoint, checks: Checks) -> Result<Grpc, Failure> {
        let Checks::ByRules(rules) = checks else {
            return Err("--url: Envoy's service decides by rules alone; name the attribute that is the subject: \
                        --by ip, and what else a rule matches: --with path=/login"
                .into());
        };
        let (host, port) = host_and_port(&endpoint.url)?;
        let origin = format!("http://{}", endpoint.url.trim_start_matches("grpc://")).parse()?;
        let token = endpoint.token.as_deref().map(str::parse).transpose()?;
        let mut connections = Vec::new();
        for _ in 0..endpoint.connections {
            let opened = open(&host, port, &endpoint)
                .await
                .map_err(|why| unreachable(&endpoint.url, &why))?;
            connections.push(Mutex::new(Some(opened)));
        }
        Ok(Grpc { endpoint, origin, token, rules, connections, next: AtomicUsize::new(0) })
    }

    pub(super) async fn ask(&self, subject: u64) -> Answer {
        let Some(connection) = self.connection().await else {
            return Answer::Failed("cannot connect".to_owned());
        };
        let entry = |name: &str, value: String| Entry { key: name.to_owned(), value };
        let with = self.rules.with.iter().map(|(name, value)| entry(name, value.clone()));
        let entries = with.chain([entry(&self.rules.by, key(subject))]).collect();
        let descriptors = vec![RateLimitDescriptor { entries }];
        let domain = self.rules.domain.clone();
        let mut request = tonic::Request::new(RateLimitRequest { domain, descriptors });
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        let mut client = tonic::client::Grpc::with_origin(Channel(connection), self.origin.clone());
        let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
        match client.unary(request, PathAndQuery::from_static(PATH), codec).await {
            Ok(response) if response.get_ref().overall_code() == Code::Ok => Answer::Allowed(None),
            Ok(_) => Answer::Denied(None),
            Err(status) if status.code() == tonic::Code::Unauthenticated => no_token(),
            Err(status) => Answer::Failed(format!("{:?}: {}", status.code(), status.message())),
        }
    }

    /// Returns the next connection in turn.
    async fn connection(&self) -> Option<SendRequest<Body>> {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.connections.len();
        let mut connection = self.connections[next].lock().await;
        if connection.as_ref().is_none_or(SendRequest::is_closed) {
            let (host, port) = host_and_port(&self.endpoint.url).ok()?;
            *connection = open(&host, port, &self.endpoint).await.ok();
        }
        connection.clone()
    }
}

async fn open(host: &str, port: u16, endpoint: &Endpoint) -> Result<SendRequest<Body>, String> {
    let stream = connect(host, port, endpoint.patience).await?;
    let shaken = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = shaken.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    Ok(sender)
}

/// The service that tonic's client sends requests to.
struct Channel(SendRequest<Body>);

impl Service<Request<Body>> for Channel {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
