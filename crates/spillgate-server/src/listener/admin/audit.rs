//! Lists the last changes of operators, the newest first: `?rule=api&n=20`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use hyper::Uri;
use serde::{Serialize, Serializer};
use spillgate::control::{AuditRecord, AuditedAction};
use spillgate::{Cost, LimitSpec, Mode};

use super::Problem;
use super::instant::Instant;
use super::overrides::LimitAnswer;
use super::subject::{Listed, listing};
use crate::app::App;
use crate::listener::http::answer;

#[derive(Serialize)]
struct AuditAnswer<'a> {
    changes: Vec<ChangeAnswer<'a>>,
}

/// One change. What an action does not have is null.
#[derive(Serialize)]
struct ChangeAnswer<'a> {
    at: Instant,
    actor: Option<&'a str>,
    reason: Option<&'a str>,
    action: &'static str,
    rule: &'a str,
    #[serde(serialize_with = "attributes")]
    subject: &'a AuditRecord,
    mode: Option<&'static str>,
    limits: Option<Vec<LimitAnswer<'a>>>,
    cost: Option<BTreeMap<&'a str, u64>>,
    expires_at: Option<Instant>,
}

pub(super) async fn list(State(app): State<App>, uri: Uri) -> Result<Response, Problem> {
    // Changes of a rule that the file no longer has are listed too.
    let (rule, n) = listing(&uri, Listed { unless_given: N_MAX, max: N_MAX })?;
    let records = app.limiter().audit();
    let of_rule =
        records.iter().filter(|record| rule.as_ref().is_none_or(|rule| rule == record.rule()));
    let answer = AuditAnswer { changes: of_rule.take(n).map(ChangeAnswer::of).collect() };
    Ok(answer::json(&answer, answer::ANSWER_BYTES * (1 + answer.changes.len())))
}

impl<'a> ChangeAnswer<'a> {
    fn of(record: &'a AuditRecord) -> ChangeAnswer<'a> {
        let action = record.action();
        ChangeAnswer {
            at: Instant(record.at()),
            actor: record.actor(),
            reason: record.reason(),
            action: action.name(),
            rule: record.rule(),
            subject: record,
            mode: mode_of(action).map(Mode::name),
            limits: limits_of(action).map(|limits| limits.iter().map(LimitAnswer::of).collect()),
            cost: cost_of(action).map(|cost| cost.amounts().collect()),
            expires_at: record.expires_at().map(Instant),
        }
    }
}

fn mode_of(action: &AuditedAction) -> Option<Mode> {
    match action {
        AuditedAction::SetMode(mode) => Some(*mode),
        _ => None,
    }
}

fn limits_of(action: &AuditedAction) -> Option<&[LimitSpec]> {
    match action {
        AuditedAction::SetOverride(limits) => Some(limits),
        _ => None,
    }
}

fn cost_of(action: &AuditedAction) -> Option<&Cost<'static>> {
    match action {
        AuditedAction::Charge(cost) | AuditedAction::Refund(cost) => Some(cost),
        _ => None,
    }
}

/// Writes the attributes of a subject. Bytes that are no UTF-8, which only the library can set, become replacement
/// characters.
fn attributes<S: Serializer>(record: &&AuditRecord, serializer: S) -> Result<S::Ok, S::Error> {
    let text = |value| -> Cow<'_, str> { String::from_utf8_lossy(value) };
    serializer.collect_map(record.subject().map(|(name, value)| (name, text(value))))
}

/// The changes that an instance keeps.
const N_MAX: usize = 1_000;
