//! Reservations on a store, and those that were partly charged by this instance during an outage.

use super::super::Inner;
use super::super::bound::BoundRequest;
use super::check_sound;
use crate::decision::{self, CounterOutcome, Decision};
use crate::engine::Redis;
use crate::fallback::Alone;
use crate::metrics::Began;
use crate::plan::Plan;
use crate::reservation::{
    Answer, Contents, EndResult, Ending, Group, Noted, Opening, ReservationError,
};
use spillgate_redis::IdUse;

impl Inner {
    /// Returns an error if a repeated reservation has lost a permit.
    pub(super) async fn still_held(
        &self,
        redis: &Redis,
        opening: &Opening,
        noted: &Noted,
    ) -> Result<(), ReservationError> {
        for tag in &noted.repeated {
            if let Some(how) = redis.ended(opening.id, *tag).await.map_err(out_of_reach)? {
                let is_new = |group: &&Group| !noted.repeated.contains(&group.tag);
                self.undo_new(redis, opening, noted.groups.iter().filter(is_new)).await;
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
    pub(super) async fn named_for_this(
        &self,
        redis: &Redis,
        opening: &Opening,
        noted: &Noted,
        allowed: bool,
    ) -> Result<(), ReservationError> {
        if !noted.repeated.is_empty() && !noted.is_resent {
            // The record has already been compared with the request.
            return Ok(());
        }
        let id_use = if allowed { IdUse::Take } else { IdUse::Look };
        if redis.claim_id(opening, id_use).await.unwrap_or(true) {
            return Ok(());
        }
        self.undo_new(redis, opening, noted.groups.iter()).await;
        Err(ReservationError::Conflict)
    }

    /// Refunds the charges of a call that is rejected after all.
    async fn undo_new(
        &self,
        redis: &Redis,
        opening: &Opening,
        groups: impl Iterator<Item = &Group>,
    ) {
        for group in groups {
            // If the shard is out of reach, the charge stays until it expires. That admits nothing
            // wrongly.
            let _ = redis.close(opening.id, group, &Ending::Undo).await;
        }
        self.note_room();
    }

    /// Answers a repeated reservation that was partly charged by this instance during an outage.
    pub(super) async fn reserved_alone(
        &self,
        redis: &Redis,
        bound: &BoundRequest<'_, '_>,
        mut plan: Box<Plan>,
        alone: Alone,
        opening: &Opening,
        began: Began,
    ) -> Result<Decision, ReservationError> {
        opening.note(alone.opened, || Group { tag: 0, counters: None });
        check_sound(&opening.noted())?;
        for group in &alone.elsewhere {
            // If the shard is out of reach, the record here decides. Whatever ends the reservation
            // ends that record too.
            if let Ok(Some(how)) = redis.ended(opening.id, group.tag).await {
                return Err(ReservationError::Ended(how));
            }
        }
        plan.look();
        plan.opening = None;
        let mut counters = self.evaluate(plan, bound.policy()).await.plan.outcomes;
        self.metrics.end(began);
        counters.iter_mut().for_each(CounterOutcome::admit);
        let decision = self.decision(counters, bound.meters(), bound.names());
        let contents =
            Contents { id: opening.id, node: Some(redis.instance_id()), groups: alone.elsewhere };
        Ok(decision::with_receipt(decision, self.receipts.receipt(contents)))
    }

    pub(super) async fn end_in(
        &self,
        redis: &Redis,
        contents: &Contents,
        ending: &Ending<'_>,
    ) -> Result<EndResult, ReservationError> {
        let Contents { id, node, groups } = contents;
        let at_store = groups.iter().map(|group| redis.close(*id, group, ending));
        let at_store = futures_util::future::join_all(at_store).await;
        let mut joined = Answer::EndResult(EndResult::Unknown);
        let mut missing = None;
        let here = node.filter(|node| *node == redis.instance_id());
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

fn out_of_reach(error: crate::error::StoreError) -> ReservationError {
    ReservationError::Retryable { why: error.to_string() }
}
