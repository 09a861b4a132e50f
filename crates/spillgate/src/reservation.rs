//! Reservations: charge an estimate now, and settle it when the real cost is known.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use spillgate::reservation::{Reserve, Usage};
//! use spillgate::{Limit, Limiter, Request};
//!
//! let limiter = Limiter::builder().build().await.unwrap();
//! let request = Request::keyed("team:7", Limit::per_day(10_000)).costing(1_500);
//! let reserved = limiter.reserve(&request, &Reserve::default()).await.unwrap();
//!
//! // The call used less than was reserved: the rest is free again.
//! let receipt = reserved.receipt().expect("allowed, so there is a receipt");
//! limiter.settle(receipt, &Usage::from(420)).await.unwrap();
//! assert_eq!(limiter.peek(&request).await.remaining(), Some(9_580));
//! # });
//! ```
//!
//! [`Limiter::cancel`](crate::Limiter::cancel) frees all of it. Without either call the estimate stays charged.

use std::borrow::Cow;
use std::time::Duration;

pub(crate) use spillgate_core::reservation::*;
pub use spillgate_core::{EndResult, Ended, Receipt, ReceiptError, ReservationError, Usage};

/// The terms of a reservation: its duration and, optionally, its id.
///
/// ```
/// use std::time::Duration;
/// use spillgate::reservation::Reserve;
/// let by_job = Reserve::lasting(Duration::from_secs(30)).under("job-4711");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve<'a> {
    lasting: Duration,
    name: Option<Cow<'a, str>>,
}

impl<'a> Reserve<'a> {
    /// Makes a reservation that can be settled for `lasting`, from 1 ms to 24 hours.
    ///
    /// After that it stays charged at its estimate. Permits end with their limit's `max_hold`,
    /// unless renewed.
    pub fn lasting(lasting: Duration) -> Reserve<'a> {
        Reserve { lasting, name: None }
    }

    /// Gives the reservation an id of your own, unique within its domain, so that you can repeat
    /// the call.
    ///
    /// A repeated call gets the same answer and charges nothing, while the reservation is open and
    /// its permits are held. Once it has ended, the call returns [`ReservationError::Ended`], and a
    /// new attempt needs a new id. Without an id, a reservation whose answer was lost cannot be
    /// settled.
    pub fn under(self, name: impl Into<Cow<'a, str>>) -> Reserve<'a> {
        Reserve { name: Some(name.into()), ..self }
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(crate) fn lasting_us(&self) -> Result<u64, ReservationError> {
        lasting_us(self.lasting)
    }
}

/// A duration of one minute, without an id.
impl Default for Reserve<'_> {
    fn default() -> Self {
        Reserve::lasting(Duration::from_secs(60))
    }
}
