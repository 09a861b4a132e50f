//! `grpc.health.v1`: serving while the listener is open. An outage of the store does not change it, because rules
//! decide by `on_outage`.

use std::time::Duration;

use tokio::sync::watch;
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::Envoy;
use super::rls::rate_limit_service_server::RateLimitServiceServer;

/// The status of the server as a whole and of Envoy's service.
#[derive(Clone)]
pub(crate) struct Health(HealthReporter);

impl Health {
    pub(crate) async fn serving() -> Health {
        let health = Health(HealthReporter::new());
        health.set(ServingStatus::Serving).await;
        health
    }

    pub fn service(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.0.clone()))
    }

    /// At `stop` reports that the server leaves. After `linger` it ends the streams of clients that watch the status,
    /// which would keep their connections open.
    pub(crate) async fn follow(mut self, mut stop: watch::Receiver<bool>, linger: Duration) {
        // The result only shows whether the sender is gone, and the sender lives as long as the process.
        drop(stop.wait_for(|stop| *stop).await);
        self.set(ServingStatus::NotServing).await;
        tokio::time::sleep(linger).await;
        for name in NAMES {
            self.0.clear_service_status(name).await;
        }
    }

    async fn set(&self, status: ServingStatus) {
        for name in NAMES {
            self.0.set_service_status(name, status).await;
        }
    }
}

const NAMES: [&str; 2] = ["", <RateLimitServiceServer<Envoy> as NamedService>::NAME];
