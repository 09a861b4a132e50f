//! Metrics of the server, beside those of its limiter.

use std::collections::BTreeSet;
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use spillgate::store::InstanceMismatch;

use crate::doctor::{self, Finding, Level};
use crate::history::now_ms;

mod process;

pub(crate) use process::Process;

/// Counts reloads of the policy file, and keeps the warning about the file in force and the last refusal.
pub(crate) struct Reloads {
    /// The time since 1970-01-01 00:00 UTC at which the file in force was loaded.
    loaded_ms: AtomicU64,
    applied: AtomicU64,
    refusals: AtomicU64,
    /// The warning about the file in force.
    warning: Mutex<Option<Arc<str>>>,
    /// The file that was refused last, unless another is in force since.
    refused: Mutex<Option<Refused>>,
}

/// A policy file that was refused.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    /// Since 1970-01-01 00:00 UTC.
    pub(crate) at_ms: u64,
    pub(crate) why: Arc<str>,
}

impl Reloads {
    /// Makes the counts of a process that loads its first file now.
    pub(crate) fn started_now() -> Reloads {
        Reloads {
            loaded_ms: now_ms().into(),
            applied: AtomicU64::default(),
            refusals: AtomicU64::default(),
            warning: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    /// Counts a file that is in force now. Its warning, if it has one, stands until the next file is in force.
    pub(crate) fn count_applied(&self, warning: Option<&str>) {
        self.loaded_ms.store(now_ms(), Ordering::Relaxed);
        self.applied.fetch_add(1, Ordering::Relaxed);
        *locked(&self.warning) = warning.map(Arc::from);
        *locked(&self.refused) = None;
    }

    /// Returns the warning that stands.
    pub(crate) fn warning(&self) -> Option<Arc<str>> {
        locked(&self.warning).clone()
    }

    /// Counts a file that was refused for this reason.
    pub(crate) fn count_refused(&self, why: &str) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
        *locked(&self.refused) = Some(Refused { at_ms: now_ms(), why: why.into() });
    }

    /// Returns the file that was refused, as long as no other is in force since.
    pub(crate) fn refused(&self) -> Option<Refused> {
        locked(&self.refused).clone()
    }

    /// Returns the families in the text format of Prometheus.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        family(&mut text, Kind::Counter, "spillgate_reloads_total", RELOADS);
        for (result, count) in [("applied", &self.applied), ("refused", &self.refusals)] {
            let count = count.load(Ordering::Relaxed);
            sample(&mut text, "spillgate_reloads_total", &[("result", result)], count);
        }
        let loaded_ms = self.loaded_ms.load(Ordering::Relaxed);
        let loaded = format!("{}.{:03}", loaded_ms / 1_000, loaded_ms % 1_000);
        let is_in_force = u8::from(self.refused().is_none());
        for (name, help, value) in [
            ("spillgate_policy_loaded_timestamp_seconds", POLICY_LOADED, loaded),
            ("spillgate_policy_last_reload_successful", LAST_RELOAD, is_in_force.to_string()),
        ] {
            family(&mut text, Kind::Gauge, name, help);
            sample(&mut text, name, &[], value);
        }
        text
    }
}

/// The doctor's checks that found the store unsafe at the start, by name.
#[derive(Default)]
pub(crate) struct UnsafeStore(Mutex<BTreeSet<&'static str>>);

impl UnsafeStore {
    pub(crate) fn note(&self, findings: &[Finding]) {
        let reasons = findings.iter().filter(|finding| finding.level == Level::Unsafe);
        *locked(&self.0) = reasons.map(|finding| finding.check).collect();
    }

    /// Returns the names of the checks.
    pub(crate) fn known(&self) -> BTreeSet<&'static str> {
        locked(&self.0).clone()
    }

    /// Returns the family in the text format of Prometheus, with the instances that differ now.
    pub(crate) fn text(&self, mismatch: InstanceMismatch) -> String {
        let mut text = String::new();
        family(&mut text, Kind::Gauge, "spillgate_store_unsafe", STORE_UNSAFE);
        let known = self.known();
        let differing = doctor::mismatches(mismatch).map(|(check, _)| check);
        for reason in known.into_iter().chain(differing) {
            sample(&mut text, "spillgate_store_unsafe", &[("reason", reason)], 1);
        }
        text
    }
}

fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The type of a family.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Counter,
    Gauge,
}

/// Writes the head of a family.
pub(crate) fn family(text: &mut String, kind: Kind, name: &str, help: &str) {
    let kind = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    };
    write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n").expect("a string takes all text");
}

/// Writes a sample. The values of labels are words of the program, which need no escapes.
pub(crate) fn sample(text: &mut String, name: &str, labels: &[(&str, &str)], value: impl Display) {
    let labels: Vec<String> =
        labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
    let labels = match labels.is_empty() {
        true => String::new(),
        false => format!("{{{}}}", labels.join(",")),
    };
    writeln!(text, "{name}{labels} {value}").expect("a string takes all text");
}

const RELOADS: &str = "Changed policy files that were read, by whether they are in force.";
const POLICY_LOADED: &str =
    "Time at which the policy file in force was loaded, in seconds since 1970.";
const LAST_RELOAD: &str =
    "1 if the policy file that was read last is in force, 0 if it was refused.";
const STORE_UNSAFE: &str = "1 for each unsafe finding of `spillgate doctor` at the start, or when the store first \
    answers, and for each part in which live instances differ now.";
