//! A decision by the places where its tiers live, and the order in which they are asked.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::super::Redis;
use super::super::topology::Place;
use super::{Heard, Heards, Moved};
use crate::algorithm::Intent;
use crate::engine::{Ask, AskTier, AtRecord};

/// The tiers of a decision that live at one place.
pub(super) struct Part {
    pub(super) place: Place,
    pub(super) ask: Ask,
    /// Where what is heard of its tiers stands: for new owners, as in the whole decision.
    pub(super) places: SmallVec<[usize; 4]>,
}

/// A decision by places.
pub(super) struct Parts {
    /// The narrowest first.
    pub(super) enforced: Vec<Part>,
    pub(super) shadows: Vec<Part>,
}

impl Parts {
    pub(super) fn of(redis: &Redis, ask: &Ask, moved: &Moved) -> Parts {
        let mut parts = Parts { enforced: Vec::new(), shadows: Vec::new() };
        for (number, tier) in ask.tiers.iter().enumerate() {
            // The old owner first: it is the one that knows all.
            if let Some((place, copy)) = moved.old(number) {
                parts.add(ask, tier, place, copy);
            }
            parts.add(ask, tier, redis.topology.place(tier.key.tag), number);
        }
        parts.enforced.sort_by_key(|part| part.width(moved));
        parts
    }

    fn add(&mut self, whole: &Ask, tier: &AskTier, place: Place, heard: usize) {
        let of_kind = if tier.group == 0 { &mut self.enforced } else { &mut self.shadows };
        // A shadow rule that lives elsewhere than what is enforced keeps its estimate.
        let record = if tier.group == 0 { whole.record.clone() } else { AtRecord::None };
        let known = of_kind.iter().position(|part| part.place == place);
        let part = known.unwrap_or_else(|| {
            let ask = Ask { intent: whole.intent, record, tiers: SmallVec::new() };
            of_kind.push(Part { place, ask, places: SmallVec::new() });
            of_kind.len() - 1
        });
        of_kind[part].ask.tiers.push(tier.clone());
        of_kind[part].places.push(heard);
    }
}

impl Part {
    /// So that its charge can be given back.
    pub(super) fn ask_for_receipts(&mut self, redis: &Redis) {
        if self.ask.intent == Intent::Charge {
            self.ask.intent = Intent::Reserve { nonce: redis.caller.nonces.next() };
        }
    }

    /// As wide as its widest charged tier: fewer key attributes are wider, and of two rules with as
    /// many the later in the file. A part that charges nothing goes first.
    fn width(&self, moved: &Moved) -> Option<(Reverse<u8>, usize)> {
        let charged = self.ask.tiers.iter().zip(&self.places).filter(|(tier, _)| tier.cost > 0);
        charged.map(|(tier, place)| (Reverse(tier.attributes), moved.tier_of(*place))).max()
    }

    /// The script judges shadow rules that live here in the same call, if all before them passed.
    pub(super) fn take_along(&mut self, shadows: &mut Vec<Part>) {
        if let Some(here) = shadows.iter().position(|shadow| shadow.place == self.place) {
            let shadow = shadows.swap_remove(here);
            self.ask.tiers.extend(shadow.ask.tiers);
            self.places.extend(shadow.places);
        }
    }

    /// Whether no enforced tier of it refused.
    pub(super) fn passes(&self, heard: &Heards) -> bool {
        self.places.iter().zip(&self.ask.tiers).all(|(place, tier)| {
            tier.group > 0
                || match heard[*place] {
                    Heard::Store(tier) | Heard::Fallback(tier, _) => tier.fits,
                    Heard::OutagePolicy { passes, .. } => passes,
                    Heard::Refused { .. } => false,
                    Heard::GivenBack | Heard::Nobody => true,
                }
        })
    }
}
