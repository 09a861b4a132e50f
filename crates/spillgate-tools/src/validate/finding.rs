//! The findings of the linter: the place, the problem and the remedy.

use serde::Serialize;

/// A finding about a file that loads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// The name of the lint, which never changes.
    pub(super) code: &'static str,
    pub(super) level: Level,
    pub(super) line: usize,
    /// Absent if it is not about a single rule.
    pub(super) rule: Option<String>,
    pub(super) problem: String,
    pub(super) remedy: String,
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// Probably a mistake.
    Warning,
    /// Correct, but it may surprise.
    Note,
}

impl Level {
    pub(super) fn name(self) -> &'static str {
        match self {
            Level::Warning => "warning",
            Level::Note => "note",
        }
    }
}

impl Finding {
    /// Returns the finding as a line of a log, which has its level beside it.
    pub(super) fn for_log(&self, file: &str) -> String {
        let Finding { code, line, problem, remedy, .. } = self;
        format!("{file}:{line}: {code}: {}{problem}; {remedy}", self.place())
    }

    pub(super) fn for_people(&self, file: &str) -> String {
        let Finding { code, level, line, problem, remedy, .. } = self;
        format!("{file}:{line}: {} {code}: {}{problem}; {remedy}", level.name(), self.place())
    }

    fn place(&self) -> String {
        self.rule.as_ref().map_or(String::new(), |rule| format!("rule {rule:?}: "))
    }
}
