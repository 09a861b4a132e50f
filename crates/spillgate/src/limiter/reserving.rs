//! Reservations through a limiter: what is asked of the engine, and what becomes of a receipt.

use std::sync::Arc;
use std::time::Duration;

use super::{Inner, Limiter, Question, in_memory};
use crate::algorithm::Intent;
use crate::decision::{Decision, Names};
use crate::engine::{AtRecord, Engine, Memory};
#[cfg(feature = "redis")]
use crate::engine::{Redis, decide};
#[cfg(feature = "redis")]
use crate::fallback::Alone;
use crate::limit::NamedLimit;
use crate::plan::{Asking, Plan};
use crate::request::{Cost, Request};
use crate::reservation::{
    Answer, Contents, Ending, Noted, Opening, Outcome, Receipt, ReservationError, Reserve, Usage,
    lasting_us, random_id,
};
#[cfg(feature = "redis")]
use crate::reservation::{kept::KeptTier, record::Charged};
use crate::subject::{Encoding, Secret};

impl Limiter {
    /// Charges an estimate, to be put right when the true cost is known. The request's cost is the
    /// estimate; an allowed decision has a receipt ([`Decision::receipt`]), unless nothing was charged.
    ///
    /// A shadow rule that lives on another server than all that is enforced keeps its estimate, and so
    /// does what a post-paid rule is charged by force.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use spillgate::{Cost, Limiter, Outcome, Policy, Request, Reserve, Usage};
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
    /// let used = Usage::of("tokens", 512);
    /// assert_eq!(limiter.settle(receipt, &used).await, Ok(Outcome::Done));
    /// assert_eq!(limiter.settle(receipt, &used).await, Ok(Outcome::Repeated));
    /// assert!(limiter.peek(&request).await.remaining() >= Some(9_488));
    /// # });
    /// ```
    pub async fn reserve(
        &self,
        request: &Request<'_>,
        reserve: &Reserve<'_>,
    ) -> Result<Decision, ReservationError> {
        let opening = self.inner.opening_for_request(request, reserve)?;
        let policy = self.inner.policy.load_full();
        let plan = Plan::of_request(&policy, request, &self.inner.secret, Asking::ToCharge);
        let names = Names::Policy(Arc::clone(&policy));
        Box::pin(self.inner.reserve(plan, names, &opening)).await
    }

    /// The same for a request, or for a key with a limit of its own.
    pub async fn reserve_for(
        &self,
        question: &Question<'_>,
        reserve: &Reserve<'_>,
    ) -> Result<Decision, ReservationError> {
        let (domain, key, limit, cost) = match question {
            Question::Request(request) => return self.reserve(request, reserve).await,
            Question::AdHoc { domain, key, limit, cost } => (domain, key, limit, cost),
        };
        let mut body = Encoding::new();
        let limit_text = format!("{limit} {} {}", limit.algorithm(), limit.unit());
        [b"#key".as_slice(), domain.as_bytes(), key.as_bytes(), limit_text.as_bytes()]
            .iter()
            .for_each(|part| body.part(part));
        encode_cost(cost, &mut body);
        let opening = self.inner.opening(domain, body, reserve)?;
        let named = NamedLimit::new(limit.clone(), 0);
        let keys = self.inner.secret.each().map(|secret| secret.ad_hoc_key_in(domain, key));
        let plan = Plan::ad_hoc(keys, &named, cost);
        let names = Names::AdHoc(limit.clone());
        Box::pin(self.inner.reserve(plan, names, &opening)).await
    }

    /// Puts a reservation right: what was not used is given back as far as that mints nothing, what was
    /// used beyond the estimate is charged whatever the limits say, twice a capacity at most, and slots
    /// end. A unit that `usage` does not name was used as estimated.
    pub async fn settle(
        &self,
        receipt: &Receipt,
        usage: &Usage<'_>,
    ) -> Result<Outcome, ReservationError> {
        self.inner.end(receipt, &Ending::Settle(usage)).await
    }

    /// Gives all of a reservation back: it came to nothing.
    pub async fn cancel(&self, receipt: &Receipt) -> Result<Outcome, ReservationError> {
        self.inner.end(receipt, &Ending::Cancel).await
    }

    /// Ends the slots of a reservation, or of a [`check`](Limiter::check) over a concurrency limit; the
    /// rest was used as estimated.
    pub async fn release(&self, receipt: &Receipt) -> Result<Outcome, ReservationError> {
        self.inner.end(receipt, &Ending::Release).await
    }

    /// Holds slots for so long from now, their limit's `hold` at most, and lets the reservation be
    /// settled until then; neither is ever made shorter. Slots that were lost are not taken again:
    /// that is [`Outcome::Expired`].
    pub async fn renew(
        &self,
        receipt: &Receipt,
        lasting: Duration,
    ) -> Result<Outcome, ReservationError> {
        let for_us = lasting_us(lasting)?;
        self.inner.end(receipt, &Ending::Renew { for_us }).await
    }
}

impl Inner {
    fn opening_for_request(
        &self,
        request: &Request<'_>,
        reserve: &Reserve<'_>,
    ) -> Result<Opening, ReservationError> {
        let mut body = Encoding::new();
        body.part(b"#request");
        body.part(request.domain().as_bytes());
        let mut attributes: Vec<_> = request.attributes().collect();
        attributes.sort_unstable();
        body.part(&(attributes.len() as u64).to_le_bytes());
        for (name, value) in attributes {
            body.part(name.as_bytes());
            body.part(value);
        }
        encode_cost(request.cost(), &mut body);
        self.opening(request.domain(), body, reserve)
    }

    fn opening(
        &self,
        domain: &str,
        mut body: Encoding,
        reserve: &Reserve<'_>,
    ) -> Result<Opening, ReservationError> {
        let lasting_us = reserve.lasting_us()?;
        body.part(&lasting_us.to_le_bytes());
        let id = reserve.name().map_or_else(random_id, |name| id_of(&self.secret, domain, name));
        Ok(Opening::new(id, self.secret.hash(&body), lasting_us))
    }

    async fn reserve<'p>(
        &self,
        mut plan: Plan<'p>,
        names: Names,
        opening: &'p Opening,
    ) -> Result<Decision, ReservationError> {
        plan.open(opening);
        match &self.engine {
            Engine::Memory(memory) => {
                let began = self.metrics.begin();
                let judged = in_memory(memory, plan);
                self.metrics.end(began);
                let noted = sound(opening.noted())?;
                Ok(self.with_receipt(self.decision(judged, names), opening.id, noted, None))
            }
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => self.reserve_in(redis, plan, names, opening).await,
        }
    }

    /// A check of slots, in memory: it has a receipt.
    pub(super) fn hold_now<'p>(
        &self,
        memory: &Memory,
        mut plan: Plan<'p>,
        names: Names,
        opening: &'p Opening,
    ) -> Decision {
        plan.open(opening);
        let judged = in_memory(memory, plan);
        self.with_receipt(self.decision(judged, names), opening.id, opening.noted(), None)
    }

    /// How long the slots of a plan are held at most, if it has any and there is room for their record.
    pub(super) fn holds_with_receipt(&self, plan: &Plan<'_>) -> Option<u64> {
        let hold_us = plan.holds_slots_us()?;
        let has_room = match &self.engine {
            Engine::Memory(memory) => memory.has_room_for_record(),
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => redis.has_receipt_for(&plan.ask),
        };
        has_room.then_some(hold_us)
    }

    /// What an allowed decision is settled by, if there is anything to settle.
    pub(super) fn with_receipt(
        &self,
        decision: Decision,
        id: u128,
        noted: Noted,
        node: Option<u64>,
    ) -> Decision {
        if !decision.allowed() || (noted.groups.is_empty() && node.is_none()) {
            return decision;
        }
        decision.with_receipt(self.receipts.receipt(Contents { id, node, groups: noted.groups }))
    }

    async fn end(
        &self,
        receipt: &Receipt,
        ending: &Ending<'_>,
    ) -> Result<Outcome, ReservationError> {
        let Some(contents) = self.receipts.open(receipt) else { return Ok(Outcome::Unknown) };
        let outcome = match &self.engine {
            Engine::Memory(memory) => match memory.close(contents.id, ending, |_, _| {}) {
                Answer::Told(outcome) => outcome,
                Answer::EndedOtherwise => return Err(ReservationError::EndedOtherwise),
            },
            #[cfg(feature = "redis")]
            Engine::Redis(redis) => Box::pin(self.end_in(redis, contents, ending)).await?,
        };
        if outcome == Outcome::Done {
            self.note_room();
        }
        Ok(outcome)
    }
}

/// Where state is on a store.
#[cfg(feature = "redis")]
impl Inner {
    async fn reserve_in(
        &self,
        redis: &Redis,
        plan: Plan<'_>,
        names: Names,
        opening: &Opening,
    ) -> Result<Decision, ReservationError> {
        if let Some(alone) = self.fallback.alone(opening) {
            return self.reserved_alone(redis, plan, names, alone, opening).await;
        }
        let places = redis.places(&plan.ask);
        if places > crate::reservation::GROUPS_MAX {
            return Err(ReservationError::TooManyPlaces { places });
        }
        let decision = self.open_in(redis, plan, names, opening).await;
        sound(opening.noted())?;
        Ok(decision)
    }

    /// Decides a plan that opens records, on the store or, where that is out of reach, here.
    pub(super) async fn open_in(
        &self,
        redis: &Redis,
        mut plan: Plan<'_>,
        names: Names,
        opening: &Opening,
    ) -> Decision {
        if !plan.asks() {
            return self.decision(plan.judged, names);
        }
        let began = self.metrics.begin();
        let sent = self.denials.begin(redis);
        let dues = std::mem::take(&mut plan.dues);
        let question = self.fallback.question(&mut plan);
        let Ok(heard) = decide(redis, &question).await;
        self.fallback.settle(&question, &heard);
        self.denials.note(redis, question.ask, &heard, sent);
        let charged_here = self.fallback.charged_here(&question, &heard);
        drop(question);
        let mut judged = plan.judged_from(&heard);
        self.settle_dues(redis, dues, &mut judged).await;
        self.metrics.end(began);
        self.receipted(redis, self.decision(judged, names), opening, charged_here)
    }

    /// A decision with its receipt; what was charged here has a record here.
    pub(super) fn receipted(
        &self,
        redis: &Redis,
        decision: Decision,
        opening: &Opening,
        charged_here: Vec<(KeptTier, Charged)>,
    ) -> Decision {
        let noted = opening.noted();
        let kept = decision.allowed() && self.fallback.keep(opening, charged_here, &noted);
        self.with_receipt(decision, opening.id, noted, kept.then(|| redis.node()))
    }

    /// The same reservation again, of which part was charged here while the store was out of reach.
    async fn reserved_alone(
        &self,
        redis: &Redis,
        mut plan: Plan<'_>,
        names: Names,
        alone: Alone,
        opening: &Opening,
    ) -> Result<Decision, ReservationError> {
        if alone.conflict {
            return Err(ReservationError::Conflict);
        }
        plan.look();
        let mut judged = self.in_store(redis, plan).await;
        judged.iter_mut().for_each(crate::decision::Judged::admit);
        let noted = Noted { groups: alone.elsewhere, ..Noted::default() };
        let decision = self.decision(judged, names);
        Ok(self.with_receipt(decision, opening.id, noted, Some(redis.node())))
    }

    async fn end_in(
        &self,
        redis: &Redis,
        contents: &Contents,
        ending: &Ending<'_>,
    ) -> Result<Outcome, ReservationError> {
        let Contents { id, node, groups } = contents;
        let at_store = groups.iter().map(|group| redis.close(*id, group, ending));
        let at_store = futures_util::future::join_all(at_store).await;
        let mut outcome = Outcome::Unknown;
        let mut out_of_reach = None;
        let here = node.filter(|node| *node == redis.node());
        let here = here.map(|_| Ok(self.fallback.close(*id, ending)));
        for answer in at_store.into_iter().chain(here) {
            match answer {
                Ok(Answer::Told(told)) => outcome = outcome.max(told),
                Ok(Answer::EndedOtherwise) => return Err(ReservationError::EndedOtherwise),
                Err(error) => {
                    self.fallback.note_error();
                    out_of_reach = Some(error);
                }
            }
        }
        match out_of_reach {
            Some(error) => Err(ReservationError::Retryable { why: error.to_string() }),
            None => Ok(outcome),
        }
    }
}

/// Whether there is a record for just this reservation, or could be.
fn sound(noted: Noted) -> Result<Noted, ReservationError> {
    match noted {
        Noted { conflict: true, .. } => Err(ReservationError::Conflict),
        Noted { full: true, .. } => Err(ReservationError::Full),
        noted => Ok(noted),
    }
}

/// A name is the caller's, so it is hashed with the secret as subjects are.
fn id_of(secret: &Secret, domain: &str, name: &str) -> u128 {
    let mut encoding = Encoding::new();
    [b"#reservation".as_slice(), domain.as_bytes(), name.as_bytes()]
        .iter()
        .for_each(|part| encoding.part(part));
    secret.hash(&encoding)
}

fn encode_cost(cost: &Cost<'_>, body: &mut Encoding) {
    let mut amounts: Vec<(&str, u64)> = cost.amounts().collect();
    amounts.sort_unstable();
    for (unit, amount) in amounts {
        body.part(unit.as_bytes());
        body.part(&amount.to_le_bytes());
    }
}

impl<'p> Plan<'p> {
    /// What is asked for opens a record, unless it is known to be refused for good.
    pub(super) fn open(&mut self, opening: &'p Opening) {
        if self.ask.intent == Intent::Charge {
            self.ask.intent = Intent::Reserve { nonce: (random_id() as u64 >> 16).max(1) };
            self.ask.record = AtRecord::Open(opening);
        }
    }

    /// Only looks.
    #[cfg(feature = "redis")]
    fn look(&mut self) {
        self.ask.intent = Intent::Peek;
        self.ask.record = AtRecord::None;
        self.dues.clear();
    }
}
