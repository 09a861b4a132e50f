//! What the linter finds in a file that loads: where, what is so, and what would mend it.

use serde::Serialize;

/// One thing that somebody should know, or mend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// The name of the lint; it stays the same.
    pub(super) code: &'static str,
    pub(super) level: Level,
    pub(super) line: usize,
    /// Absent where it is about no single rule.
    pub(super) rule: Option<String>,
    pub(super) what: String,
    pub(super) remedy: String,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// Hardly what was meant.
    Warning,
    /// Right, and not to everybody's surprise.
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
        let Finding { code, line, what, remedy, .. } = self;
        format!("{file}:{line}: {code}: {}{what}; {remedy}", self.place())
    }

    pub(super) fn for_people(&self, file: &str) -> String {
        let Finding { code, level, line, what, remedy, .. } = self;
        format!("{file}:{line}: {} {code}: {}{what}; {remedy}", level.name(), self.place())
    }

    fn place(&self) -> String {
        self.rule.as_ref().map_or(String::new(), |rule| format!("rule {rule:?}: "))
    }
}
