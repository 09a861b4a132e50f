//! Trace spans of calls to the store.

use tracing::{Span, debug_span};

/// Makes the span of one call to a server, which lasts until the reply, including the wait in the queue.
pub fn call(server: &str, decisions: usize) -> Span {
    debug_span!(
        target: "spillgate",
        "store",
        otel.kind = "client",
        db.system.name = "redis",
        server.address = server,
        spillgate.decisions = decisions,
    )
}
