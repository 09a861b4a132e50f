//! Reservations: those on the servers, and those that were partly charged by this instance during an outage.

use std::time::Duration;

use futures_util::future::join_all;

use super::RedisStore;
use crate::deciding::fallback::Alone;
use crate::deciding::records::IdUse;
use crate::decision::{CounterOutcome, Source};
use crate::error::StoreError;
use crate::memory::takes_permits;
use crate::plan::{Evaluated, Plan};
use crate::policy::Policy;
use crate::reservation::{
    Answer, Contents, EndResult, Ending, GROUPS_MAX, Group, Noted, Opening, ReservationError,
};

impl RedisStore {
    /// Evaluates a plan that opens a reservation. After an error the call is no decision.
    pub async fn reserve(
        &self,
        plan: Box<Plan>,
        opening: &Opening,
        policy: Option<&Policy>,
    ) -> Result<Evaluated, ReservationError> {
        // A repeated reservation that was charged here during the outage has its record here, and
        // is not charged again on the store.
        if let Some(alone) = self.fallback.local_reservation(&plan.transaction, opening) {
            return self.reserved_alone(plan, policy, alone, opening).await;
        }
        // A receipt names every leg, so there may be no more legs than it has room for. Checked
        // before anything is charged.
        let locations = self.servers.locations(&plan.transaction);
        if locations > GROUPS_MAX {
            return Err(ReservationError::TooManyLocations { locations });
        }
        let (asks, has_permits) = (plan.asks(), takes_permits(&plan.transaction.charges));
        let evaluated = self.evaluate_one(plan, policy, None).await;
        evaluated.plan.check_record()?;
        let noted = evaluated.plan.noted.clone().unwrap_or_default();
        // A repeated reservation is valid only while its permits are held. The counters' reply
        // alone does not show that.
        if has_permits {
            self.still_held(opening, &noted).await?;
        }
        // Local fallbacks keep their records in this process, and no store has the id then.
        let by_servers = !evaluated.plan.outcomes.iter().any(is_degraded);
        if asks && opening.is_named && by_servers {
            self.named_for_this(opening, &noted, evaluated.plan.allows()).await?;
        }
        Ok(evaluated)
    }

    /// Returns an error if a repeated reservation has lost a permit.
    async fn still_held(&self, opening: &Opening, noted: &Noted) -> Result<(), ReservationError> {
        for tag in &noted.repeated {
            if let Some(how) = self.servers.ended(opening.id, *tag).await.map_err(out_of_reach)? {
                let is_new = |group: &&Group| !noted.repeated.contains(&group.tag);
                self.undo_new(opening, noted.groups.iter().filter(is_new)).await;
                return Err(ReservationError::Ended(how));
            }
        }
        Ok(())
    }

    /// Returns an error if the id is in use for another request, whose records lie beside other
    /// counters.
    ///
    /// A new reservation takes the id after its charge, so that a denial costs no write. If the id
    /// turns out to be taken, the charge is refunded. If the store is out of reach, the reservation
    /// stands.
    async fn named_for_this(
        &self,
        opening: &Opening,
        noted: &Noted,
        allowed: bool,
    ) -> Result<(), ReservationError> {
        if !noted.repeated.is_empty() && !noted.is_resent {
            // The record has already been compared with the request.
            return Ok(());
        }
        let id_use = if allowed { IdUse::Take } else { IdUse::Look };
        if self.servers.claim_id(opening, id_use).await.unwrap_or(true) {
            return Ok(());
        }
        self.undo_new(opening, noted.groups.iter()).await;
        Err(ReservationError::Conflict)
    }

    /// Refunds the charges of a call that is rejected after all.
    async fn undo_new(&self, opening: &Opening, groups: impl Iterator<Item = &Group>) {
        for group in groups {
            // If the shard is out of reach, the charge stays until it expires. That admits nothing
            // wrongly.
            let _ = self.servers.close(opening.id, group, &Ending::Undo).await;
        }
        self.note_room();
    }

    /// Undoes the records of a denied call whose reply was late or lost: no caller has a receipt for them.
    ///
    /// A named record stays, because its caller may repeat the call.
    pub(crate) fn undo_in_doubt(&self, plan: &Plan) {
        let (Some(opening), Some(noted)) = (&plan.opening, &plan.noted) else { return };
        let (id, mut groups) = (opening.id, noted.groups.clone());
        if opening.is_named || groups.is_empty() {
            return;
        }
        let servers = self.servers.clone();
        tokio::spawn(async move {
            // The server may execute the call only after it has been silent for a while.
            for pause in UNDONE_AFTER {
                tokio::time::sleep(pause).await;
                let closed = groups.iter().map(|group| servers.close(id, group, &Ending::Undo));
                let mut closed = join_all(closed).await.into_iter();
                let is_done = |answer: &_| matches!(answer, Ok(Answer::EndResult(EndResult::Done)));
                groups.retain(|_| !closed.next().as_ref().is_some_and(is_done));
                if groups.is_empty() {
                    return;
                }
            }
        });
    }

    /// Answers a repeated reservation that was partly charged by this instance during an outage.
    async fn reserved_alone(
        &self,
        mut plan: Box<Plan>,
        policy: Option<&Policy>,
        alone: Alone,
        opening: &Opening,
    ) -> Result<Evaluated, ReservationError> {
        let mut noted = Box::<Noted>::default();
        noted.note(alone.opened, || Group { tag: 0, counters: None });
        noted.check()?;
        for group in &alone.elsewhere {
            // If the shard is out of reach, the record here decides. Whatever ends the reservation
            // ends that record too.
            if let Ok(Some(how)) = self.servers.ended(opening.id, group.tag).await {
                return Err(ReservationError::Ended(how));
            }
        }
        plan.look();
        let opened = plan.opening.take();
        let mut evaluated = self.evaluate_one(plan, policy, None).await;
        evaluated.plan.outcomes.iter_mut().for_each(CounterOutcome::admit);
        (evaluated.plan.opening, evaluated.plan.noted) = (opened, Some(noted));
        let (node, groups) = (Some(self.servers.instance_id), alone.elsewhere);
        evaluated.receipt = Some(Box::new(Contents { id: opening.id, node, groups }));
        Ok(evaluated)
    }

    /// Ends or renews a reservation at all its locations.
    ///
    /// # Errors
    /// Returns [`ReservationError::Retryable`] if a shard is out of reach.
    pub async fn end(
        &self,
        contents: &Contents,
        ending: &Ending<'_>,
    ) -> Result<EndResult, ReservationError> {
        let Contents { id, node, groups } = contents;
        let at_store = groups.iter().map(|group| self.servers.close(*id, group, ending));
        let at_store = join_all(at_store).await;
        let mut joined = Answer::EndResult(EndResult::Unknown);
        let mut missing = None;
        let here = node.filter(|node| *node == self.servers.instance_id);
        // The part that was charged here ends even if a shard gives no answer. The caller then ends the reservation
        // again, and what has ended already answers as before.
        let here = here.map(|_| Ok(self.fallback.close(*id, ending)));
        for answer in at_store.into_iter().chain(here) {
            match answer {
                Ok(reply) => joined = ending.join(joined, reply),
                Err(error) => {
                    self.fallback.note_error();
                    missing = Some(error);
                }
            }
        }
        match (joined, missing) {
            (Answer::EndedOtherwise, _) => Err(ReservationError::EndedOtherwise),
            (Answer::EndResult(outcome), None) => Ok(outcome),
            (Answer::EndResult(_), Some(error)) => {
                // The other legs may have been refunded, and so may this one if only its reply was
                // lost.
                self.note_room();
                Err(out_of_reach(error))
            }
        }
    }
}

/// Returns whether an enforced counter was decided without the servers.
pub fn is_degraded(counter: &CounterOutcome) -> bool {
    !counter.shadow && counter.source >= Some(Source::Fallback)
}

fn out_of_reach(error: StoreError) -> ReservationError {
    ReservationError::Retryable { why: error.to_string() }
}

/// When a record in doubt is looked for: soon, and after longer silences.
const UNDONE_AFTER: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(5)];
