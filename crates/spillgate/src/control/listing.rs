//! What is set while running, as an operator sees it.

use std::fmt;
use std::time::SystemTime;

use crate::limit::LimitSpec;
use crate::policy::{InvalidChange, Mode, Subject};

/// Limits that were set for a subject while running.
#[derive(Clone, Debug)]
pub struct Override {
    pub(crate) rule: Box<str>,
    pub(crate) subject: Subject,
    pub(crate) limits: Vec<LimitSpec>,
    pub(crate) written_at: SystemTime,
    pub(crate) expires_at: Option<SystemTime>,
    pub(crate) not_in_force: Option<InvalidChange>,
    pub(crate) lacking: Vec<String>,
}

/// The mode of a rule, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleMode {
    pub(crate) rule: Box<str>,
    pub(crate) in_force: Mode,
    pub(crate) written: Option<Mode>,
    pub(crate) runtime: Option<Mode>,
    pub(crate) expires_at: Option<SystemTime>,
}

/// Where something that was set has arrived. A shard that missed it learns of it from this process, as
/// long as that lives, and from any other that knows.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// How many there are; none where the store is this process.
    pub(crate) shards: usize,
    pub(crate) missed: Vec<Missed>,
}

/// A shard that something did not reach.
#[derive(Clone, Debug)]
pub struct Missed {
    pub(crate) shard: String,
    pub(crate) why: String,
}

impl Override {
    /// The rule whose limits they stand for.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// The attributes that say who is covered, sorted by name.
    pub fn subject(&self) -> impl ExactSizeIterator<Item = (&str, &[u8])> {
        self.subject.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The limits as written.
    pub fn limits(&self) -> &[LimitSpec] {
        &self.limits
    }

    /// When it was set.
    pub fn written_at(&self) -> SystemTime {
        self.written_at
    }

    /// When it ends by itself.
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.expires_at
    }

    /// Why it is not in force, if it is not: its rule is gone, or has other limits now.
    pub fn not_in_force(&self) -> Option<&InvalidChange> {
        self.not_in_force.as_ref()
    }

    /// The shards that are not known to have it yet; this process goes on telling them.
    pub fn lacking(&self) -> &[String] {
        &self.lacking
    }
}

impl RuleMode {
    /// The rule.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// The mode in force.
    pub fn in_force(&self) -> Mode {
        self.in_force
    }

    /// What the policy file says; `None` if it has no such rule any more.
    pub fn written(&self) -> Option<Mode> {
        self.written
    }

    /// What was set while running.
    pub fn runtime(&self) -> Option<Mode> {
        self.runtime
    }

    /// When what was set ends by itself.
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.expires_at
    }
}

impl Written {
    /// The shards that it did not reach.
    pub fn missed(&self) -> &[Missed] {
        &self.missed
    }

    /// Whether every shard has it.
    pub fn everywhere(&self) -> bool {
        self.missed.is_empty()
    }

    /// The shards, if there are any and it reached none.
    pub(crate) fn missed_by_all(&self) -> Option<Vec<Missed>> {
        (self.shards > 0 && self.missed.len() == self.shards).then(|| self.missed.clone())
    }
}

impl Missed {
    /// The shard, without credentials.
    pub fn shard(&self) -> &str {
        &self.shard
    }

    /// Why.
    pub fn why(&self) -> &str {
        &self.why
    }
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.shard, self.why)
    }
}
