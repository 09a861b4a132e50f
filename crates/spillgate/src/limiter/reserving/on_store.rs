//! Reservations where state is on a store, or in part in this process while the store is out of reach.

use super::super::Inner;
use super::super::bound::BoundRequest;
use super::check_sound;
use crate::decision::{CounterOutcome, Decision};
use crate::engine::Redis;
use crate::fallback::Alone;
use crate::metrics::Began;
use crate::plan::Plan;
use crate::reservation::{
    Answer, Contents, Ending, Group, Noted, Opening, Outcome, ReservationError,
};

impl Inner {
    /// Refuses a repeated reservation of which some permit is held no longer.
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

    /// Refuses a reservation whose id is in use for another request, whose records lie beside other counters.
    ///
    /// A new reservation takes the id after it was charged, so that a denial costs no write; one that loses
    /// the id to another gives its charge back. Out of reach, nothing is known, and nothing refused.
    pub(super) async fn named_for_this(
        &self,
        redis: &Redis,
        opening: &Opening,
        noted: &Noted,
        allowed: bool,
    ) -> Result<(), ReservationError> {
        if !noted.repeated.is_empty() && !noted.is_resent {
            // The record says what the id is in use for.
            return Ok(());
        }
        if redis.names(opening, allowed).await.unwrap_or(true) {
            return Ok(());
        }
        self.undo_new(redis, opening, noted.groups.iter()).await;
        Err(ReservationError::Conflict)
    }

    /// Takes back what a call has charged that is refused after all.
    async fn undo_new(
        &self,
        redis: &Redis,
        opening: &Opening,
        groups: impl Iterator<Item = &Group>,
    ) {
        for group in groups {
            // Out of reach it stays charged until it expires, which admits nothing wrongly.
            let _ = redis.close(opening.id, group, &Ending::Undo).await;
        }
        self.note_room();
    }

    /// The same reservation again, of which part was charged here while the store was out of reach.
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
            // Out of reach, the record here speaks for all: what ends the reservation ends it too.
            if let Ok(Some(how)) = redis.ended(opening.id, group.tag).await {
                return Err(ReservationError::Ended(how));
            }
        }
        plan.look();
        plan.opening = None;
        let mut counters = self.evaluate(plan, bound.policy()).await.counters;
        self.metrics.end(began);
        counters.iter_mut().for_each(CounterOutcome::admit);
        let decision = self.decision(counters, bound.meters(), bound.names());
        let contents =
            Contents { id: opening.id, node: Some(redis.node()), groups: alone.elsewhere };
        Ok(decision.with_receipt(self.receipts.receipt(contents)))
    }

    pub(super) async fn end_in(
        &self,
        redis: &Redis,
        contents: &Contents,
        ending: &Ending<'_>,
    ) -> Result<Outcome, ReservationError> {
        let Contents { id, node, groups } = contents;
        let at_store = groups.iter().map(|group| redis.close(*id, group, ending));
        let at_store = futures_util::future::join_all(at_store).await;
        let mut outcome = Outcome::Unknown;
        let mut missing = None;
        let here = node.filter(|node| *node == redis.node());
        let here = here.map(|_| Ok(self.fallback.close(*id, ending)));
        for answer in at_store.into_iter().chain(here) {
            match answer {
                Ok(Answer::Outcome(reply)) => outcome = outcome.max(reply),
                Ok(Answer::EndedOtherwise) => return Err(ReservationError::EndedOtherwise),
                Err(error) => {
                    self.fallback.note_error();
                    missing = Some(error);
                }
            }
        }
        missing.map_or(Ok(outcome), |error| Err(out_of_reach(error)))
    }
}

fn out_of_reach(error: crate::error::StoreError) -> ReservationError {
    ReservationError::Retryable { why: error.to_string() }
}
