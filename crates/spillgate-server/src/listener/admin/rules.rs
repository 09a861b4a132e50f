//! Lists the rules in force, and sets their modes: the kill switch.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use axum::Extension;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use hyper::{HeaderMap, StatusCode, Uri};
use serde::Serialize;
use spillgate::control::{RuleMode, WriteReport};
use spillgate::policy::{Pattern, Subject};
use spillgate::{Limit, Mode, Rule};

use super::instant::Instant;
use super::subject::{reason_in, shown};
use super::tokens::Holder;
use super::{PATHS, Problem, versions};
use crate::app::App;
use crate::listener::http::json::{Object, Text};
use crate::listener::http::{answer, body, json};

#[derive(Serialize)]
struct Rules<'p> {
    rules: Vec<RuleAnswer<'p>>,
    /// Modes that were set for rules that the policy file no longer has.
    without_rule: Vec<ModeAnswer<'p>>,
}

#[derive(Serialize)]
struct RuleAnswer<'p> {
    name: &'p str,
    domain: &'p str,
    /// The conditions of its `match` by attribute.
    #[serde(rename = "match")]
    matches: BTreeMap<&'p str, MatchAnswer>,
    key: Vec<&'p str>,
    anchor: Option<Vec<&'p str>>,
    on_outage: &'static str,
    mode: ModeAnswer<'p>,
    limits: Vec<LimitAnswer<'p>>,
}

/// A condition on one attribute.
#[derive(Serialize)]
struct MatchAnswer {
    /// The patterns, for people. A long list is cut.
    wants: Vec<String>,
    /// A value that matches; null if a request without the attribute matches, or none is known.
    example: Option<String>,
}

#[derive(Serialize)]
struct ModeAnswer<'p> {
    rule: &'p str,
    in_force: &'static str,
    /// The mode in the policy file.
    written: Option<&'static str>,
    /// The mode that an operator set at run time.
    runtime: Option<&'static str>,
    expires_at: Option<Instant>,
    /// The actor that set it, and the reason. Null without a runtime mode.
    actor: Option<&'p str>,
    reason: Option<&'p str>,
}

#[derive(Serialize)]
struct LimitAnswer<'p> {
    name: String,
    /// The limit as a policy writes it.
    quota: String,
    algorithm: &'static str,
    unit: &'p str,
    capacity: Option<u64>,
    refill_ms: Option<u64>,
    /// The time in which the whole capacity comes back.
    window_ms: Option<u64>,
}

/// The most patterns of an attribute in the list of rules.
const PATTERNS: usize = 5;

/// The result of a runtime change.
#[derive(Serialize)]
struct WriteAnswer<'w> {
    result: &'static str,
    /// The subjects that an override covers, each value in the spelling by which it is listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<BTreeMap<&'w str, Cow<'w, str>>>,
    /// What an override does that its author may not expect.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// The reason why the store does not have the change yet.
    unsaved: Option<&'w str>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object such as {\"mode\": \"off\"}")]
pub struct ModeFields<'a> {
    #[serde(borrow)]
    mode: Text<'a>,
    pub(crate) expires_at: Option<Instant>,
    #[serde(borrow)]
    reason: Option<Text<'a>>,
}

pub async fn list(State(app): State<App>, headers: HeaderMap) -> Response {
    let policy = app.limiter().policy();
    let modes = app.limiter().modes();
    let by_rule: HashMap<&str, &RuleMode> = modes.iter().map(|mode| (mode.rule(), mode)).collect();
    let rules = policy
        .rules()
        .filter_map(|rule| Some(RuleAnswer::new(rule, by_rule.get(rule.name()).copied()?)));
    let gone = modes.iter().filter(|mode| mode.written().is_none());
    let answer =
        Rules { rules: rules.collect(), without_rule: gone.map(ModeAnswer::new).collect() };
    versions::unless_known(&headers, &answer, answer::ANSWER_BYTES * (1 + answer.rules.len()))
}

pub async fn set_mode(
    State(app): State<App>,
    Extension(holder): Extension<Holder>,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let rule = rule_in(path, &uri)?;
    let body = body::read(body).await?;
    let Object(fields): Object<ModeFields<'_>> = json::parse(&body)?;
    let Text(mode) = &fields.mode;
    let no_mode = || format!("{mode:?} is not a mode; write enforce, shadow or off");
    let mode = Mode::named(mode).ok_or_else(|| Problem::in_field("mode", &no_mode()))?;
    let expires_at = fields.expires_at.map(|Instant(instant)| instant);
    let note = holder.note(fields.reason.as_ref().map(|Text(reason)| &**reason))?;
    let note = versions::replacing(note, &headers)?;
    Ok(written(&app.limiter().with_note(note).set_mode(&rule, mode, expires_at).await?))
}

/// Removes the mode that was set at run time, so that the policy file's mode is in force again.
pub async fn clear_mode(
    State(app): State<App>,
    Extension(holder): Extension<Holder>,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let rule = rule_in(path, &uri)?;
    let note = versions::replacing(holder.note(reason_in(&uri)?.as_deref())?, &headers)?;
    Ok(written(&app.limiter().with_note(note).clear_mode(&rule).await?))
}

/// Answers a change that has no version, since a store keeps it alone.
pub fn done() -> Response {
    let answer = WriteAnswer { result: "done", subject: None, note: None, unsaved: None };
    answer::json(&answer, answer::ANSWER_BYTES)
}

/// Answers a runtime change, which is in force here. The status is 202 if some shards get it later.
pub fn written(report: &WriteReport) -> Response {
    written_as(report, None, None)
}

/// Answers a runtime change of the limits of some subjects of a rule. The answer notes capacities that it lowers, and
/// that it has no effect if the rule is not enforced.
pub fn written_for(
    report: &WriteReport,
    subject: &Subject,
    rule: Option<&Rule>,
    mut notes: Vec<String>,
) -> Response {
    notes.extend(rule.and_then(without_effect));
    let note = (!notes.is_empty()).then(|| notes.join("; "));
    written_as(report, Some(subject), note)
}

/// Returns the reason for which a change of limits has no effect, if the rule is not enforced.
pub fn without_effect(rule: &Rule) -> Option<String> {
    let why = match rule.mode() {
        Mode::Enforce => return None,
        Mode::Shadow => "is in shadow mode, so it denies nothing",
        Mode::Off => "is off, so it decides nothing",
    };
    let name = rule.name();
    Some(format!("rule {name:?} {why}; set its mode to enforce for this change to take effect"))
}

fn written_as(report: &WriteReport, subject: Option<&Subject>, note: Option<String>) -> Response {
    let subject = subject
        .map(|subject| shown(subject.iter().map(|(name, value)| (name.as_ref(), value.as_ref()))));
    let answer = WriteAnswer { result: "done", subject, note, unsaved: report.why_unsaved() };
    let mut response = answer::json(&answer, answer::ANSWER_BYTES);
    if !report.is_saved() {
        *response.status_mut() = StatusCode::ACCEPTED;
    }
    versions::written_at(response, report.written_at())
}

/// Returns the rule that a path names. Names may hold slashes, so the name is all before the last `/mode`.
fn rule_in(path: Result<Path<String>, PathRejection>, uri: &Uri) -> Result<String, Problem> {
    let rule = path.ok().and_then(|Path(path)| Some(path.strip_suffix("/mode")?.to_owned()));
    rule.ok_or_else(|| Problem::no_such_path(uri.path(), PATHS))
}

impl<'p> RuleAnswer<'p> {
    fn new(rule: &'p Rule, mode: &'p RuleMode) -> RuleAnswer<'p> {
        RuleAnswer {
            name: rule.name(),
            domain: rule.domain(),
            matches: rule
                .matches()
                .map(|(name, patterns)| (name, MatchAnswer::new(patterns)))
                .collect(),
            key: rule.key().collect(),
            anchor: rule.anchor().map(Iterator::collect),
            on_outage: rule.on_outage().name(),
            mode: ModeAnswer::new(mode),
            limits: (0..)
                .zip(rule.limits())
                .map(|(at, limit)| LimitAnswer::new(at, limit))
                .collect(),
        }
    }
}

impl MatchAnswer {
    fn new<'p>(patterns: impl Iterator<Item = Pattern<'p>>) -> MatchAnswer {
        let patterns: Vec<Pattern<'_>> = patterns.take(PATTERNS).collect();
        let wants = patterns.iter().map(Pattern::describe).collect();
        let is_optional = |pattern: &Pattern<'_>| matches!(pattern, Pattern::Absent);
        let example = match patterns.iter().any(is_optional) {
            true => None,
            false => patterns.iter().find_map(example_of),
        };
        MatchAnswer { wants, example }
    }
}

/// Returns a value that a pattern matches.
fn example_of(pattern: &Pattern<'_>) -> Option<String> {
    match pattern {
        Pattern::Exact(value) => String::from_utf8(value.to_vec()).ok(),
        // A gap of a form matches the very characters that stand for it.
        Pattern::Glob(glob) => Some(glob.to_string()),
        Pattern::Network(network) => Some(network.to_string().split('/').next()?.to_owned()),
        _ => None,
    }
}

impl<'p> ModeAnswer<'p> {
    fn new(mode: &'p RuleMode) -> ModeAnswer<'p> {
        ModeAnswer {
            rule: mode.rule(),
            in_force: mode.in_force().name(),
            written: mode.written().map(Mode::name),
            runtime: mode.runtime().map(Mode::name),
            expires_at: mode.expires_at().map(Instant),
            actor: mode.actor(),
            reason: mode.reason(),
        }
    }
}

impl<'p> LimitAnswer<'p> {
    fn new(position: usize, limit: &'p Limit) -> LimitAnswer<'p> {
        LimitAnswer {
            name: limit.name().map_or_else(|| position.to_string(), str::to_owned),
            quota: limit.to_string(),
            algorithm: limit.algorithm().name(),
            unit: limit.unit(),
            capacity: limit.capacity(),
            refill_ms: limit.refill().map(answer::ms_up),
            window_ms: limit.window().map(answer::ms_up),
        }
    }
}
