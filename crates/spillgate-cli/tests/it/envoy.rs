//! Envoy's rate limit service, asked over real sockets.

pub(crate) mod client;
mod connections;
mod contract;
mod floods;
mod grpcio;
mod outage;
