//! The modes of rules in the form that operators see.

use std::collections::HashMap;
use std::time::SystemTime;

use super::note::ChangeNote;
use super::system_time;
use super::table::Entry;
use crate::policy::{Mode, Policy, RuntimeEntry};

/// The mode of a rule and its origin.
///
/// [`Limiter::modes`](crate::Limiter::modes) lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleMode {
    rule: Box<str>,
    in_force: Mode,
    written: Option<Mode>,
    runtime: Option<RuntimeMode>,
}

/// A mode that was set as a runtime change.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RuntimeMode {
    mode: Mode,
    expires_at: Option<SystemTime>,
    note: ChangeNote,
}

impl RuleMode {
    /// Returns the mode of each rule in file order, followed by the modes of `live` entries whose
    /// rules are gone. No two live entries set the mode of one rule.
    pub(crate) fn of_all<'e>(
        policy: &Policy,
        live: impl Iterator<Item = &'e Entry> + Clone,
    ) -> Vec<RuleMode> {
        let set = live.filter_map(RuntimeMode::from_entry);
        let mut by_rule: HashMap<&str, RuntimeMode> = set.clone().collect();
        let rules = policy.rules().map(|rule| RuleMode {
            rule: rule.name().into(),
            in_force: rule.mode(),
            written: policy.written_mode(rule.name()),
            runtime: by_rule.remove(rule.name()),
        });
        let mut modes: Vec<RuleMode> = rules.collect();
        let gone =
            set.filter(|(rule, _)| by_rule.contains_key(rule)).map(|(rule, runtime)| RuleMode {
                rule: rule.into(),
                in_force: Mode::Off,
                written: None,
                runtime: Some(runtime),
            });
        modes.extend(gone);
        modes
    }

    /// Returns the name of the rule.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Returns the mode in force.
    pub fn in_force(&self) -> Mode {
        self.in_force
    }

    /// Returns the mode in the policy file; `None` if the file has no such rule any more.
    pub fn written(&self) -> Option<Mode> {
        self.written
    }

    /// Returns the mode that was set as a runtime change, if there is one.
    pub fn runtime(&self) -> Option<Mode> {
        Some(self.runtime.as_ref()?.mode)
    }

    /// Returns the time at which that mode expires, if it does.
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.runtime.as_ref()?.expires_at
    }

    /// Returns the actor that set that mode, if it is known.
    pub fn actor(&self) -> Option<&str> {
        self.runtime.as_ref()?.note.actor()
    }

    /// Returns the reason why it was set, if one was given.
    pub fn reason(&self) -> Option<&str> {
        self.runtime.as_ref()?.note.reason()
    }
}

impl RuntimeMode {
    /// Returns the rule and the mode that an entry sets, if it sets one.
    fn from_entry(entry: &Entry) -> Option<(&str, RuntimeMode)> {
        let RuntimeEntry::Mode { rule, mode } = &entry.what else { return None };
        let expires_at = entry.expires_at_us.map(system_time);
        Some((rule, RuntimeMode { mode: *mode, expires_at, note: entry.note.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::control::{Effect, Stamp};

    fn off(rule: String) -> Entry {
        Entry {
            stamp: Stamp::default(),
            expires_at_us: None,
            what: RuntimeEntry::Mode { rule: rule.into(), mode: Mode::Off },
            effect: Effect::Set,
            note: ChangeNote::by("ann").because("incident 4711"),
        }
    }

    #[test]
    fn lists_the_modes_of_gone_rules_last() {
        let rule = |name| format!("[[rule]]\nname = \"{name}\"\nkey = []\nlimits = [\"5/day\"]\n");
        let policy = Policy::from_toml(&(rule("a") + &rule("b"))).unwrap();
        let entries = ["gone", "b", "also-gone"].map(|rule| off(rule.to_owned()));
        let modes = RuleMode::of_all(&policy, entries.iter());
        let shown = modes.iter().map(|mode| (mode.rule(), mode.written(), mode.actor()));
        let (enforce, ann) = (Some(Mode::Enforce), Some("ann"));
        assert_eq!(
            shown.collect::<Vec<_>>(),
            [
                ("a", enforce, None),
                ("b", enforce, ann),
                ("gone", None, ann),
                ("also-gone", None, ann)
            ]
        );
        assert_eq!(modes[1].reason(), Some("incident 4711"));
    }

    /// Sixteen times the rules take about sixteen times as long; a search for each takes 256 times.
    /// The shortest of many runs leaves out those that other processes interrupted.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "compares two spans of real time")]
    fn the_time_to_list_modes_grows_with_the_rules_and_not_with_their_square() {
        let time_of = |rules: usize| {
            let entries: Vec<Entry> =
                (0..rules).map(|rule| off(format!("a-rule-{rule}"))).collect();
            let policy: String = (0..rules)
                .map(|rule| {
                    format!("[[rule]]\nname = \"a-rule-{rule}\"\nkey = []\nlimits = [\"5/day\"]\n")
                })
                .collect();
            let policy = Policy::from_toml(&policy).unwrap();
            let runs = (0..100).map(|_| {
                let began = Instant::now();
                assert_eq!(RuleMode::of_all(&policy, entries.iter()).len(), rules);
                began.elapsed()
            });
            runs.min().unwrap()
        };
        let (few, many) = (time_of(500), time_of(8_000));
        assert!(many < few * 64, "500 rules take {few:?}, 8,000 take {many:?}");
    }
}
