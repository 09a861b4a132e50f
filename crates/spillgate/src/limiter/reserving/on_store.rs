//! Reservations where state is on a store, or in part in this process while the store is out of reach.

use super::super::{Inner, Under};
use super::{Watch, refuse_if_full, sound};
use crate::decision::{Decision, Tiers};
use crate::engine::{Redis, decide, takes_permits};
use crate::fallback::{Alone, ChargedHere};
use crate::metrics::Began;
use crate::plan::Plan;
use crate::reservation::{
    Answer, Contents, Ending, Group, Noted, Opening, Outcome, ReservationError,
};

impl Inner {
    pub(super) async fn reserve_in(
        &self,
        redis: &Redis,
        plan: Plan<'_>,
        under: Under<'_>,
        opening: &Opening,
        watch: impl Watch,
    ) -> Result<Decision, ReservationError> {
        let began = self.metrics.begin();
        if let Some(alone) = self.fallback.alone(&plan.ask, opening) {
            return self.reserved_alone(redis, plan, under, alone, opening, began).await;
        }
        let places = redis.places(&plan.ask);
        if places > crate::reservation::GROUPS_MAX {
            return Err(ReservationError::TooManyPlaces { places });
        }
        let (asks, has_permits) = (plan.asks(), takes_permits(&plan.ask.tiers));
        let decision = self.open_in(redis, plan, under, opening, began, watch).await;
        let noted = sound(opening.noted())?;
        if has_permits {
            self.still_held(redis, opening, &noted).await?;
        }
        if asks && opening.is_named && !decision.degraded() {
            self.named_for_this(redis, opening, &noted, decision.allowed()).await?;
        }
        Ok(decision)
    }

    /// Decides a plan that opens records, on the store or, where that is out of reach, here.
    pub(in super::super) async fn open_in(
        &self,
        redis: &Redis,
        plan: Plan<'_>,
        under: Under<'_>,
        opening: &Opening,
        began: Began,
        watch: impl Watch,
    ) -> Decision {
        if !plan.asks() {
            self.metrics.end(began);
            let noted = Noted::default();
            let decision = self.opened(plan.judged, under, &noted, watch);
            return self.with_receipt(decision, opening.id, noted, None);
        }
        let (judged, charged_here) = self.opened_in(redis, plan, opening).await;
        self.metrics.end(began);
        let decision = self.opened(judged, under, &opening.noted(), watch);
        self.receipted(redis, decision, opening, charged_here)
    }

    /// The same, with what was charged here, which has no record yet.
    pub(in super::super) async fn opened_in(
        &self,
        redis: &Redis,
        mut plan: Plan<'_>,
        opening: &Opening,
    ) -> (Tiers, ChargedHere) {
        let sent = self.denials.begin(redis);
        let dues = std::mem::take(&mut plan.dues);
        let question = self.fallback.question(&mut plan);
        let Ok(heard) = decide(redis, &question).await;
        self.fallback.settle(&question, &heard);
        self.denials.note(redis, question.ask, &heard, sent);
        let charged_here = self.fallback.charged_here(&question, &heard);
        drop(question);
        let mut judged = plan.judged_from(&heard);
        let noted = opening.noted();
        if noted.charges_anew() {
            self.settle_dues(redis, dues, &mut judged).await;
        }
        refuse_if_full(&mut judged, &noted);
        (judged, charged_here)
    }

    /// A decision with its receipt; what was charged here has a record here.
    pub(in super::super) fn receipted(
        &self,
        redis: &Redis,
        decision: Decision,
        opening: &Opening,
        charged_here: ChargedHere,
    ) -> Decision {
        let noted = opening.noted();
        let kept = decision.allowed() && self.fallback.keep(opening, charged_here, &noted);
        self.with_receipt(decision, opening.id, noted, kept.then(|| redis.node()))
    }

    /// Refuses a repeated reservation of which some permit is held no longer.
    async fn still_held(
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
    async fn named_for_this(
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
    async fn reserved_alone(
        &self,
        redis: &Redis,
        mut plan: Plan<'_>,
        under: Under<'_>,
        alone: Alone,
        opening: &Opening,
        began: Began,
    ) -> Result<Decision, ReservationError> {
        opening.note(alone.opened, || Group { tag: 0, tiers: None });
        sound(opening.noted())?;
        for group in &alone.elsewhere {
            // Out of reach, the record here speaks for all: what ends the reservation ends it too.
            if let Ok(Some(how)) = redis.ended(opening.id, group.tag).await {
                return Err(ReservationError::Ended(how));
            }
        }
        plan.look();
        let mut judged = self.in_store(redis, plan).await;
        self.metrics.end(began);
        judged.iter_mut().for_each(crate::decision::Judged::admit);
        let noted = Noted { groups: alone.elsewhere, ..Noted::default() };
        let decision = self.decision(judged, under);
        Ok(self.with_receipt(decision, opening.id, noted, Some(redis.node())))
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
                Ok(Answer::Told(told)) => outcome = outcome.max(told),
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
