//! A part of a decision in a task of its own. A caller may leave while the part is in flight: the task still gets the
//! answer, and gives back what the part charged.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::super::topology::Place;
use super::super::{Redis, StoreError};
use super::Part;
use crate::algorithm::Charge;
use crate::engine::{Ask, AskTier, AtRecord, Told};
use crate::reservation::kept::KeptTier;
use crate::time::Deadline;

/// The answer to a part. Dropped before its caller has it, what it charged is given back.
struct Answered {
    redis: Redis,
    place: Place,
    ask: Arc<Ask>,
    told: Option<Result<Told, StoreError>>,
}

/// Decides a part; what it charges is given back where this future is dropped before its end.
pub(super) async fn ask(
    redis: &Redis,
    part: &Part,
    deadline: Deadline,
) -> Result<Told, StoreError> {
    let (sender, answer) = oneshot::channel();
    let mut answered = Answered {
        redis: redis.clone(),
        place: part.place,
        ask: Arc::new(part.ask.clone()),
        told: None,
    };
    tokio::spawn(async move {
        let Answered { redis, place, ask, .. } = &answered;
        let told = redis.decide_one_at(*place, ask, deadline).await;
        answered.told = Some(told);
        // Where the caller has left, this drops the answer.
        let _ = sender.send(answered);
    });
    let given_up = || StoreError::Unknown("the runtime that was to ask ended".into());
    let mut answered = answer.await.map_err(|_| given_up())?;
    answered.told.take().ok_or_else(given_up)?
}

impl Drop for Answered {
    fn drop(&mut self) {
        let Some(Ok(told)) = self.told.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !told.allowed {
            return;
        }
        let (redis, place) = (self.redis.clone(), self.place);
        let ask = Arc::clone(&self.ask);
        runtime.spawn(async move { give_back(&redis, place, &ask, &told).await });
    }
}

async fn give_back(redis: &Redis, place: Place, ask: &Ask, told: &Told) {
    if let AtRecord::Open(opening) = &ask.record {
        // A caller that sends a named reservation again finds it, so it stays.
        if !opening.is_named {
            let tiers: Vec<KeptTier> = ask.tiers.iter().map(KeptTier::of).collect();
            redis.undo(place, opening.id, &tiers).await;
        }
        return;
    }
    let enforced = ask.tiers.iter().zip(&told.tiers).filter(|(tier, _)| tier.group == 0);
    let charges: Vec<(AskTier, Charge)> =
        enforced.filter_map(|(tier, told)| Some((tier.clone(), told.charge?))).collect();
    if !charges.is_empty() {
        redis.give_back(place, &charges).await;
    }
}
