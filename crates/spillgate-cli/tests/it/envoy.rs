//! Envoy's rate limit service, called over real sockets.

mod agentgateway;
pub(crate) mod client;
pub(crate) mod connections;
mod contract;
mod floods;
mod grpcio;
mod outage;
