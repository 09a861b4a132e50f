//! A gRPC client of the API, and its requests.

use std::time::Duration;

use prost_types::value::Kind;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::server::Server;

#[rustfmt::skip]
#[allow(dead_code, unreachable_pub, clippy::all, missing_docs, reason = "generated; the tests need a part of it")]
#[path = "../../../../spillgate-server/src/listener/envoy/proto/all.rs"]
mod proto;

pub(crate) use proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
pub(crate) use proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
pub(crate) use proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus,
};
pub(crate) use proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
pub(crate) use proto::envoy::r#type::v3::RateLimitUnit;

/// One connection to the API.
pub(crate) struct Caller {
    runtime: tokio::runtime::Runtime,
    channel: Channel,
}

impl Caller {
    pub(crate) fn of(server: &Server) -> Caller {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let url = format!("http://127.0.0.1:{}", server.grpc_port.unwrap());
        let channel = runtime.block_on(Endpoint::new(url).unwrap().connect()).unwrap();
        Caller { runtime, channel }
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Returns the answer, or its error.
    pub(crate) fn try_ask(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<RateLimitResponse, Status> {
        self.run(self.call(request))
    }

    /// Calls [`Caller::ask`] within the runtime of the test.
    pub(crate) async fn ask_there(&self, descriptors: &[RateLimitDescriptor]) -> RateLimitResponse {
        self.call(Request::new(in_domain("default", descriptors))).await.unwrap()
    }

    async fn call(&self, request: Request<RateLimitRequest>) -> Result<RateLimitResponse, Status> {
        let mut client = tonic::client::Grpc::new(self.channel());
        let path = PathAndQuery::from_static(
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        );
        client.ready().await.unwrap();
        let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
        client.unary(request, path, codec).await.map(Response::into_inner)
    }

    #[track_caller]
    pub(crate) fn ask(&self, descriptors: &[RateLimitDescriptor]) -> RateLimitResponse {
        self.try_ask(Request::new(in_domain("default", descriptors))).unwrap()
    }

    /// Calls [`Caller::ask`] with the metadata that Envoy sends.
    pub(crate) fn ask_as(
        &self,
        metadata: &[(&'static str, &str)],
        descriptors: &[RateLimitDescriptor],
    ) -> Result<RateLimitResponse, Status> {
        let mut request = Request::new(in_domain("default", descriptors));
        for (name, value) in metadata {
            request.metadata_mut().insert(*name, MetadataValue::try_from(*value).unwrap());
        }
        self.try_ask(request)
    }
}

pub(crate) fn in_domain(domain: &str, descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.to_vec(),
        hits_addend: 0,
    }
}

/// Returns metadata as JSON.
pub(crate) fn json(metadata: prost_types::Struct) -> serde_json::Value {
    fn of(value: prost_types::Value) -> serde_json::Value {
        match value.kind.unwrap() {
            Kind::NullValue(_) => serde_json::Value::Null,
            Kind::NumberValue(number) => number.into(),
            Kind::StringValue(text) => text.into(),
            Kind::BoolValue(truth) => truth.into(),
            Kind::StructValue(inner) => json(inner),
            Kind::ListValue(list) => list.values.into_iter().map(of).collect(),
        }
    }
    metadata.fields.into_iter().map(|(name, value)| (name, of(value))).collect()
}

pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: (*key).to_owned(),
        value: value.as_bytes().to_vec(),
    };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

impl RateLimitDescriptor {
    pub(crate) fn costing(self, hits: u64) -> RateLimitDescriptor {
        RateLimitDescriptor { hits_addend: Some(hits), ..self }
    }

    pub(crate) fn giving_back(self) -> RateLimitDescriptor {
        RateLimitDescriptor { is_negative_hits: true, ..self }
    }

    pub(crate) fn limited_to(self, requests: u32, unit: RateLimitUnit) -> RateLimitDescriptor {
        let limit = RateLimitOverride { requests_per_unit: requests, unit: unit.into() };
        RateLimitDescriptor { limit: Some(limit), ..self }
    }

    pub(crate) fn with_bytes(mut self, key: &str, value: &[u8]) -> RateLimitDescriptor {
        self.entries.push(Entry { key: key.to_owned(), value: value.to_vec() });
        self
    }
}

impl RateLimitResponse {
    /// Returns the codes of the statuses.
    pub(crate) fn codes(&self) -> Vec<Code> {
        self.statuses.iter().map(DescriptorStatus::code).collect()
    }

    /// Returns the remaining quotas, status by status.
    pub(crate) fn remaining(&self) -> Vec<u32> {
        self.statuses.iter().map(|status| status.limit_remaining).collect()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut named = self.response_headers_to_add.iter().filter(|header| header.key == name);
        let first = named.next().map(|header| header.value.as_str());
        assert!(named.next().is_none(), "{name} is there twice");
        first
    }
}

impl DescriptorStatus {
    pub(crate) fn reset(&self) -> Option<Duration> {
        let reset = self.duration_until_reset.as_ref()?;
        assert_eq!(reset.nanos, 0, "Envoy cuts fractions off");
        Some(Duration::from_secs(reset.seconds.try_into().unwrap()))
    }
}
