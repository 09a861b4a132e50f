//! Joins the policy file with runtime changes into one policy, which a request sees as a whole.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::limits::{LIMITS_MAX, in_place_of_rules};
use super::overrides::{Overrides, subject_of};
use super::rule::{Mode, Rule};
use super::types::Named;
use super::{Policy, problem::nearest};
use crate::limit::{LimitError, LimitSpec, NamedLimit};
use crate::request::Request;

/// One runtime change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeEntry {
    /// Other limits for a subject.
    Override {
        /// The name of the rule.
        rule: Box<str>,
        /// The attributes of the subject.
        subject: Subject,
        /// The limits as written. Unset fields are inherited from the rule.
        limits: Vec<LimitSpec>,
    },
    /// Another mode.
    Mode {
        /// The name of the rule.
        rule: Box<str>,
        /// Its mode from then on.
        mode: Mode,
    },
    /// A reset of all state of the rule.
    Generation {
        /// The name of the rule.
        rule: Box<str>,
        /// The generation, a different number for each reset.
        number: u64,
    },
}

/// Some attributes with their values, sorted by name. A value may be the text of a network. Without
/// attributes it is every subject of the rule.
///
/// `Limiter::overrides` lists them.
pub type Subject = Box<[(Box<str>, Box<[u8]>)]>;

/// The reason why a runtime change is invalid under the policy.
///
/// `Limiter::set_override` returns it in `ControlError::Refused`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidChange {
    /// The policy has no rule with this name.
    UnknownRule {
        /// The name.
        rule: String,
        /// The rule that was probably meant.
        nearest: Option<String>,
    },
    /// The subject names an attribute that is not in the rule's key, or a value that is no address
    /// or a network that an override cannot name.
    NoSubject {
        /// The attribute, the problem and its remedy.
        message: String,
    },
    /// A cost has a unit that no limit of the rule counts.
    UnknownUnit {
        /// The unit.
        unit: String,
        /// The units of the rule's limits.
        units: Vec<String>,
    },
    /// The list of limits is empty or too long.
    LimitCount {
        /// The number of limits in it.
        count: usize,
    },
    /// A limit pairs with none of the rule's, or is invalid in its place.
    Limit {
        /// Its name, or else its position in the list.
        limit: String,
        /// The error of the limit.
        error: LimitError,
    },
    /// The rule's overrides name the largest number of attribute sets already.
    TooManySets,
}

impl RuntimeEntry {
    /// Returns the name of its rule.
    pub fn rule(&self) -> &str {
        match self {
            RuntimeEntry::Override { rule, .. }
            | RuntimeEntry::Mode { rule, .. }
            | RuntimeEntry::Generation { rule, .. } => rule,
        }
    }
}

#[doc(hidden)]
impl Policy {
    /// Returns the same file with these runtime changes instead of others, oldest first. Also
    /// returns, for each of them, whether it is in force or why not.
    pub fn with_entries<'e>(
        &self,
        entries: impl IntoIterator<Item = &'e RuntimeEntry>,
    ) -> (Policy, Vec<Result<(), InvalidChange>>) {
        let mut changes: HashMap<u32, (Option<Mode>, Option<u64>)> = HashMap::new();
        let mut runtime = Overrides::default();
        let mut enter = |at: u32, entry: &RuntimeEntry| {
            let rule_index = self.index_of(entry.rule())?;
            match entry {
                RuntimeEntry::Mode { mode, .. } => {
                    changes.entry(rule_index).or_default().0 = Some(*mode);
                }
                RuntimeEntry::Generation { number, .. } => {
                    changes.entry(rule_index).or_default().1 = Some(*number);
                }
                RuntimeEntry::Override { subject, limits, .. } => {
                    let rule = &self.written[rule_index as usize];
                    let limits = paired(rule, limits)?;
                    runtime.enter(rule_index, rule, &self.types, subject, limits, at)?;
                }
            }
            Ok(())
        };
        let held = (0..).zip(entries).map(|(at, entry)| enter(at, entry)).collect();
        runtime.sort();
        let rules = self.rules_with(&changes);
        (Policy { rules, runtime: Arc::new(runtime), ..self.clone() }, held)
    }

    /// Returns this policy with one more runtime change, which is newer than all that it has. Returns `None` if the change
    /// must be joined with the others by [`Policy::with_entries`].
    pub fn with_newest(&self, entry: &RuntimeEntry) -> Option<Policy> {
        let RuntimeEntry::Override { rule, subject, limits } = entry else { return None };
        let rule_index = self.index_of(rule).ok()?;
        let rule = &self.written[rule_index as usize];
        let subject = subject_of(rule, &self.types, subject).ok()?;
        let limits = paired(rule, limits).ok()?;
        let runtime = self.runtime.with_newest(rule_index, &subject, limits)?;
        Some(Policy { runtime: Arc::new(runtime), ..self.clone() })
    }

    /// Returns the same file without runtime changes.
    pub fn as_written(&self) -> Policy {
        self.with_entries([]).0
    }

    /// Checks whether these limits would be valid for a subject, beside the existing changes.
    pub fn pairs(
        &self,
        rule: &str,
        subject: &Subject,
        limits: &[LimitSpec],
    ) -> Result<(), InvalidChange> {
        let rule_index = self.index_of(rule)?;
        let rule = &self.written[rule_index as usize];
        paired(rule, limits)?;
        self.runtime.has_room_for(rule_index, rule, &self.types, subject)
    }

    /// Returns a sentence for each limit of a subject whose capacity an override would lower: below that of the override
    /// in force, if there is one. A block lowers nothing by mistake, so it is not among them.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::{Policy, Request};
    /// let policy = Policy::from_toml(r#"
    ///     [[rule]]
    ///     name = "api"
    ///     key = ["tenant"]
    ///     limits = [{ quota = "5/second", burst = 100 }]
    ///     [[override]]
    ///     rule = "api"
    ///     subject = { tenant = "acme" }
    ///     limits = [{ quota = "50/second", burst = 5000 }]
    /// "#)?;
    /// let acme = policy.named_subject(&Request::new().with("tenant", "acme"));
    /// let lowered = policy.lowered("api", &acme, &["60/second".into()]);
    /// assert_eq!(lowered, ["the capacity of the limit \"0\" falls from 5000 to 1200"]);
    /// # Ok::<(), spillgate::PolicyError>(())
    /// ```
    pub fn lowered(&self, rule: &str, subject: &Subject, limits: &[LimitSpec]) -> Vec<String> {
        let Ok(rule_index) = self.index_of(rule) else { return Vec::new() };
        let rule = &self.written[rule_index as usize];
        let Ok(new) = paired(rule, limits) else { return Vec::new() };
        let request = subject
            .iter()
            .fold(Request::new(), |request, (name, value)| request.with(&**name, &**value));
        let overridden = self.override_of(rule_index, rule, &request);
        let capacities = self.limits_in_force(rule, overridden).iter().zip(new.iter()).filter_map(
            |(old, new)| {
                let capacity = |limit: &NamedLimit| limit.limit().capacity();
                Some((new.name(), capacity(old)?, capacity(new)?))
            },
        );
        let lowered = capacities.filter(|(_, old, new)| new < old && *new > 0);
        let sentence = |(name, old, new)| {
            format!("the capacity of the limit {name:?} falls from {old} to {new}")
        };
        lowered.map(sentence).collect()
    }

    /// Checks whether an override of the rule can name these subjects.
    pub fn can_override(&self, rule: &str, subject: &Subject) -> Result<(), InvalidChange> {
        let rule_index = self.index_of(rule)?;
        let rule = &self.written[rule_index as usize];
        subject_of(rule, &self.types, subject).map(drop)
    }

    /// Checks whether the values of a rule's key attributes name one subject. A network names
    /// several, and a text that is no address names none.
    pub fn names_one_subject(
        &self,
        rule: &Rule,
        subject: &Request<'_>,
    ) -> Result<(), InvalidChange> {
        for attribute in rule.key() {
            let value = subject.attribute(attribute).unwrap_or_default();
            self.types.type_of(attribute).names_one(value).map_err(|problem| {
                let message = format!("{attribute:?}: {}", problem.message(value));
                InvalidChange::NoSubject { message }
            })?;
        }
        Ok(())
    }

    /// Returns whether an override of some subjects covers all subjects of another one, by equal
    /// values or a network around them.
    pub fn covers(&self, wide: &Subject, narrow: &Subject) -> bool {
        wide.iter().all(|(name, value)| {
            let found = narrow.iter().find(|(known, _)| known == name);
            found.is_some_and(|(_, inner)| {
                inner == value || self.types.type_of(name).is_inside(inner, value)
            })
        })
    }

    /// Returns the subjects that a runtime change covers, in their one spelling: a network, or the
    /// subject that has an address. Values that name no subject stay as they are.
    pub fn named_subject(&self, subject: &Request<'_>) -> Subject {
        let spelled = |(name, value): (&str, &[u8])| {
            let named = self.types.type_of(name).named(value);
            (name.into(), named.map_or_else(|_| value.into(), Named::into_text))
        };
        let mut named: Vec<_> = subject.attributes().map(spelled).collect();
        named.sort_unstable();
        named.into()
    }

    /// Returns the mode of a rule in the file.
    pub fn written_mode(&self, rule: &str) -> Option<Mode> {
        let place = self.places_by_name.get(rule)?;
        Some(self.written[*place as usize].mode())
    }

    fn index_of(&self, rule: &str) -> Result<u32, InvalidChange> {
        self.places_by_name.get(rule).copied().ok_or_else(|| self.unknown_rule(rule))
    }

    /// Returns the error for a rule that does not exist, with the nearest name.
    pub fn unknown_rule(&self, rule: &str) -> InvalidChange {
        let names: Vec<&str> = self.rules().map(Rule::name).collect();
        let nearest = nearest(rule, &names).map(str::to_owned);
        InvalidChange::UnknownRule { rule: rule.to_owned(), nearest }
    }

    fn rules_with(&self, changes: &HashMap<u32, (Option<Mode>, Option<u64>)>) -> Arc<[Rule]> {
        if changes.is_empty() {
            return Arc::clone(&self.written);
        }
        let changed = |(index, rule): (u32, &Rule)| match changes.get(&index) {
            None => rule.clone(),
            Some((mode, generation)) => rule.changed(*mode, *generation),
        };
        (0..).zip(self.written.iter()).map(changed).collect()
    }
}

/// Returns the rule's limits, with those written in their places.
fn paired(rule: &Rule, written: &[LimitSpec]) -> Result<Box<[NamedLimit]>, InvalidChange> {
    let wrong = |(position, error): (usize, LimitError)| {
        let name = written.get(position).and_then(|spec| spec.name.clone());
        InvalidChange::Limit { limit: name.unwrap_or_else(|| position.to_string()), error }
    };
    if written.is_empty() || written.len() > LIMITS_MAX {
        return Err(InvalidChange::LimitCount { count: written.len() });
    }
    in_place_of_rules(rule, written.iter()).map_err(wrong)
}

impl fmt::Display for InvalidChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidChange::UnknownRule { rule, nearest: Some(nearest) } => {
                write!(f, "rule: there is no rule {rule:?}; did you mean {nearest:?}?")
            }
            InvalidChange::UnknownRule { rule, nearest: None } => {
                write!(f, "rule: there is no rule {rule:?}; write the name of one in the policy")
            }
            InvalidChange::NoSubject { message } => write!(f, "subject: {message}"),
            InvalidChange::UnknownUnit { unit, units } => {
                write!(f, "no limit of the rule counts {unit:?}; name one of its units, {units:?}")
            }
            InvalidChange::LimitCount { count } => write!(
                f,
                "limits: {count} limits; write 1 to {LIMITS_MAX}, for example [\"5/minute\"], or [\"block\"]"
            ),
            InvalidChange::Limit { limit, error } => match error.field() {
                "limits" => write!(f, "limit {limit:?}: {}", error.message()),
                _ => write!(f, "limit {limit:?}: {error}"),
            },
            InvalidChange::TooManySets => f.write_str(
                "subject: this rule's overrides name too many different sets of attributes already, and each is looked up in turn; name the attributes that another override names",
            ),
        }
    }
}

impl std::error::Error for InvalidChange {}

#[cfg(test)]
mod tests;
