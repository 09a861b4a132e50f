//! Reservations through a limiter: opening, settling, cancelling, releasing and renewing them.

use std::sync::Arc;
use std::time::Duration;

use super::bound::BoundRequest;
use super::{Inner, Limiter};
use crate::decision::Decision;
use crate::engine::Engine;
use crate::limit::Limit;
use crate::plan::PlanMode;
use crate::request::{Cost, Request};
use crate::reservation::{
    EndResult, Ending, Opening, Receipt, ReservationError, Reserve, Usage, lasting_us, random_id,
};
use crate::subject::{Encoding, Secret};

impl Limiter {
    /// Charges an estimate that you settle when the true cost is known. The request's cost is the
    /// estimate.
    ///
    /// An allowed decision has a receipt ([`Decision::receipt`]). If no rule matches, the receipt
    /// is empty, and each call with it returns [`EndResult::Done`].
    ///
    /// In memory a decision is denied as [`Reason::Overloaded`](crate::Reason::Overloaded) if there
    /// is no room for its record, or for a counter of a new subject. All records have 256 MiB, one
    /// subject a hundredth of that.
    ///
    /// A request that refunds is charged nothing, so its receipt settles nothing. A repeated call
    /// with the same id refunds nothing more.
    ///
    /// A shadow rule whose counters are on another server than every enforced counter keeps the
    /// estimate. So does a post-paid rule that is charged by force.
    ///
    /// # Errors
    /// Returns [`ReservationError`] if the id is in use for another request or its reservation has
    /// ended, if the duration is invalid, or if the counters lie at too many locations.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use spillgate::reservation::{EndResult, Reserve, Usage};
    /// use spillgate::{Cost, Limiter, Policy, Request};
    ///
    /// let policy = Policy::from_toml(r#"
    ///     [[rule]]
    ///     name = "model"
    ///     key = ["user"]
    ///     limits = [{ quota = "10000/minute", unit = "tokens" }]
    /// "#).unwrap();
    /// let limiter = Limiter::builder().policy(policy).build().await.unwrap();
    /// let request = Request::new().with("user", "ada").costing(Cost::of_unit("tokens", 4_000));
    ///
    /// let reserve = Reserve::lasting(Duration::from_secs(30));
    /// let decision = limiter.reserve(&request, &reserve).await.unwrap();
    /// assert_eq!((decision.allowed(), decision.remaining()), (true, Some(6_000)));
    ///
    /// let receipt = decision.receipt().unwrap();
    /// let used = Usage::of_unit("tokens", 512);
    /// assert_eq!(limiter.settle(receipt, &used).await, Ok(EndResult::Done));
    /// assert_eq!(limiter.settle(receipt, &used).await, Ok(EndResult::Repeated));
    /// assert!(limiter.peek(&request).await.remaining() >= Some(9_488));
    /// # });
    /// ```
    pub async fn reserve(
        &self,
        request: &Request<'_>,
        reserve: &Reserve<'_>,
    ) -> Result<Decision, ReservationError> {
        let opening = self.inner.opening_for(request, reserve)?;
        let bound = self.inner.bind(request);
        Box::pin(self.inner.reserve(bound, Arc::new(opening))).await
    }

    /// Settles a reservation by its true usage.
    ///
    /// Unused quota is refunded as far as that mints none. Usage beyond the estimate is charged by
    /// force, up to twice a capacity. Permits are released. A unit that `usage` does not name was
    /// used as estimated.
    ///
    /// # Errors
    /// Returns [`ReservationError::Retryable`] if a shard is out of reach; the call is safe to
    /// repeat. Returns [`ReservationError::EndedOtherwise`] if the reservation has ended another
    /// way.
    pub async fn settle(
        &self,
        receipt: &Receipt,
        usage: &Usage<'_>,
    ) -> Result<EndResult, ReservationError> {
        self.inner.end(receipt, &Ending::Settle(usage)).await
    }

    /// Cancels a reservation and refunds all of it. Its errors are those of [`Limiter::settle`].
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::reservation::{EndResult, Reserve};
    /// use spillgate::{Limit, Limiter, Request};
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// let request = Request::keyed("user:42", Limit::per_day(100)).costing(60);
    /// let reserved = limiter.reserve(&request, &Reserve::default()).await.unwrap();
    /// assert_eq!(reserved.remaining(), Some(40));
    ///
    /// assert_eq!(limiter.cancel(reserved.receipt().unwrap()).await, Ok(EndResult::Done));
    /// assert_eq!(limiter.peek(&request).await.remaining(), Some(100));
    /// # });
    /// ```
    pub async fn cancel(&self, receipt: &Receipt) -> Result<EndResult, ReservationError> {
        self.inner.end(receipt, &Ending::Cancel).await
    }

    /// Releases the permits of a reservation, or of a [`check`](Limiter::check) over a concurrency
    /// limit.
    ///
    /// Other limits stay charged as estimated. Its errors are those of [`Limiter::settle`].
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use spillgate::reservation::EndResult;
    /// use spillgate::{Limit, Limiter, Request};
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// let job = Request::keyed("jobs", Limit::concurrent(1, Duration::from_secs(30)));
    /// let started = limiter.check(&job).await;
    /// assert!(!limiter.check(&job).await.allowed(), "the only permit is held");
    ///
    /// assert_eq!(limiter.release(started.receipt().unwrap()).await, Ok(EndResult::Done));
    /// assert!(limiter.check(&job).await.allowed());
    /// # });
    /// ```
    pub async fn release(&self, receipt: &Receipt) -> Result<EndResult, ReservationError> {
        self.inner.end(receipt, &Ending::Release).await
    }

    /// Extends a reservation: permits are held, and it can be settled, for `lasting` from now.
    ///
    /// Permits are held at most for their limit's `max_hold`. Neither time is ever shortened. A
    /// lost permit is not taken again; then the result is [`EndResult::Expired`]. The errors are
    /// those of [`Limiter::settle`].
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use spillgate::reservation::EndResult;
    /// use spillgate::{Limit, Limiter, Request};
    ///
    /// let limiter = Limiter::builder().build().await.unwrap();
    /// let job = Request::keyed("jobs", Limit::concurrent(1, Duration::from_secs(30)));
    /// let started = limiter.check(&job).await;
    /// let renewed = limiter.renew(started.receipt().unwrap(), Duration::from_secs(20)).await;
    /// assert_eq!(renewed, Ok(EndResult::Done));
    /// # });
    /// ```
    pub async fn renew(
        &self,
        receipt: &Receipt,
        lasting: Duration,
    ) -> Result<EndResult, ReservationError> {
        let for_us = lasting_us(lasting)?;
        self.inner.end(receipt, &Ending::Renew { for_us }).await
    }
}

impl Inner {
    /// Makes the record of a reservation. Its body has everything that a repeated call must repeat.
    fn opening_for(
        &self,
        request: &Request<'_>,
        reserve: &Reserve<'_>,
    ) -> Result<Opening, ReservationError> {
        let mut body = Encoding::new();
        match request.inline_limit() {
            None => encode_attributes(request, &mut body),
            Some((key, limit)) => {
                body.part(b"#key");
                body.part(request.domain().as_bytes());
                body.part(key.as_bytes());
                encode_limit(limit, &mut body);
            }
        }
        encode_cost(request.cost(), &mut body);
        // No unit of a cost begins so.
        if let Some(limit) = request.request_limit() {
            body.part(b"#narrowed");
            encode_limit(limit, &mut body);
        }
        if request.refunds() {
            body.part(b"#refund");
        }
        let lasting_us = reserve.lasting_us()?;
        body.part(&lasting_us.to_le_bytes());
        let body = self.secret.hash(&body);
        Ok(match reserve.name() {
            Some(name) => {
                let id = reservation_id(&self.secret, request.domain(), name);
                Opening::new(id, body, lasting_us).named()
            }
            None => Opening::new(random_id(), body, lasting_us),
        })
    }

    async fn reserve(
        &self,
        bound: BoundRequest<'_, '_>,
        opening: Arc<Opening>,
    ) -> Result<Decision, ReservationError> {
        let began = self.metrics.begin();
        let mut plan = self.plan(&bound, PlanMode::Charge);
        plan.open(Arc::clone(&opening));
        let evaluated = match &self.engine {
            Engine::Memory(_) => self.evaluate(plan, bound.policy(), None).await,
            Engine::Redis(store) => store.reserve(plan, &opening, bound.policy()).await?,
        };
        self.metrics.end(began);
        // A rejected call is no decision, so this comes before the answer, which counts it.
        evaluated.plan.check_record()?;
        Ok(self.answer(&bound, evaluated))
    }

    async fn end(
        &self,
        receipt: &Receipt,
        ending: &Ending<'_>,
    ) -> Result<EndResult, ReservationError> {
        let Some(contents) = self.receipts.open(receipt) else { return Ok(EndResult::Unknown) };
        if contents.groups.is_empty() && contents.node.is_none() {
            // Nothing was charged, so nothing can be settled.
            return Ok(EndResult::Done);
        }
        let outcome = self.engine.end(contents, ending).await?;
        match ending {
            _ if outcome != EndResult::Done => {}
            Ending::Renew { .. } => {}
            // Permits alone are free again, and their denials are not remembered.
            Ending::Release => self.waiting.note_room(),
            Ending::Settle(_) | Ending::Cancel | Ending::Undo => self.note_room(),
        }
        Ok(outcome)
    }
}

/// Hashes the client's name for a reservation with the secret, as subjects are.
fn reservation_id(secret: &Secret, domain: &str, name: &str) -> u128 {
    let mut encoding = Encoding::new();
    [b"#reservation".as_slice(), domain.as_bytes(), name.as_bytes()]
        .iter()
        .for_each(|part| encoding.part(part));
    secret.hash(&encoding)
}

fn encode_attributes(request: &Request<'_>, body: &mut Encoding) {
    body.part(b"#request");
    body.part(request.domain().as_bytes());
    let mut attributes: Vec<_> = request.attributes().collect();
    attributes.sort_unstable();
    body.part(&(attributes.len() as u64).to_le_bytes());
    for (name, value) in attributes {
        body.part(name.as_bytes());
        body.part(value);
    }
}

fn encode_limit(limit: &Limit, body: &mut Encoding) {
    body.part(format!("{limit} {} {}", limit.algorithm(), limit.unit()).as_bytes());
}

fn encode_cost(cost: &Cost<'_>, body: &mut Encoding) {
    let mut amounts: Vec<(&str, u64)> = cost.amounts().collect();
    amounts.sort_unstable();
    for (unit, amount) in amounts {
        body.part(unit.as_bytes());
        body.part(&amount.to_le_bytes());
    }
}
