//! `grpc.health.v1`: serving as long as the door is open. An outage of the store is none of ours:
//! what is asked is still answered by policy.

use std::time::Duration;

use tokio::sync::watch;
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::Envoy;
use super::rls::rate_limit_service_server::RateLimitServiceServer;

/// What the health service says, of the whole and of Envoy's service.
#[derive(Clone)]
pub(crate) struct Health(HealthReporter);

impl Health {
    pub(crate) async fn serving() -> Health {
        let health = Health(HealthReporter::new());
        health.say(ServingStatus::Serving).await;
        health
    }

    pub(super) fn service(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.0.clone()))
    }

    /// At `stop` says that we are leaving, and after a while ends the streams of those who watch,
    /// which would hold their connections open.
    pub(crate) async fn follow(mut self, mut stop: watch::Receiver<bool>, linger: Duration) {
        // The sender lives as long as the process.
        drop(stop.wait_for(|stop| *stop).await);
        self.say(ServingStatus::NotServing).await;
        tokio::time::sleep(linger).await;
        for name in NAMES {
            self.0.clear_service_status(name).await;
        }
    }

    async fn say(&self, status: ServingStatus) {
        for name in NAMES {
            self.0.set_service_status(name, status).await;
        }
    }
}

const NAMES: [&str; 2] = ["", <RateLimitServiceServer<Envoy> as NamedService>::NAME];
