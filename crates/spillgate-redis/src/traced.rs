//! Trace spans of calls to the store.

use tracing::{Instrument, debug_span};

/// Runs one call to a server in a span that lasts until the reply, including the wait in the queue.
pub(super) async fn call<T>(server: &str, decisions: usize, call: impl Future<Output = T>) -> T {
    let span = debug_span!(
        target: "spillgate",
        "store",
        otel.kind = "client",
        db.system.name = "redis",
        server.address = server,
        spillgate.decisions = decisions,
    );
    // Most calls are not traced; they skip entering and leaving the span at each poll.
    if span.is_disabled() { call.await } else { call.instrument(span).await }
}
