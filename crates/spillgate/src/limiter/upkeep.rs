//! What a limiter with a store does by itself, once a second: it says that it lives, and pays what
//! it owes.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Inner;
use crate::engine::{Engine, jittered};

/// Begins; ends with the last clone of the limiter.
pub(super) fn begin(inner: &Arc<Inner>) {
    if matches!(inner.engine, Engine::Redis(_)) {
        tokio::spawn(keep_up(Arc::downgrade(inner)));
    }
}

async fn keep_up(inner: Weak<Inner>) {
    while let Some(inner) = inner.upgrade() {
        if let Engine::Redis(redis) = &inner.engine {
            redis.sample_clocks().await;
            if let Some(live) = redis.heartbeat().await {
                inner.fallback.note_live_nodes(live);
            }
            inner.fallback.repay(redis).await;
        }
        drop(inner);
        tokio::time::sleep(ROUND + jittered(JITTER)).await;
    }
}

/// With the jitter, a second at most between two heartbeats of a process.
const ROUND: Duration = Duration::from_millis(800);
const JITTER: Duration = Duration::from_millis(200);
