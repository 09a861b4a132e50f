//! Overrides that change nothing.

use spillgate::Pattern;

use super::super::rules::holds;
use super::{Found, Looked};

pub(super) fn never_met(looked: &Looked<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for written in looked.rules() {
        for entry in looked.overrides_of(written.rule) {
            let misfit = entry.subject.iter().find(|(attribute, value)| {
                let wanted = written.rule.matches().find(|(asked, _)| **asked == **attribute);
                wanted.is_some_and(|(_, mut patterns)| {
                    !patterns.any(|pattern| holds(pattern, Pattern::Exact(value.as_bytes())))
                })
            });
            if let Some((attribute, value)) = misfit {
                let what = format!(
                    "no request meets this override: the rule's match leaves {attribute} = {value:?} out"
                );
                let line = entry.line_of("subject");
                found.push(written.warning(line, what, "correct one of them, or leave it out"));
            }
        }
    }
    found
}

pub(super) fn changes_nothing(looked: &Looked<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for written in looked.rules() {
        // Beside others it may stand between one of fewer attributes and a subject.
        let mut overrides = looked.overrides_of(written.rule);
        let (Some(entry), None) = (overrides.next(), overrides.next()) else { continue };
        let names: Vec<Option<&str>> = written.rule.limits().map(|limit| limit.name()).collect();
        let same = entry.limits.iter().enumerate().all(|(at, wording)| {
            let replaced = match wording.name.as_deref() {
                None => Some(at),
                name => names.iter().position(|own| *own == name),
            };
            let replaced = replaced.and_then(|place| written.entry.limits.get(place));
            replaced.is_some_and(|replaced| replaced.says_the_same(wording))
        });
        if same {
            let what = "this override says what the rule says";
            let line = entry.line_of("limits");
            found.push(written.warning(line, what, "write other limits, or leave it out"));
        }
    }
    found
}
