//! Enters overrides of runtime changes for known rules.

use smallvec::SmallVec;

use super::{Covered, NoSubject, Override, Overrides, SETS_MAX, TooManySets};
use crate::limit::NamedLimit;
use crate::policy::rule::Rule;
use crate::policy::runtime::{self, InvalidChange};
use crate::policy::types::Types;

impl Overrides {
    /// Enters one override of a subject that has none yet. `at` is its number.
    pub fn enter(
        &mut self,
        rule_index: u32,
        rule: &Rule,
        types: &Types,
        subject: &runtime::Subject,
        limits: Box<[NamedLimit]>,
        at: u32,
    ) -> Result<(), InvalidChange> {
        let subject = subject_of(rule, types, subject)?;
        let rules = self.by_rule.len().max(rule_index as usize + 1);
        self.by_rule.resize_with(rules, SmallVec::new);
        let limits = self.add_limits(limits);
        match self.insert(rule_index, &subject, Override { limits, at }) {
            Ok(_) => Ok(()),
            Err(TooManySets) => Err(InvalidChange::TooManySets),
        }
    }

    /// Returns whether an override of this subject could be entered.
    pub fn has_room_for(
        &self,
        rule_index: u32,
        rule: &Rule,
        types: &Types,
        subject: &runtime::Subject,
    ) -> Result<(), InvalidChange> {
        let subject = subject_of(rule, types, subject)?;
        let sets = self.by_rule.get(rule_index as usize).map_or(&[][..], |sets| sets);
        if sets.len() < SETS_MAX || sets.iter().any(|set| set.is_for(&subject)) {
            return Ok(());
        }
        Err(InvalidChange::TooManySets)
    }
}

/// Returns the subjects of a rule that an override with this subject covers.
pub fn subject_of(
    rule: &Rule,
    types: &Types,
    subject: &runtime::Subject,
) -> Result<Covered, InvalidChange> {
    let named = subject.iter().map(|(attribute, value)| {
        let of_type = types.type_of(attribute);
        (&**attribute, &**value, of_type)
    });
    Covered::new(rule, named)
        .map_err(|NoSubject { message, .. }| InvalidChange::NoSubject { message })
}
