//! What the doctor finds: what is so, why it matters, and what mends it.

use serde::Serialize;

/// One thing that somebody should know, or mend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// The name of the check; it stays the same.
    pub(crate) check: &'static str,
    /// Whom it is about; absent if it is the store as a whole, or us.
    pub(crate) server: Option<String>,
    pub(crate) what: String,
    pub(crate) why: &'static str,
    /// A command, or what to do.
    pub(crate) mend: String,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// Limits do not hold, or are not decided by the store, or either can happen unseen.
    Unsafe,
    /// One foreseeable event away from that.
    Warning,
    /// As it is meant to be in some places.
    Note,
}

impl Finding {
    /// For people: a line of what, and one each of why and what mends it.
    pub(crate) fn for_people(&self) -> String {
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
