//! A finding of the doctor: the problem, why it matters, and how to fix it.

use serde::Serialize;

/// One problem of the store, or of the settings for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// The name of the check, which stays the same between versions.
    pub check: &'static str,
    /// The server that has the problem; `None` if the store as a whole or the settings have it.
    pub server: Option<String>,
    /// The problem.
    pub problem: String,
    /// Why it matters.
    pub why: &'static str,
    /// How to fix it: a command, or a task.
    pub fix: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Limits do not hold or the store does not decide, or one of the two can happen without an error.
    Unsafe,
    /// One foreseeable event makes the store unsafe.
    Warning,
    /// A choice that is right for some operators.
    Note,
}

impl Finding {
    /// Returns three lines for people: the problem, why it matters, how to fix it.
    pub fn for_people(&self) -> String {
        let level = match self.level {
            Level::Unsafe => "UNSAFE",
            Level::Warning => "warning",
            Level::Note => "note",
        };
        let of = self.server.as_ref().map_or(String::new(), |server| format!(", {server}"));
        let Finding { check, problem, why, fix, .. } = self;
        format!("{level} {check}{of}: {problem}\n  why: {why}\n  fix: {fix}")
    }

    /// Returns the finding as one line of the log.
    pub(crate) fn for_log(&self) -> String {
        let of = self.server.as_ref().map_or(String::new(), |server| format!(" of {server}"));
        let Finding { check, problem, why, fix, .. } = self;
        format!("the store is unsafe ({check}{of}): {problem}: {why}; to fix it: {fix}")
    }
}
