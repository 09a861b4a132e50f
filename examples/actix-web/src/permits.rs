//! Permits of concurrency limits, which are held until the response has ended.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::rt;
use actix_web::web::Bytes;
use spillgate::Limiter;
use spillgate::reservation::Receipt;

/// Releases permits when it is dropped: also if the client disconnects before the response.
pub struct Permits {
    limiter: Limiter,
    receipt: Receipt,
}

/// A body that holds permits until it was sent.
pub struct Holding {
    pub body: BoxBody,
    pub _permits: Permits,
}

impl Permits {
    pub fn new(limiter: &Limiter, receipt: &Receipt) -> Permits {
        Permits { limiter: limiter.clone(), receipt: receipt.clone() }
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        let (limiter, receipt) = (self.limiter.clone(), self.receipt.clone());
        // A permit that cannot be released ends by itself, after `max_hold`.
        rt::spawn(async move { drop(limiter.release(&receipt).await) });
    }
}

impl MessageBody for Holding {
    type Error = Box<dyn Error>;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(context)
    }
}
