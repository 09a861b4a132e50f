//! Settles reservations when a response has ended: at the end of its body, or when its client
//! disconnects.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::response::Parts;

use crate::limiter::Limiter;
use crate::reservation::{Receipt, ReservationError, Reserve, Usage};

/// The outcome of an admitted request.
///
/// [`RateLimitLayer::settle`](super::RateLimitLayer::settle) takes a closure over it.
#[derive(Clone, Debug, Default)]
pub struct Served {
    head: Option<Parts>,
    bytes: u64,
    whole: bool,
}

/// The terms of a reservation, and the function that returns the true usage.
#[derive(Clone)]
pub(crate) struct Settle {
    pub(crate) reserve: Reserve<'static>,
    pub(crate) usage: Arc<UsageOf>,
}

type UsageOf = dyn Fn(&Served) -> Usage<'static> + Send + Sync;

/// A reservation to be settled, which happens when this is dropped.
pub(crate) struct Unsettled {
    limiter: Limiter,
    receipt: Option<Receipt>,
    settle: Option<Settle>,
    served: Served,
    /// The length of the body in bytes, if it is known before the first byte.
    length: Option<u64>,
    /// Whether the body has reported its end, which it also does to a caller that cannot change it.
    has_ended: AtomicBool,
}

impl Served {
    /// Returns the head of the response, with data that the service left in its extensions. Returns
    /// `None` if there was no response, because the service failed or the client disconnected.
    pub fn head(&self) -> Option<&Parts> {
        self.head.as_ref()
    }

    /// Returns the number of body bytes that were sent.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether the whole body was sent.
    pub fn is_whole(&self) -> bool {
        self.whole
    }
}

impl Unsettled {
    /// Makes a receipt be settled on drop. Without `settle` its permits are released.
    pub(crate) fn new(limiter: Limiter, receipt: Receipt, settle: Option<Settle>) -> Unsettled {
        Unsettled {
            limiter,
            receipt: Some(receipt),
            settle,
            served: Served::default(),
            length: None,
            has_ended: AtomicBool::new(false),
        }
    }

    /// Leaves the permits held until their limits' `max_hold`.
    pub(crate) fn keep(mut self) {
        self.receipt = None;
    }

    pub(crate) fn answered(&mut self, head: &Parts) {
        let length = head.headers.get(http::header::CONTENT_LENGTH);
        self.length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        self.served.head = Some(head.clone());
    }

    /// Notes the length of the body before its first byte. That of the head counts before it.
    pub(crate) fn announced(&mut self, length: Option<u64>) {
        if self.served.bytes == 0 {
            self.length = self.length.or(length);
        }
    }

    pub(crate) fn sent(&mut self, bytes: usize) {
        self.served.bytes += bytes as u64;
    }

    pub(crate) fn ended(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Notes that the body broke off. Then it is not whole, whatever its length.
    pub(crate) fn failed(&mut self) {
        self.length = None;
        *self.has_ended.get_mut() = false;
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        let Some(receipt) = self.receipt.take() else { return };
        // A server drops a body of known length after its last byte, without another poll.
        let is_complete = self.length == Some(self.served.bytes);
        self.served.whole = *self.has_ended.get_mut() || is_complete;
        let usage = self.settle.take().map(|settle| (settle.usage)(&self.served));
        let limiter = self.limiter.clone();
        let in_memory = limiter.inner.engine.is_memory();
        let settling = settle(limiter, receipt, usage);
        if in_memory {
            // The memory engine never waits.
            let done = pin!(settling).poll(&mut Context::from_waker(Waker::noop()));
            debug_assert!(matches!(done, Poll::Ready(())));
        } else if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // Without a runtime the process is about to end, and the reservation expires by itself.
            runtime.spawn(settling);
        }
    }
}

/// Settles with retries. If all fail, the reservation stays charged at its estimate, and permits
/// are held until they end.
async fn settle(limiter: Limiter, receipt: Receipt, usage: Option<Usage<'static>>) {
    let mut wait = FIRST_WAIT;
    for _ in 0..TRIES {
        let settled = match &usage {
            Some(usage) => limiter.settle(&receipt, usage).await,
            None => limiter.release(&receipt).await,
        };
        match settled {
            Err(ReservationError::Retryable { .. }) => tokio::time::sleep(wait).await,
            // The reservation may have been settled already, for example by the service. That
            // settlement stays.
            Ok(_) | Err(_) => return,
        }
        wait *= 2;
    }
    tracing::warn!(
        target: "spillgate",
        "a reservation could not be settled while the store was down; it stays charged at its estimate"
    );
}

impl fmt::Debug for Unsettled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unsettled").field("served", &self.served).finish_non_exhaustive()
    }
}

/// With the doubling waits, about 50 seconds in all.
const TRIES: u32 = 10;
const FIRST_WAIT: Duration = Duration::from_millis(50);
