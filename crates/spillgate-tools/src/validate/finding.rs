//! The findings of the linter: the place, the problem and the remedy.

use serde::Serialize;

/// A finding about a file that loads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the lint, which never changes.
    pub(crate) code: &'static str,
    pub(crate) level: Level,
    pub(crate) line: usize,
    /// Absent if it is not about a single rule.
    pub(crate) rule: Option<String>,
    pub(crate) problem: String,
    pub(crate) remedy: String,
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Probably a mistake.
    Warning,
    /// Correct, but it may surprise.
    Note,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Level::Warning => "warning",
            Level::Note => "note",
        }
    }
}

impl Finding {
    /// Returns the finding as a line of a log, which has its level beside it.
    pub fn for_log(&self, file: &str) -> String {
        let Finding { code, line, problem, remedy, .. } = self;
        format!("{file}:{line}: {code}: {}{problem}; {remedy}", self.place())
    }

    pub fn for_people(&self, file: &str) -> String {
        let Finding { code, level, line, problem, remedy, .. } = self;
        format!("{file}:{line}: {} {code}: {}{problem}; {remedy}", level.name(), self.place())
    }

    fn place(&self) -> String {
        self.rule.as_ref().map_or(String::new(), |rule| format!("rule {rule:?}: "))
    }
}
