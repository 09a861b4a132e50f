//! `[server.grpc]`: timeout, outage answer, headers and metadata of Envoy's gRPC API.

use std::time::Duration;

use spillgate::http::HeaderStyle;

use super::value;

/// The settings of Envoy's gRPC API.
#[derive(Clone, Copy)]
pub(crate) struct Envoy {
    /// The longest wait for the store.
    pub(crate) timeout: Duration,
    pub(crate) on_outage_deny: OnOutageDeny,
    pub(crate) headers: HeaderStyle,
    /// Whether answers carry dynamic metadata.
    pub(crate) dynamic_metadata: bool,
}

impl Default for Envoy {
    fn default() -> Self {
        Envoy {
            timeout: TIMEOUT,
            on_outage_deny: OnOutageDeny::default(),
            headers: HeaderStyle::default(),
            dynamic_metadata: false,
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

/// Parses the style of header fields.
pub fn headers(text: &str) -> Result<HeaderStyle, String> {
    value::choice(text, &HeaderStyle::ALL.map(|style| (style.name(), style)))
}

pub const ON_OUTAGE_DENY: [(&str, OnOutageDeny); 2] =
    [("over-limit", OnOutageDeny::OverLimit), ("unavailable", OnOutageDeny::Unavailable)];

/// Less than the 20 ms that Envoy waits by default, of which the network takes some.
const TIMEOUT: Duration = Duration::from_millis(15);
