//! What a decision over several places was charged on the way, and its return.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use tokio::task::JoinHandle;

use super::super::Redis;
use super::super::topology::Place;
use super::{Heard, Heards, Moved, Part, StandIn};
use crate::algorithm::Charge;
use crate::engine::{AskTier, AtRecord, ToldTier};
use crate::plan::Cause;
use crate::reservation::kept::KeptTier;
use crate::time::Deadline;

/// What was charged before all have agreed. Dropped, it is given back: a caller who goes away in
/// between has been admitted nowhere.
pub(super) struct Provisional<'a, S: StandIn> {
    redis: &'a Redis,
    stand_in: &'a S,
    moved: &'a Moved,
    charges: Vec<Charged>,
    /// Where records were opened, and for what.
    records: Vec<(Place, u128, Vec<KeptTier>)>,
}

/// One charge, with all that it takes to return it.
struct Charged {
    place: Place,
    /// Where what is heard of its tier stands.
    number: usize,
    tier: AskTier,
    charge: Charge,
    by_store: bool,
}

impl<'a, S: StandIn> Provisional<'a, S> {
    pub(super) fn new(redis: &'a Redis, stand_in: &'a S, moved: &'a Moved) -> Provisional<'a, S> {
        Provisional { redis, stand_in, moved, charges: Vec::new(), records: Vec::new() }
    }

    /// Notes what a part was charged.
    pub(super) fn note(&mut self, part: &Part, heard: &Heards) {
        let by_store = part.places.iter().any(|number| matches!(heard[*number], Heard::Store(_)));
        if let AtRecord::Open(opening) = &part.ask.record
            && by_store
        {
            // What was there before this call is another's, or an earlier answer's.
            let noted = opening.noted();
            let tag = part.ask.tiers.first().map_or(0, |tier| tier.key.tag);
            let was_there = noted.repeated.contains(&tag) && !noted.is_resent;
            if was_there || !part.passes(heard) {
                return;
            }
            // The record knows all that was charged there.
            let tiers = part.ask.tiers.iter().map(KeptTier::of).collect();
            self.records.push((part.place, opening.id, tiers));
            return;
        }
        for (number, tier) in part.places.iter().zip(&part.ask.tiers) {
            let (told, by_store) = match &heard[*number] {
                Heard::Store(told) => (told, true),
                Heard::Fallback(told, _) => (told, false),
                _ => continue,
            };
            if let (Some(charge), 0) = (told.charge, tier.group) {
                self.charges.push(Charged {
                    place: part.place,
                    number: *number,
                    tier: tier.clone(),
                    charge,
                    by_store,
                });
            }
        }
    }

    /// All have agreed.
    pub(super) fn keep(mut self) {
        self.charges.clear();
        self.records.clear();
    }

    /// Waits for it until the deadline; it is done also after that. The numbers of the tiers are
    /// those without the charge, or none where nobody has told them in time.
    pub(super) async fn give_back(mut self, deadline: Deadline, heard: &mut Heards) {
        for charged in &self.charges {
            heard[charged.number] = Heard::GivenBack;
        }
        if !self.records.is_empty() {
            // An undone record tells nobody how its tiers are now.
            for heard in heard.iter_mut().filter(|heard| admits(heard)) {
                *heard = Heard::Nobody;
            }
        }
        let (here, at_store) = self.begin_to_give_back();
        for (number, told) in here {
            heard[number] = Heard::Fallback(told, Cause::Outage);
        }
        let Some(at_store) = at_store else { return };
        let Some(Ok(told)) = deadline.bound(at_store).await else { return };
        for (number, told) in told {
            heard[number] = Heard::Store(told);
        }
    }

    fn begin_to_give_back(&mut self) -> (Vec<Returned>, Option<JoinHandle<Vec<Returned>>>) {
        let mut here = Vec::new();
        let mut at_store: BTreeMap<Place, Vec<Charged>> = BTreeMap::new();
        for charged in self.charges.drain(..) {
            if charged.by_store {
                at_store.entry(charged.place).or_default().push(charged);
            } else {
                let number = self.moved.tier_of(charged.number);
                let told = self.stand_in.give_back(&charged.tier, number, charged.charge);
                here.extend(told.map(|told| (charged.number, admitted(told))));
            }
        }
        let records = std::mem::take(&mut self.records);
        let runtime = tokio::runtime::Handle::try_current();
        let nothing = at_store.is_empty() && records.is_empty();
        let Some(runtime) = runtime.ok().filter(|_| !nothing) else {
            return (here, None);
        };
        let redis = self.redis.clone();
        let returning = runtime.spawn(async move {
            let undone = records.iter().map(|(place, id, tiers)| redis.undo(*place, *id, tiers));
            join_all(undone).await;
            let each = at_store.iter().map(|(place, charged)| return_at(&redis, *place, charged));
            join_all(each).await.into_iter().flatten().collect()
        });
        (here, Some(returning))
    }
}

fn admits(heard: &Heard) -> bool {
    matches!(heard, Heard::Store(told) if told.fits)
}

/// A tier by its place in the decision, as it is without what it was charged.
type Returned = (usize, ToldTier);

async fn return_at(redis: &Redis, place: Place, charged: &[Charged]) -> Vec<Returned> {
    let charges: Vec<_> =
        charged.iter().map(|charged| (charged.tier.clone(), charged.charge)).collect();
    let told = redis.give_back(place, &charges).await;
    charged.iter().zip(told).map(|(charged, told)| (charged.number, admitted(told))).collect()
}

/// It had room, whatever became of the whole.
fn admitted(mut told: ToldTier) -> ToldTier {
    told.fits = true;
    told.reading.retry_after_us = Some(0);
    told
}

impl<S: StandIn> Drop for Provisional<'_, S> {
    fn drop(&mut self) {
        self.begin_to_give_back();
    }
}
