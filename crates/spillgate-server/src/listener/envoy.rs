//! The gRPC API: Envoy's rate limit service, version 3, with the standard health and reflection services.
//!
//! Envoy admits a request if this service answers with an error. So no value that a client of Envoy controls causes an
//! error here. Only a mistake of the operator does, and an outage if `on_outage_deny` leaves it to Envoy.

use axum::Router;
use spillgate::Reason;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::app::App;
use crate::config::{self, OnOutageDeny};

mod answer;
mod connection;
mod health;
mod message;
mod metadata;
mod request;
#[rustfmt::skip]
#[allow(clippy::all, missing_docs, unreachable_pub, reason = "generated; see proto/README.md")]
#[path = "envoy/proto/all.rs"]
pub(crate) mod proto;

pub(crate) use connection::Grpc;
pub(crate) use health::Health;
use proto::envoy::service::ratelimit::v3 as rls;
use rls::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};

/// Returns the routes of the gRPC services.
pub(crate) fn routes(app: App, choices: config::Envoy, health: &Health) -> Router {
    let envoy = RateLimitServiceServer::new(Envoy { app, choices })
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(MESSAGE_MAX);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(REFLECTED)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let built = "a test decodes the committed descriptors";
    Routes::new(envoy)
        .add_service(health.service())
        .add_service(reflection().build_v1().expect(built))
        .add_service(reflection().build_v1alpha().expect(built))
        .into_axum_router()
}

/// Envoy's rate limit service.
struct Envoy {
    app: App,
    choices: config::Envoy,
}

#[tonic::async_trait]
impl RateLimitService for Envoy {
    async fn should_rate_limit(
        &self,
        request: Request<rls::RateLimitRequest>,
    ) -> Result<Response<rls::RateLimitResponse>, Status> {
        let within = request::store_timeout(request.metadata(), self.choices.timeout);
        let request = request.get_ref();
        let known = self.app.require_domain(request::domain(request));
        known.map_err(|unknown| Status::not_found(unknown.to_string()))?;
        let requests = request::requests(request)?;
        // An unused name is logged, but it is no error even if `server.attributes` is "known". The names come from
        // Envoy's configuration, yet a client can cause one by an optional header, or by one that it repeats.
        for request in &requests {
            self.app.note_names(request);
        }
        let combined = self.app.check_atomic(&requests, within).await;
        if self.choices.on_outage_deny == OnOutageDeny::Unavailable {
            match combined.whole().reason() {
                Some(Reason::Overloaded) => return Err(Status::unavailable(OVERLOADED)),
                Some(Reason::StoreUnavailable) => return Err(Status::unavailable(UNAVAILABLE)),
                _ => {}
            }
        }
        let mut response = answer::to(&combined, self.choices.headers);
        if self.choices.dynamic_metadata {
            response.dynamic_metadata = Some(metadata::build(&combined, request::domain(request)));
        }
        Ok(Response::new(response))
    }
}

const OVERLOADED: &str = "the rate limiter is overloaded";
const UNAVAILABLE: &str =
    "the rate limiter cannot reach its store, and a matched rule has on_outage = \"deny\"";
/// The most bytes of a message; a longer one is an error. Its values are headers of Envoy's clients, of which Envoy
/// takes 60 KiB by default, each perhaps in several descriptors.
const MESSAGE_MAX: usize = 1024 * 1024;

/// The descriptors of the files in `proto/`, for reflection.
const REFLECTED: &[u8] = include_bytes!("envoy/proto/reflected.bin");
