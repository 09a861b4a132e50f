//! `[server.grpc]`: timeout, outage answer and headers of Envoy's gRPC API.

use std::time::Duration;

use spillgate::http::HeaderStyle;

/// The settings of Envoy's gRPC API.
#[derive(Clone, Copy)]
pub(crate) struct Envoy {
    /// The longest wait for the store.
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

/// The answer to Envoy if a rule denies because the store is unreachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnOutageDeny {
    /// `OVER_LIMIT`: nothing passes.
    #[default]
    OverLimit,
    /// An error: Envoy's `failure_mode_deny` decides.
    Unavailable,
}

pub(super) const ON_OUTAGE_DENY: [(&str, OnOutageDeny); 2] =
    [("over-limit", OnOutageDeny::OverLimit), ("unavailable", OnOutageDeny::Unavailable)];

/// Less than the 20 ms that Envoy waits by default, of which the network takes some.
const TIMEOUT: Duration = Duration::from_millis(15);
