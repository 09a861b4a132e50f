//! Finds settings that name a file that cannot be read.

use super::super::finding::Level;
use super::{Checked, Finding};

/// Only a note: a file may be validated where the secrets of the service are not.
pub fn unreadable(checked: &Checked<'_>) -> Vec<Finding> {
    let found = checked.unreadable.iter().map(|(setting, why)| Finding {
        code: "",
        level: Level::Note,
        line: checked.line_set(setting).unwrap_or(1),
        rule: None,
        problem: format!("{setting} cannot be read here, and the service would not start: {why}"),
        remedy: "make the file readable, or ignore this if the service runs on another machine"
            .to_owned(),
    });
    found.collect()
}
