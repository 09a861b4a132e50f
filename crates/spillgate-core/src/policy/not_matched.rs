//! The reasons why a request does not match a rule, for explanations.

use std::fmt;

use super::rule::{Mode, Rule};
use crate::request::Request;

/// The reason why a request does not match a rule of its domain.
///
/// `Rule::not_matched_by` returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotMatched {
    /// The rule's mode is `off`.
    Off,
    /// The rule's match or key needs an attribute that the request does not have.
    Missing {
        /// The attribute.
        attribute: String,
    },
    /// An attribute matches none of the rule's patterns.
    Mismatch {
        /// The attribute.
        attribute: String,
        /// The patterns of the rule, for people.
        wants: String,
    },
}

impl fmt::Display for NotMatched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotMatched::Off => f.write_str("the rule is off"),
            NotMatched::Missing { attribute } => {
                write!(f, "the request has no attribute {attribute:?}")
            }
            NotMatched::Mismatch { attribute, wants } => {
                write!(f, "{attribute:?} is not {wants}")
            }
        }
    }
}

#[doc(hidden)]
impl Rule {
    /// Returns the first reason why a request does not match the rule; `None` if it does.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::policy::NotMatched;
    /// use spillgate::{Policy, Request};
    ///
    /// let text = "[[rule]]\nname = 'login'\nkey = ['ip']\nlimits = ['5/minute']";
    /// let policy = Policy::from_toml(text)?;
    /// let missing = NotMatched::Missing { attribute: "ip".to_owned() };
    /// assert_eq!(policy.rule("login").unwrap().not_matched_by(&Request::new()), Some(missing));
    /// # Ok::<(), spillgate::PolicyError>(())
    /// ```
    pub fn not_matched_by(&self, request: &Request<'_>) -> Option<NotMatched> {
        if self.mode() == Mode::Off {
            return Some(NotMatched::Off);
        }
        let failing = self.conditions().iter().find(|condition| !condition.holds(request));
        if let Some(condition) = failing {
            let attribute = condition.attribute().to_owned();
            return Some(match request.attribute(&attribute) {
                None => NotMatched::Missing { attribute },
                Some(_) => NotMatched::Mismatch { attribute, wants: condition.wants() },
            });
        }
        let missing = self.missing_from(request)?;
        Some(NotMatched::Missing { attribute: missing.to_owned() })
    }
}
