//! A plan on a store: what leases pay and remembered denials answer, then the store's decision, then what follows
//! from it.

use std::mem;

use super::super::Inner;
use super::super::leasing::Paid;
use super::{ChargedHere, Evaluated, deny_if_full};
use crate::counter::Change;
use crate::decision::Tiers;
use crate::denial_cache::Sent;
use crate::engine::{self, Question, Redis};
use crate::fallback::Outage;
use crate::limit::NamedLimit;
use crate::plan::{AtRecord, Due, Heards, Plan};
use crate::policy::Policy;

/// A plan after leases and the denial cache had their turn.
struct Prepared {
    plan: Box<Plan>,
    paid: Paid,
    /// A denial that the denial cache remembers.
    denied: Option<Heards>,
    sent: Sent,
}

/// What the store, or this instance in its place, decided.
type Answer = (Heards, ChargedHere);

impl Inner {
    /// Decides a plan on a store; at once where leases and remembered denials suffice.
    pub(in super::super) async fn evaluate_on(
        &self,
        redis: &Redis,
        plan: Box<Plan>,
        policy: Option<&Policy>,
    ) -> Evaluated {
        let prepared = self.prepare(redis, plan, policy, self.denials.begin(redis));
        if prepared.asks() {
            // Boxed, for the future of a check in memory has room for this one.
            return Box::pin(self.ask(redis, prepared, policy)).await;
        }
        self.conclude_unasked(prepared)
    }

    async fn ask(
        &self,
        redis: &Redis,
        mut prepared: Prepared,
        policy: Option<&Policy>,
    ) -> Evaluated {
        let question = self.fallback.question(&mut prepared.plan, policy);
        let Ok(heard) = engine::decide(redis, &question).await;
        let answer = self.note_answer(redis, &question, heard, prepared.sent);
        drop(question);
        self.conclude(redis, prepared, answer).await
    }

    pub(super) async fn evaluate_each_on(
        &self,
        redis: &Redis,
        plans: Vec<(Box<Plan>, Option<&Policy>)>,
    ) -> Vec<Evaluated> {
        let sent = self.denials.begin(redis);
        let mut each: Vec<(Prepared, Option<&Policy>)> = plans
            .into_iter()
            .map(|(plan, policy)| (self.prepare(redis, plan, policy, sent), policy))
            .collect();
        let asking = each.iter_mut().filter(|(prepared, _)| prepared.asks());
        let questions: Vec<_> = asking
            .map(|(prepared, policy)| self.fallback.question(&mut prepared.plan, *policy))
            .collect();
        let heard = engine::decide_each(redis, &questions).await;
        let answers: Vec<Answer> = questions
            .iter()
            .zip(heard)
            .map(|(question, Ok(heard))| self.note_answer(redis, question, heard, sent))
            .collect();
        drop(questions);
        let mut answers = answers.into_iter();
        let mut evaluated = Vec::with_capacity(each.len());
        for (prepared, _) in each {
            let answer = prepared.asks().then(|| answers.next()).flatten();
            evaluated.push(match answer {
                Some(answer) => self.conclude(redis, prepared, answer).await,
                None => self.conclude_unasked(prepared),
            });
        }
        evaluated
    }

    /// Has leases and the denial cache do what they can.
    fn prepare(
        &self,
        redis: &Redis,
        mut plan: Box<Plan>,
        policy: Option<&Policy>,
        sent: Sent,
    ) -> Prepared {
        let paid = self.pay(&mut plan, policy);
        let is_named = plan.opening.as_ref().is_some_and(|opening| opening.is_named);
        let may_be_denied = plan.dues.is_empty() && !is_named;
        let denied = may_be_denied.then(|| self.denials.refuses(redis, &plan.ask, sent)).flatten();
        Prepared { plan, paid, denied, sent }
    }

    /// Keeps what an answer says of its counters; returns it with what this instance charged by itself.
    fn note_answer(
        &self,
        redis: &Redis,
        question: &Question<'_, Outage<'_>>,
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

    async fn conclude(&self, redis: &Redis, prepared: Prepared, answer: Answer) -> Evaluated {
        let (Prepared { mut plan, paid, .. }, (heard, charged_here)) = (prepared, answer);
        let (dues, noted) = (mem::take(&mut plan.dues), plan.noted());
        plan.take(&heard);
        let Plan { judged: mut tiers, opening, .. } = *plan;
        self.settle_paid(paid, &tiers);
        if noted.charges_anew() {
            self.correct(redis, dues, &mut tiers).await;
        }
        deny_if_full(&mut tiers, &noted);
        Evaluated { tiers, opening, charged_here }
    }

    /// Concludes a plan that the store has no part in: corrections are made on the store alone, so there are none.
    fn conclude_unasked(&self, prepared: Prepared) -> Evaluated {
        let Prepared { mut plan, paid, denied, .. } = prepared;
        plan.take(&denied.unwrap_or_default());
        let noted = plan.noted();
        let Plan { judged: mut tiers, opening, .. } = *plan;
        self.settle_paid(paid, &tiers);
        deny_if_full(&mut tiers, &noted);
        Evaluated { tiers, opening, charged_here: ChargedHere::default() }
    }

    async fn correct(&self, redis: &Redis, dues: Vec<Due<NamedLimit>>, tiers: &mut Tiers) {
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

impl Prepared {
    /// Whether the store is to decide.
    fn asks(&self) -> bool {
        self.denied.is_none() && self.plan.asks()
    }
}
