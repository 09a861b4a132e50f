//! The gRPC door: Envoy's rate limit service, version 3, with the standard health and reflection
//! services beside it.
//!
//! Envoy admits whatever is answered with an error. So nothing that a client of Envoy controls is
//! one here: only what its operator got wrong is, and an outage where the operator wants to leave
//! it to Envoy.

use axum::Router;
use spillgate::{Part, Reason};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::app::App;
use crate::config::{self, OnOutageDeny};

mod answer;
mod connection;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod health;
mod message;
mod question;
#[rustfmt::skip]
#[allow(clippy::all, missing_docs, unreachable_pub, reason = "generated; see proto/README.md")]
#[path = "envoy/proto/all.rs"]
pub(crate) mod proto;

pub(crate) use connection::Grpc;
pub(crate) use health::Health;
use proto::envoy::service::ratelimit::v3 as rls;
use rls::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};

/// The door's services.
pub(crate) fn routes(app: App, choices: config::Envoy, health: &Health) -> Router {
    let envoy = RateLimitServiceServer::new(Envoy { app, choices })
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(MESSAGE_MAX);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(REFLECTED)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let built = "the committed descriptors are whole, as a test sees";
    Routes::new(envoy)
        .add_service(health.service())
        .add_service(reflection().build_v1().expect(built))
        .add_service(reflection().build_v1alpha().expect(built))
        .into_axum_router()
}

/// The service of that name.
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
        let within = question::patience(request.metadata(), self.choices.timeout);
        let request = request.get_ref();
        let known = self.app.answers(question::domain(request));
        known.map_err(|unknown| Status::not_found(unknown.to_string()))?;
        let parts: Vec<Part<'_>> = question::parts(request)?;
        let combined = self.app.check_all(&parts, within).await;
        if self.choices.on_outage_deny == OnOutageDeny::Unavailable {
            match combined.whole().reason() {
                Some(Reason::Overloaded) => return Err(Status::unavailable(OVERLOADED)),
                Some(Reason::StoreUnavailable) => return Err(Status::unavailable(UNAVAILABLE)),
                _ => {}
            }
        }
        Ok(Response::new(answer::to(&combined, self.choices.headers)))
    }
}

const OVERLOADED: &str = "the rate limiter is overloaded";
const UNAVAILABLE: &str =
    "the rate limiter cannot reach its store, and a matched rule has on_outage = \"deny\"";
/// What a message may have. The values in it are headers of Envoy's clients, of which Envoy takes
/// 60 KiB unless told otherwise, each perhaps in several descriptors; a longer message is an error.
const MESSAGE_MAX: usize = 1024 * 1024;

/// The files of `proto/`, as reflection tells them.
const REFLECTED: &[u8] = include_bytes!("envoy/proto/reflected.bin");
