//! Lists the last changes of operators at any instance, the newest first: `?rule=api&n=20`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use hyper::Uri;
use serde::Serialize;
use serde_json::json;
use spillgate::control::{AuditRecord, AuditedAction};
use spillgate::{Limiter, Mode};

use super::Problem;
use super::instant::Instant;
use super::overrides::LimitAnswer;
use super::subject::{Listed, listing, shown};
use crate::app::App;
use crate::config::Log;
use crate::listener::http::answer;

#[derive(Serialize)]
struct AuditAnswer<'a> {
    changes: Vec<ChangeAnswer<'a>>,
    /// Changes on the store that an instance with another key secret sealed.
    sealed_with_another_secret: usize,
    /// Why the store's changes are missing; null if they are not.
    incomplete: Option<String>,
    /// Back to where changes on the store were read, if older ones could be among those asked for.
    searched_until: Option<Instant>,
}

/// One change. Fields that its action does not have are null.
#[derive(Serialize)]
struct ChangeAnswer<'a> {
    at: Instant,
    actor: Option<&'a str>,
    reason: Option<&'a str>,
    action: &'static str,
    rule: &'a str,
    subject: BTreeMap<&'a str, Cow<'a, str>>,
    mode: Option<&'static str>,
    limits: Option<Vec<LimitAnswer<'a>>>,
    cost: Option<BTreeMap<&'a str, u64>>,
    expires_at: Option<Instant>,
}

pub async fn list(State(app): State<App>, uri: Uri) -> Result<Response, Problem> {
    // Changes of a rule that the file no longer has are listed too.
    let (rule, n) = listing(&uri, Listed { unless_given: N, max: N_MAX })?;
    let log = app.limiter().audit_log(rule.as_deref(), n).await;
    let answer = AuditAnswer {
        changes: log.records.iter().map(ChangeAnswer::new).collect(),
        sealed_with_another_secret: log.sealed_with_another_secret,
        incomplete: log.incomplete,
        searched_until: log.searched_until.map(Instant),
    };
    Ok(answer::json(&answer, answer::ANSWER_BYTES * (1 + answer.changes.len())))
}

/// Logs each runtime change that is lost with this instance, because the store does not have it. Values of subjects
/// are left out unless the log may have them.
pub(crate) fn warn_of_unsaved(limiter: &Limiter, log: Log) {
    let changes = limiter.unsaved_changes();
    for record in changes.iter().take(LOGGED_MAX) {
        let mut change = json!(ChangeAnswer::new(record));
        if let Some(fields) = change.as_object_mut() {
            fields.retain(|_, value| !value.is_null());
        }
        if let Some(subject) = change["subject"].as_object_mut().filter(|_| !log.audit_subjects) {
            subject.values_mut().for_each(|value| *value = "(not logged)".into());
        }
        tracing::warn!(target: "spillgate", %change, "a runtime change is lost, because the store was down: make it again");
    }
    if let more @ 1.. = changes.len().saturating_sub(LOGGED_MAX) {
        tracing::warn!(target: "spillgate", more, "further runtime changes are lost");
    }
}

impl<'a> ChangeAnswer<'a> {
    fn new(record: &'a AuditRecord) -> ChangeAnswer<'a> {
        let action = record.action();
        let (mode, limits, cost) = match action {
            AuditedAction::SetMode(mode) => (Some(*mode), None, None),
            AuditedAction::SetOverride(limits) => (None, Some(limits), None),
            AuditedAction::Charge(cost) | AuditedAction::Refund(cost) => (None, None, Some(cost)),
            _ => (None, None, None),
        };
        ChangeAnswer {
            at: Instant(record.at()),
            actor: record.actor(),
            reason: record.reason(),
            action: action.name(),
            rule: record.rule(),
            subject: shown(record.subject()),
            mode: mode.map(Mode::name),
            limits: limits.map(|limits| limits.iter().map(LimitAnswer::new).collect()),
            cost: cost.map(|cost| cost.amounts().collect()),
            expires_at: record.expires_at().map(Instant),
        }
    }
}

/// The most lost changes that the log names.
const LOGGED_MAX: usize = 100;
/// The changes of a list by default.
const N: usize = 1_000;
/// The changes that the store keeps.
const N_MAX: usize = 10_000;
