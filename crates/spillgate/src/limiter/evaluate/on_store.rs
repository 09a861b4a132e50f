//! A plan on a store: what leases pay and remembered denials answer, then the store's decision, then what follows
//! from it.

use std::mem;

use super::super::Inner;
use super::super::leasing::Paid;
use super::{ChargedHere, Evaluated, Evaluation, deny_if_full};
use crate::counter::Change;
use crate::decision::Tiers;
use crate::denial_cache::Sent;
use crate::engine::{self, Question, Redis};
use crate::fallback::Outage;
use crate::plan::{AtRecord, Due, Heards, Plan};
use crate::reservation::Opening;

/// A plan after leases and the denial cache had their turn.
struct Prepared<'p> {
    plan: Plan<'p>,
    opening: Option<&'p Opening>,
    paid: Paid,
    /// Corrections after the decision.
    dues: Vec<Due<'p>>,
    /// A denial that the denial cache remembers.
    denied: Option<Heards>,
    sent: Sent,
}

/// What the store, or this instance in its place, decided.
type Answer = (Heards, ChargedHere);

impl Inner {
    /// Decides a plan on a store; at once where leases and remembered denials suffice.
    pub(in super::super) fn evaluate_on<'e, 'p: 'e>(
        &'e self,
        redis: &'e Redis,
        plan: Plan<'p>,
        opening: Option<&'p Opening>,
    ) -> Evaluation<'e> {
        let mut prepared = self.prepare(redis, plan, opening, self.denials.begin(redis));
        if prepared.asks() {
            return Evaluation::OnStore(Box::pin(async move {
                let question = self.fallback.question(&mut prepared.plan);
                let Ok(heard) = engine::decide(redis, &question).await;
                let answer = self.note_answer(redis, &question, heard, prepared.sent);
                drop(question);
                self.conclude(redis, prepared, Some(answer)).await
            }));
        }
        Evaluation::Ready(self.conclude_unasked(prepared))
    }

    pub(super) async fn evaluate_each_on<'p>(
        &self,
        redis: &Redis,
        plans: Vec<(Plan<'p>, Option<&'p Opening>)>,
    ) -> Vec<Evaluated> {
        let sent = self.denials.begin(redis);
        let mut each: Vec<Prepared<'p>> = plans
            .into_iter()
            .map(|(plan, opening)| self.prepare(redis, plan, opening, sent))
            .collect();
        let asking = each.iter_mut().filter(|prepared| prepared.asks());
        let questions: Vec<_> =
            asking.map(|prepared| self.fallback.question(&mut prepared.plan)).collect();
        let heard = engine::decide_each(redis, &questions).await;
        let answers: Vec<Answer> = questions
            .iter()
            .zip(heard)
            .map(|(question, Ok(heard))| self.note_answer(redis, question, heard, sent))
            .collect();
        drop(questions);
        let mut answers = answers.into_iter();
        let mut evaluated = Vec::with_capacity(each.len());
        for prepared in each {
            let answer = prepared.asks().then(|| answers.next()).flatten();
            evaluated.push(self.conclude(redis, prepared, answer).await);
        }
        evaluated
    }

    /// Has leases pay and looks for a remembered denial. A plan with corrections is asked for in any case, since
    /// these are due whatever the decision; so is a named reservation, which may repeat one that was allowed.
    fn prepare<'p>(
        &self,
        redis: &Redis,
        mut plan: Plan<'p>,
        opening: Option<&'p Opening>,
        sent: Sent,
    ) -> Prepared<'p> {
        let paid = self.pay(&mut plan);
        let dues = mem::take(&mut plan.dues);
        let may_be_denied = dues.is_empty() && !opening.is_some_and(|opening| opening.is_named);
        let denied = may_be_denied.then(|| self.denials.refuses(redis, &plan.ask, sent)).flatten();
        Prepared { plan, opening, paid, dues, denied, sent }
    }

    /// Keeps what an answer says of its counters; returns it with what this instance charged by itself.
    fn note_answer(
        &self,
        redis: &Redis,
        question: &Question<'_, '_, Outage<'_>>,
        heard: Heards,
        sent: Sent,
    ) -> Answer {
        self.fallback.settle(question, &heard);
        self.denials.note(redis, question.ask, &heard, sent);
        let charged_here = match question.ask.record {
            AtRecord::Open(_) => self.fallback.charged_here(question, &heard),
            AtRecord::None | AtRecord::Close(_) => ChargedHere::default(),
        };
        (heard, charged_here)
    }

    async fn conclude(
        &self,
        redis: &Redis,
        mut prepared: Prepared<'_>,
        answer: Option<Answer>,
    ) -> Evaluated {
        let Some((heard, charged_here)) = answer else { return self.conclude_unasked(prepared) };
        let dues = mem::take(&mut prepared.dues);
        let noted = prepared.opening.map(Opening::noted).unwrap_or_default();
        let mut tiers = prepared.plan.judged_from(&heard);
        self.settle_paid(prepared.paid, &tiers);
        if noted.charges_anew() {
            self.correct(redis, dues, &mut tiers).await;
        }
        deny_if_full(&mut tiers, &noted);
        Evaluated { tiers, charged_here }
    }

    /// Concludes a plan that the store has no part in: corrections are made on the store alone, so there are none.
    fn conclude_unasked(&self, prepared: Prepared<'_>) -> Evaluated {
        let Prepared { plan, opening, paid, denied, .. } = prepared;
        let mut tiers = match denied {
            Some(denied) => plan.judged_from(&denied),
            None => plan.judged,
        };
        self.settle_paid(paid, &tiers);
        if let Some(opening) = opening {
            deny_if_full(&mut tiers, &opening.noted());
        }
        Evaluated::from(tiers)
    }

    async fn correct(&self, redis: &Redis, dues: Vec<Due<'_>>, tiers: &mut Tiers) {
        for due in dues {
            if !due.stands(tiers) {
                continue;
            }
            match redis.change(&due.tier, due.change).await {
                Ok((_, told)) => {
                    if matches!(due.change, Change::GiveBack(_)) {
                        self.note_room();
                    }
                    due.done(&told, tiers);
                }
                Err(_) => self.fallback.note_error(),
            }
        }
    }
}

impl Prepared<'_> {
    /// Whether the store is to decide.
    fn asks(&self) -> bool {
        self.denied.is_none() && self.plan.asks()
    }
}
