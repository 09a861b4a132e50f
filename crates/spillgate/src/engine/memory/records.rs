//! The records of reservations in this process: so many at most, those that have ended go first.

use std::collections::{BTreeSet, HashMap};

use smallvec::SmallVec;

use super::Memory;
use crate::algorithm::{self, GiveBack, Intent};
use crate::engine::{Ask, AtRecord, Change, Told};
use crate::reservation::kept::{KeptTier, KeptTiers};
use crate::reservation::record::{Charged, Correction, Record};
use crate::reservation::{Answer, Ending, Group, Opened, Opening, Outcome};

/// Records by the id of their reservation.
#[derive(Debug, Default)]
pub(super) struct Records {
    by_id: HashMap<u128, Held>,
    /// When each that is open may be forgotten, and each that has ended.
    open: BTreeSet<(u64, u128)>,
    ended: BTreeSet<(u64, u128)>,
}

/// One record.
#[derive(Debug)]
struct Held {
    record: Record,
    tiers: KeptTiers,
    /// Where else the reservation has records: on a store that was out of reach in part.
    elsewhere: SmallVec<[Group; 1]>,
}

/// What was done to a tier.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "only a fallback asks"))]
pub(crate) enum Corrected {
    GivenBack(u64),
    Forced(u64),
}

/// What a fallback keeps of what it charged alone.
#[cfg(feature = "redis")]
pub(crate) struct Kept {
    pub(crate) body: u128,
    pub(crate) lasting_us: u64,
    pub(crate) tiers: Vec<KeptTier>,
    pub(crate) charges: Vec<Charged>,
    pub(crate) elsewhere: SmallVec<[Group; 1]>,
}

impl Memory {
    /// Decides a reservation, and keeps its record.
    pub(super) fn open(&self, ask: &Ask<'_>, opening: &Opening) -> Told {
        let now_us = self.clock.now_us();
        let mut records = self.records.lock();
        records.forget_gone(now_us);
        let known = records.by_id.get(&opening.id);
        let opened = match known.map(|held| held.record.opened_again(opening.body)) {
            Some(opened) => opened,
            None if !records.has_room() => Opened::Full,
            None => Opened::New,
        };
        let intent = if opened == Opened::New { ask.intent } else { Intent::Peek };
        let mut told =
            self.decide(&Ask { intent, record: AtRecord::None, tiers: ask.tiers.clone() });
        match opened {
            Opened::Repeated => told.admit(),
            Opened::Conflict | Opened::Full => {
                told.allowed = false;
                told.tiers.iter_mut().for_each(|tier| tier.fits = false);
            }
            Opened::New | Opened::Refused => {}
        }
        let is_open = opened == Opened::New && told.allowed && intent != Intent::Peek;
        if is_open {
            let charges = ask.tiers.iter().zip(&told.tiers);
            let charges =
                charges.map(|(tier, told)| Charged { cost: tier.cost, charge: told.charge });
            let record = Record::new(opening.body, opening.lasting_us, charges, now_us);
            let tiers = ask.tiers.iter().map(KeptTier::of).collect();
            records.add(opening.id, Held { record, tiers, elsewhere: SmallVec::new() });
        }
        let opened = if opened == Opened::New && !is_open { Opened::Refused } else { opened };
        let tag = ask.tiers.first().map_or(0, |tier| tier.key.tag);
        opening.note(opened, || Group { tag, tiers: None });
        told
    }

    /// Ends or renews a reservation; each correction is told as it is made.
    pub(crate) fn close(
        &self,
        id: u128,
        ending: &Ending<'_>,
        mut corrected: impl FnMut(&KeptTier, Corrected),
    ) -> Answer {
        let now_us = self.clock.now_us();
        let mut records = self.records.lock();
        records.forget_gone(now_us);
        let Some(held) = records.by_id.get_mut(&id) else {
            return Answer::Told(Outcome::Unknown);
        };
        if let Err(answer) = held.record.may_end(ending, now_us) {
            return answer;
        }
        if let Ending::Renew { for_us } = ending {
            if !self.renew(held, *for_us) {
                return Answer::Told(Outcome::Expired);
            }
            let before = held.record.forget_us();
            held.record.renew(*for_us, now_us);
            let after = held.record.forget_us();
            records.open.remove(&(before, id));
            records.open.insert((after, id));
            return Answer::Told(Outcome::Done);
        }
        for (place, tier) in held.tiers.iter().enumerate() {
            let Some(correction) = held.record.correction(place, ending.actual(tier)) else {
                continue;
            };
            let change = match correction {
                Correction::Force(amount) => Change::Force(amount),
                Correction::GiveBack { charge, unused } => {
                    Change::GiveBack(GiveBack::Unused { charge, unused })
                }
            };
            let (returned, _) = self.change(&tier.asked(0), change);
            corrected(
                tier,
                match correction {
                    Correction::Force(amount) => Corrected::Forced(amount),
                    Correction::GiveBack { .. } => Corrected::GivenBack(returned),
                },
            );
        }
        held.record.end(ending);
        held.tiers = KeptTiers::default();
        let forget_us = held.record.forget_us();
        records.open.remove(&(forget_us, id));
        records.ended.insert((forget_us, id));
        Answer::Told(Outcome::Done)
    }

    /// Whether all slots were still held, and now are for longer.
    fn renew(&self, held: &Held, for_us: u64) -> bool {
        let slots = || {
            let charged = held.tiers.iter().enumerate();
            charged.filter_map(|(place, tier)| Some((tier.asked(0), held.record.charge(place)?)))
        };
        let all_held = slots().all(|(tier, charge)| {
            self.with_tier(&tier, |tier, now_us| algorithm::holds(tier, &charge, now_us)).0
        });
        if all_held {
            for (tier, charge) in slots() {
                self.with_tier(&tier, |tier, now_us| {
                    algorithm::renew(tier, &charge, for_us, now_us);
                });
            }
        }
        all_held
    }

    /// Keeps a record of what was charged here beside a store; not if there is no room for it.
    #[cfg(feature = "redis")]
    pub(crate) fn keep(&self, id: u128, kept: Kept) -> bool {
        let Kept { body, lasting_us, tiers, charges, elsewhere } = kept;
        let now_us = self.clock.now_us();
        let mut records = self.records.lock();
        records.forget_gone(now_us);
        if !records.has_room() || records.by_id.contains_key(&id) {
            return false;
        }
        let record = Record::new(body, lasting_us, charges, now_us);
        records.add(id, Held { record, tiers: tiers.into(), elsewhere });
        true
    }

    /// What became of an earlier reservation of that id here, and where else it has records.
    #[cfg(feature = "redis")]
    pub(crate) fn kept(&self, id: u128, body: u128) -> Option<(Opened, SmallVec<[Group; 1]>)> {
        let mut records = self.records.lock();
        records.forget_gone(self.clock.now_us());
        let held = records.by_id.get(&id)?;
        Some((held.record.opened_again(body), held.elsewhere.clone()))
    }

    /// Whether one more record finds room.
    pub(crate) fn has_room_for_record(&self) -> bool {
        self.records.lock().has_room()
    }

    /// How many reservations are remembered.
    pub fn records(&self) -> usize {
        self.records.lock().by_id.len()
    }
}

impl Records {
    fn add(&mut self, id: u128, held: Held) {
        self.open.insert((held.record.forget_us(), id));
        self.by_id.insert(id, held);
    }

    /// A few of those whose time is over: more than come in.
    fn forget_gone(&mut self, now_us: u64) {
        for _ in 0..SWEEP {
            for queue in [&mut self.open, &mut self.ended] {
                if let Some((forget_us, id)) = queue.first().copied()
                    && forget_us <= now_us
                {
                    queue.pop_first();
                    self.by_id.remove(&id);
                }
            }
        }
    }

    /// Whether one more fits, if need be in place of one that has ended.
    fn has_room(&mut self) -> bool {
        if self.by_id.len() >= RECORDS_MAX
            && let Some((_, id)) = self.ended.pop_first()
        {
            self.by_id.remove(&id);
        }
        self.by_id.len() < RECORDS_MAX
    }
}

/// Records that go with each call.
const SWEEP: usize = 2;
/// Some 400 MB at the utmost; a process that holds more open shares a store.
const RECORDS_MAX: usize = 1 << 20;
