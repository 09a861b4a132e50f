//! What is settled when an answer has ended: at the end of its body, or when whoever waited goes away.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::response::Parts;

use crate::engine::Engine;
use crate::limiter::Limiter;
use crate::reservation::{Receipt, ReservationError, Reserve, Usage};

/// What became of a request that was admitted.
#[derive(Clone, Debug, Default)]
pub struct Served {
    head: Option<Parts>,
    bytes: u64,
    whole: bool,
}

/// How what a request really used is told from its answer.
#[derive(Clone)]
pub(super) struct Settle {
    pub(super) reserve: Reserve<'static>,
    pub(super) usage: Arc<UsageOf>,
}

type UsageOf = dyn Fn(&Served) -> Usage<'static> + Send + Sync;

/// What is still to be settled; it is, as soon as this is dropped.
pub(super) struct Unsettled {
    limiter: Limiter,
    receipt: Option<Receipt>,
    settle: Option<Settle>,
    served: Served,
}

impl Served {
    /// The head of the answer, with what the service has left in its extensions; none if there was no
    /// answer, because the service failed or nobody waited for it.
    pub fn head(&self) -> Option<&Parts> {
        self.head.as_ref()
    }

    /// How many bytes of the body were sent.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether that was all of it.
    pub fn is_whole(&self) -> bool {
        self.whole
    }
}

impl Unsettled {
    /// What a receipt is to be settled by; without a way to tell what was used, its slots are released.
    pub(super) fn new(limiter: Limiter, receipt: Receipt, settle: Option<Settle>) -> Unsettled {
        Unsettled { limiter, receipt: Some(receipt), settle, served: Served::default() }
    }

    pub(super) fn answered(&mut self, head: &Parts) {
        self.served.head = Some(head.clone());
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        self.served.bytes += bytes as u64;
    }

    pub(super) fn ended(&mut self) {
        self.served.whole = true;
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        let Some(receipt) = self.receipt.take() else { return };
        let usage = self.settle.take().map(|settle| (settle.usage)(&self.served));
        let limiter = self.limiter.clone();
        let in_memory = matches!(limiter.engine(), Engine::Memory(_));
        let settling = settle(limiter, receipt, usage);
        if in_memory {
            // There is nothing to wait for.
            let done = pin!(settling).poll(&mut Context::from_waker(Waker::noop()));
            debug_assert!(matches!(done, Poll::Ready(())));
        } else if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // Without one the process is about to end, and what was reserved ends by itself.
            runtime.spawn(settling);
        }
    }
}

/// Tries again for a while: what is not settled stays charged at its estimate, and slots until they end.
async fn settle(limiter: Limiter, receipt: Receipt, usage: Option<Usage<'static>>) {
    let mut wait = FIRST_WAIT;
    for _ in 0..TRIES {
        let settled = match &usage {
            Some(usage) => limiter.settle(&receipt, usage).await,
            None => limiter.release(&receipt).await,
        };
        match settled {
            Err(ReservationError::Retryable { .. }) => tokio::time::sleep(wait).await,
            // Whoever has settled it before, the service perhaps, knew better.
            Ok(_) | Err(_) => return,
        }
        wait *= 2;
    }
    tracing::warn!(
        "the store was out of reach for long: what a request reserved stays as estimated"
    );
}

impl fmt::Debug for Unsettled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unsettled").field("served", &self.served).finish_non_exhaustive()
    }
}

/// With this and the doubling, some fifty seconds in all.
const TRIES: u32 = 10;
const FIRST_WAIT: Duration = Duration::from_millis(50);
