//! `[server.grpc]`: what Envoy's gRPC API does besides listening.

use std::time::Duration;

use spillgate::HeaderStyle;

/// The settings of Envoy's gRPC API.
#[derive(Clone, Copy)]
pub(crate) struct Envoy {
    /// How long the store may take.
    pub(crate) timeout: Duration,
    pub(crate) on_outage_deny: OnOutageDeny,
    pub(crate) headers: HeaderStyle,
}

impl Default for Envoy {
    fn default() -> Self {
        Envoy {
            timeout: TIMEOUT,
            on_outage_deny: OnOutageDeny::default(),
            headers: HeaderStyle::default(),
        }
    }
}

/// The answer to Envoy if a rule denies because the store is out of reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnOutageDeny {
    /// `OVER_LIMIT`: nothing passes.
    #[default]
    OverLimit,
    /// An error: Envoy's `failure_mode_deny` decides.
    Unavailable,
}

/// Envoy waits 20 ms for us unless told otherwise, and the ways there and back take some of it.
const TIMEOUT: Duration = Duration::from_millis(15);
