//! The status of this instance for operators: each condition that needs attention, since when it lasts, and the next
//! step.
//!
//! [`Facts::status`] makes it from facts, without I/O. `/readyz?verbose` and the dashboard show the result.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use spillgate::Mode;
use spillgate::store::{FleetInstance, InstanceMismatch, ShardStatus};

use crate::app::App;
use crate::counted::{counted, first_names};
use crate::doctor;
use crate::history::{self, Switched, Watched};
use crate::metrics::Refused;

/// The facts that the status follows from. Times are in milliseconds since 1970-01-01 00:00 UTC.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) now_ms: u64,
    /// The rules in force, in any mode.
    pub(crate) rules: usize,
    /// Whether the policy file has `rules = []`.
    pub(crate) no_rules_on_purpose: bool,
    pub(crate) watched: Watched,
    /// The policy file that was refused last, if it still is.
    pub(crate) refused: Option<Refused>,
    /// The warning about the policy file in force.
    pub(crate) warning: Option<Arc<str>>,
    pub(crate) shards: Vec<ShardStatus>,
    pub(crate) mismatch: InstanceMismatch,
    /// The instances that differ from this one.
    pub(crate) differing: Vec<FleetInstance>,
    /// The checks of the doctor that found the store unsafe at the start.
    pub(crate) unsafe_store: BTreeSet<&'static str>,
}

/// The status of an instance.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Status {
    /// The worst level of its conditions; a note does not count.
    pub(crate) level: Level,
    /// The worst condition in one or two words; `healthy` without one.
    pub(crate) word: &'static str,
    /// The worst first.
    pub(crate) conditions: Vec<Condition>,
}

/// A state that an operator should know of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Condition {
    pub(crate) level: Level,
    pub(crate) kind: Kind,
    pub(crate) text: String,
    /// Since when it lasts, or when it happened; `None` if that is unknown.
    pub(crate) since_ms: Option<u64>,
    /// What to do next.
    pub(crate) next: String,
}

/// The kind of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    ShardDegraded,
    /// Decisions were made without the store.
    Fallback,
    InstancesDiffer,
    PoliciesDiffer,
    PolicyRefused,
    StateLost,
    NothingEnforced,
    RuleOff,
    RuleShadow,
    RulesGone,
    NoRules,
    StoreUnsafe,
}

/// The severity of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// Limits do not hold, or the store does not decide.
    Critical,
    /// Some limits may not hold as intended.
    Warning,
    /// Worth knowing, and configured so.
    Note,
    /// There is no condition but notes.
    Ok,
}

impl Facts {
    /// Gathers the facts about an instance now. No command is sent to the store.
    pub(crate) fn gather(app: &App) -> Facts {
        let policy = app.limiter().policy();
        Facts {
            now_ms: history::now_ms(),
            rules: policy.rules().len(),
            no_rules_on_purpose: policy.is_empty_on_purpose(),
            watched: app.history.watched(),
            refused: app.reloads.refused(),
            warning: app.reloads.warning(),
            shards: app.limiter().shards(),
            mismatch: app.limiter().instance_mismatch(),
            differing: app.limiter().differing_instances(),
            unsafe_store: app.unsafe_store.known(),
        }
    }

    /// Returns the status that follows from these facts.
    pub(crate) fn status(&self) -> Status {
        let mut conditions = Vec::new();
        conditions.extend(self.shards_away());
        conditions.extend(self.fallback());
        conditions.extend(self.instances_differ());
        conditions.extend(self.policies_differ());
        conditions.extend(self.policy_refused());
        conditions.extend(self.state_lost());
        conditions.extend(self.rules_not_enforced());
        conditions.extend(self.rules_gone());
        conditions.extend(self.no_rules());
        conditions.extend(self.store_unsafe());
        conditions.sort_by_key(|condition| condition.level);
        let worst = conditions.first().filter(|worst| worst.level < Level::Note);
        let (level, word) = match worst {
            Some(worst) => (worst.level, worst.kind.word()),
            None => (Level::Ok, "healthy"),
        };
        Status { level, word, conditions }
    }

    fn shards_away(&self) -> impl Iterator<Item = Condition> {
        self.shards.iter().filter(|shard| shard.degraded).map(|shard| {
            let since = self.watched.degraded.iter().find(|(name, _)| *name == shard.name);
            let why = match (&shard.trouble, shard.asked) {
                (Some(trouble), _) => format!(": {trouble}"),
                (None, false) => ": its circuit breaker is open".to_owned(),
                (None, true) => String::new(),
            };
            Condition {
                level: Level::Critical,
                kind: Kind::ShardDegraded,
                text: format!("decisions are made without {}{why}", shard.name),
                since_ms: since.map(|(_, since_ms)| *since_ms),
                next: format!(
                    "{}; until then each rule's on_outage decides, and no request waits",
                    remedy(shard.trouble.as_deref().unwrap_or_default())
                ),
            }
        })
    }

    fn fallback(&self) -> Option<Condition> {
        let Watched { by_fallback, by_outage_policy, decisions, .. } = self.watched;
        let is_large = FEW * (by_fallback + by_outage_policy) >= decisions;
        let by = |count: u64, by: &str| (count > 0).then(|| format!("{count} by {by}"));
        let parts = [by(by_fallback, "local shares"), by(by_outage_policy, "on_outage")];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let is_away = self.shards.iter().any(|shard| shard.degraded);
        (!parts.is_empty()).then(|| Condition {
            level: match (is_away, is_large) {
                (true, _) => Level::Critical,
                (false, true) => Level::Warning,
                (false, false) => Level::Note,
            },
            kind: Kind::Fallback,
            text: format!("decided without the store in the last minute: {}", parts.join(", ")),
            since_ms: self.watched.degraded.iter().map(|(_, since_ms)| *since_ms).min(),
            next: match is_away {
                true => {
                    "see which rules admit or deny meanwhile: their on_outage is on their pages"
                }
                false => {
                    "if it goes on while the store answers, the store is too slow: look at its p99"
                }
            }
            .to_owned(),
        })
    }

    fn instances_differ(&self) -> Option<Condition> {
        let parts: Vec<String> = doctor::mismatches(self.mismatch).map(|(_, text)| text).collect();
        (!parts.is_empty()).then(|| Condition {
            level: Level::Critical,
            kind: Kind::InstancesDiffer,
            text: format!(
                "{}; each kind keeps counters of its own, so a subject can get up to its whole limit from \
                 each",
                parts.join(", ")
            ),
            since_ms: None,
            next: "give all instances the same key secret, ring and version, and restart them".to_owned(),
        })
    }

    /// While a new policy is rolled out, instances differ for a moment.
    fn policies_differ(&self) -> Option<Condition> {
        let InstanceMismatch { policy, live, policy_since_ms, .. } = self.mismatch;
        let since_ms = policy_since_ms?;
        let lasts = self.now_ms.saturating_sub(since_ms) >= DRIFT_SHOWN_MS;
        let others = self.differing.iter().filter(|it| it.differs_in.contains(&"policy"));
        let names: Vec<&str> = others.map(|it| &*it.report.name).collect();
        lasts.then(|| Condition {
            level: Level::Warning,
            kind: Kind::PoliciesDiffer,
            text: format!(
                "{policy} of {live} instances {} another policy than this one: {}",
                if policy == 1 { "has" } else { "have" },
                first_names(&names)
            ),
            since_ms: Some(since_ms),
            next: "give all instances the same policy file; `spillgate fleet` shows which of them loaded theirs last"
                .to_owned(),
        })
    }

    fn policy_refused(&self) -> Option<Condition> {
        let Refused { at_ms, why } = self.refused.as_ref()?;
        Some(Condition {
            level: Level::Critical,
            kind: Kind::PolicyRefused,
            text: format!("the changed policy file was refused, and the policy before stays: {why}"),
            since_ms: Some(*at_ms),
            next: "fix the file: it is read again as soon as it changes; `spillgate validate FILE` checks it"
                .to_owned(),
        })
    }

    fn state_lost(&self) -> Option<Condition> {
        let at_ms = self.watched.lost_at_ms?;
        (self.now_ms.saturating_sub(at_ms) < LOSS_SHOWN_MS).then(|| Condition {
            level: Level::Warning,
            kind: Kind::StateLost,
            text: "the store lost its data: each subject may have had one fresh quota".to_owned(),
            since_ms: Some(at_ms),
            next: "find out whether it was flushed or restarted without persistence; \
                   on_state_loss = \"exhausted\" admits nothing twice"
                .to_owned(),
        })
    }

    fn rules_not_enforced(&self) -> Vec<Condition> {
        let switched = &self.watched.switched;
        let all = self.rules > 0 && switched.len() == self.rules;
        let mut conditions = Vec::new();
        if all {
            conditions.push(Condition {
                level: Level::Critical,
                kind: Kind::NothingEnforced,
                text: match self.rules {
                    1 => "the only rule is not enforced: no request is denied".to_owned(),
                    rules => format!("none of the {rules} rules is enforced: no request is denied"),
                },
                since_ms: switched.iter().map(|switched| switched.since_ms).max(),
                next: "set a rule to enforce on its page, or in the policy file".to_owned(),
            });
        }
        for mode in [Mode::Off, Mode::Shadow] {
            for at_run_time in [true, false] {
                let of = switched.iter().filter(|switched| {
                    (switched.mode, switched.at_run_time) == (mode, at_run_time)
                });
                let of: Vec<&Switched> = of.collect();
                conditions.extend(not_enforced(&of, mode, at_run_time));
            }
        }
        conditions
    }

    fn rules_gone(&self) -> Option<Condition> {
        let warning = self.warning.as_ref()?;
        Some(Condition {
            level: Level::Warning,
            kind: Kind::RulesGone,
            text: warning.to_string(),
            since_ms: None,
            next: "restore the file if it was cut short".to_owned(),
        })
    }

    fn no_rules(&self) -> Option<Condition> {
        (self.rules == 0 && !self.no_rules_on_purpose).then(|| Condition {
            level: Level::Warning,
            kind: Kind::NoRules,
            text: "there are no rules: every request without an inline limit is allowed".to_owned(),
            since_ms: None,
            next: "write a [[rule]] in a file, and start with --config FILE; if no rule is meant, write \
                   rules = []"
                .to_owned(),
        })
    }

    fn store_unsafe(&self) -> Option<Condition> {
        let found: Vec<&str> = self.unsafe_store.iter().copied().collect();
        (!found.is_empty()).then(|| Condition {
            level: Level::Warning,
            kind: Kind::StoreUnsafe,
            text: format!("findings of the start make the store unsafe: {}", found.join(", ")),
            since_ms: None,
            next: "run `spillgate doctor --config FILE`: each finding names its fix".to_owned(),
        })
    }
}

impl Condition {
    /// Returns the condition as one line, with its age.
    pub(crate) fn line(&self, now_ms: u64) -> String {
        let age = self.since_ms.map_or(String::new(), |since_ms| {
            format!(" (since {})", age(now_ms.saturating_sub(since_ms) / 1_000))
        });
        format!("{}{age}; next: {}", self.text, self.next)
    }
}

impl Kind {
    /// Returns the kind as every API spells it.
    pub(crate) fn name(self) -> &'static str {
        self.texts().0
    }

    /// Returns the kind as the status shows it, in one or two words.
    fn word(self) -> &'static str {
        self.texts().1
    }

    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Kind::ShardDegraded => ("shard-degraded", "degraded"),
            Kind::Fallback => ("fallback", "degraded"),
            Kind::InstancesDiffer => ("instances-differ", "instances differ"),
            Kind::PoliciesDiffer => ("policies-differ", "policies differ"),
            Kind::PolicyRefused => ("policy-refused", "policy refused"),
            Kind::StateLost => ("state-lost", "state lost"),
            Kind::NothingEnforced => ("nothing-enforced", "nothing enforced"),
            Kind::RuleOff => ("rule-off", "rule off"),
            Kind::RuleShadow => ("rule-shadow", "rule in shadow"),
            Kind::RulesGone => ("rules-gone", "rules gone"),
            Kind::NoRules => ("no-rules", "no rules"),
            Kind::StoreUnsafe => ("store-unsafe", "store unsafe"),
        }
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Level {
    /// Returns the level as every API spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Level::Critical => "critical",
            Level::Warning => "warning",
            Level::Note => "note",
            Level::Ok => "ok",
        }
    }
}

/// Returns what to do about a shard with this trouble. A server that refuses calls is up.
fn remedy(trouble: &str) -> &'static str {
    let known = REMEDIES.iter().find(|(code, _)| trouble.contains(code));
    known.map_or("bring the store back, or run `spillgate doctor --config FILE`", |(_, remedy)| {
        *remedy
    })
}

/// The codes of error replies from servers that are up, each with what to do.
const REMEDIES: [(&str, &str); 8] = [
    ("WRONGPASS", "correct the user or password in its address under [store]"),
    ("NOAUTH", "correct the user or password in its address under [store]"),
    ("NOPERM", "let its user run what `spillgate doctor --acl` lists"),
    ("OOM", "the server is full: raise its maxmemory"),
    ("MISCONF", "the server cannot save its data: free its disk, or correct its log's error"),
    ("NOREPLICAS", "the server lacks the replicas of min-replicas-to-write: bring them back"),
    ("BUSY", "a script of another program blocks the server: stop it by SCRIPT KILL"),
    ("LOADING", "the server reads its data after a start: wait until it has"),
];

/// Returns the condition of rules that share a mode and its origin; `None` without such rules.
fn not_enforced(rules: &[&Switched], mode: Mode, at_run_time: bool) -> Option<Condition> {
    let first = rules.first()?;
    let names: Vec<&str> = rules.iter().map(|switched| &*switched.rule).collect();
    let effect = match (mode, rules.len()) {
        (Mode::Off, 1) => "is off and limits no request",
        (Mode::Off, _) => "are off and limit no request",
        (_, 1) => "is in shadow: it counts and denies no request",
        _ => "are in shadow: they count and deny no request",
    };
    let by = if at_run_time { "set by an operator" } else { "as the policy file has it" };
    Some(Condition {
        // A shadow rule in the file is how a new rule begins.
        level: match (mode, at_run_time) {
            (Mode::Shadow, false) => Level::Note,
            _ => Level::Warning,
        },
        kind: if mode == Mode::Off { Kind::RuleOff } else { Kind::RuleShadow },
        text: format!("{} {effect}, {by}", first_names(&names)),
        since_ms: rules.iter().map(|switched| switched.since_ms).min(),
        next: match at_run_time {
            true => format!("when it is no longer needed, set {} to enforce", first.rule),
            false => format!("to enforce it, remove `mode` from {} in the policy file", first.rule),
        },
    })
}

/// Returns a duration in its largest fitting unit.
fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => counted(usize::try_from(seconds / 86_400).unwrap_or(usize::MAX), "day"),
    }
}

/// How long another policy is at an instance before that is a condition.
const DRIFT_SHOWN_MS: u64 = 60_000;
/// A loss is shown for an hour: later its effect is over for all but the longest limits.
const LOSS_SHOWN_MS: u64 = 3_600_000;
/// Fewer than one decision in 100 is too few for a warning, as for the alert on an overloaded store.
const FEW: u64 = 100;

#[cfg(test)]
mod tests;
