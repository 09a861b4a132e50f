//! What the doctor finds: what is so, why it matters, and what mends it.

use serde::Serialize;

/// One problem of the store, or of the settings for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// The name of the check; it stays the same.
    pub check: &'static str,
    /// The server that it is about; absent if it is the store as a whole, or the settings.
    pub server: Option<String>,
    /// The problem.
    pub what: String,
    /// Why it matters.
    pub why: &'static str,
    /// How to fix it: a command, or a task.
    pub mend: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Limits do not hold, or are not decided by the store, or either can happen unseen.
    Unsafe,
    /// One foreseeable event away from that.
    Warning,
    /// As it is meant to be in some places.
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
        let Finding { check, what, why, mend, .. } = self;
        format!("{level} {check}{of}: {what}\n  why:  {why}\n  mend: {mend}")
    }

    /// For the log: one line.
    pub(crate) fn for_log(&self) -> String {
        let of = self.server.as_ref().map_or(String::new(), |server| format!(" of {server}"));
        let Finding { check, what, why, mend, .. } = self;
        format!("the store is unsafe ({check}{of}): {what}: {why}; mend it: {mend}")
    }
}
