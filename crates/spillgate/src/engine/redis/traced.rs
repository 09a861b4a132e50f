//! What traces tell of the store.

use tracing::{Span, debug_span};

/// One call to a server: until its answer, the wait for company included.
pub(super) fn call(server: &str, decisions: usize) -> Span {
    debug_span!(
        target: "spillgate",
        "store",
        otel.kind = "client",
        db.system.name = "redis",
        server.address = server,
        spillgate.decisions = decisions,
    )
}
