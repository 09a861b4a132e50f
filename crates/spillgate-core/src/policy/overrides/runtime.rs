//! Enters overrides of runtime changes for known rules.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{COPIED_MAX, Covered, NoSubject, Override, Overrides, SETS_MAX, TooManySets};
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
        self.enter_covered(rule_index, &subject, limits, at)
    }

    /// Returns these overrides with one more, the newest. Returns `None` if they must all be entered again instead: now
    /// and then, and where it takes more than one look-up in each part to find the override that wins.
    pub fn with_newest(
        self: &Arc<Overrides>,
        rule_index: u32,
        subject: &Covered,
        limits: Box<[NamedLimit]>,
    ) -> Option<Overrides> {
        let older = self.older.as_ref().unwrap_or(self);
        let sets = older.by_rule.get(rule_index as usize)?;
        // Else two networks of one set could be in different parts, and a third override win over one of them alone.
        let is_plain = subject.network.is_none()
            || sets.iter().all(|set| set.attributes == subject.attributes);
        let is_known = sets.iter().any(|set| set.is_for(subject));
        if !is_plain || !is_known {
            return None;
        }
        let mut newest = match &self.older {
            Some(_) if self.limits.len() < COPIED_MAX => Overrides::clone(self),
            None => Overrides { older: Some(Arc::clone(self)), ..Overrides::default() },
            Some(_) => return None,
        };
        let at = newest.limits.len() as u32;
        newest.enter_covered(rule_index, subject, limits, at).ok()?;
        newest.sort();
        Some(newest)
    }

    fn enter_covered(
        &mut self,
        rule_index: u32,
        subject: &Covered,
        limits: Box<[NamedLimit]>,
        at: u32,
    ) -> Result<(), InvalidChange> {
        let rules = self.by_rule.len().max(rule_index as usize + 1);
        self.by_rule.resize_with(rules, SmallVec::new);
        let limits = self.add_limits(limits);
        match self.insert(rule_index, subject, Override { limits, at }) {
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
        // The newest have no set that the older ones lack.
        let whole = self.older.as_deref().unwrap_or(self);
        let sets = whole.by_rule.get(rule_index as usize).map_or(&[][..], |sets| sets);
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
