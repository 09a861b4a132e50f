//! Enters overrides of runtime changes for known rules.

use smallvec::SmallVec;

use super::{Attributes, Override, Overrides, SETS_MAX, Subject, TooManySets};
use crate::limit::NamedLimit;
use crate::policy::rule::Rule;
use crate::policy::runtime::{self, InvalidChange};

impl Overrides {
    /// Enters one override of a subject that has none yet. `at` is its number.
    pub(in crate::policy) fn enter(
        &mut self,
        rule_index: u32,
        rule: &Rule,
        subject: &runtime::Subject,
        limits: Box<[NamedLimit]>,
        at: u32,
    ) -> Result<(), InvalidChange> {
        let subject = encoded(rule, subject)?;
        let rules = self.by_rule.len().max(rule_index as usize + 1);
        self.by_rule.resize_with(rules, SmallVec::new);
        let limits = self.add_limits(limits);
        match self.insert(rule_index, &subject, Override { limits, at }) {
            Ok(_) => Ok(()),
            Err(TooManySets) => Err(InvalidChange::TooManySets),
        }
    }

    /// Returns whether an override of this subject could be entered.
    pub(in crate::policy) fn has_room_for(
        &self,
        rule_index: u32,
        rule: &Rule,
        subject: &runtime::Subject,
    ) -> Result<(), InvalidChange> {
        let (attributes, _) = encoded(rule, subject)?;
        let sets = self.by_rule.get(rule_index as usize).map_or(&[][..], |sets| sets);
        if sets.len() < SETS_MAX || sets.iter().any(|set| set.attributes == attributes) {
            return Ok(());
        }
        Err(InvalidChange::TooManySets)
    }

    /// Sorts the overrides. Must be called after all are entered, and before any look-up.
    pub(in crate::policy) fn finish(&mut self) {
        self.sort();
    }
}

fn encoded(rule: &Rule, subject: &runtime::Subject) -> Result<Subject, InvalidChange> {
    if subject.is_empty() {
        return Err(InvalidChange::EmptySubject);
    }
    let mut attributes = Attributes::default();
    let mut key_values: SmallVec<[&[u8]; 4]> = rule.key().map(|_| &[][..]).collect();
    for (attribute, value) in subject {
        let Some(place) = rule.key().position(|known| known == &**attribute) else {
            let key = rule.key().map(str::to_owned).collect();
            return Err(InvalidChange::ForeignAttribute { attribute: attribute.to_string(), key });
        };
        attributes = attributes.with(place);
        key_values[place] = value;
    }
    Ok((attributes, attributes.encode(&key_values)))
}
