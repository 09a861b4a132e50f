//! Other limits for some subjects, set while running; `"block"` allows nothing.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{HeaderMap, Uri};
use serde::Serialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use spillgate::control::{ControlError, Override};
use spillgate::policy::{Network, Subject};
use spillgate::{LimitSpec, Limiter, Policy, Request};
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use super::instant::Instant;
use super::rules::{without_effect, written, written_for};
use super::subject::{KeyValues, Query, shown, subject};
use super::tokens::Holder;
use super::{Problem, versions};
use crate::app::App;
use crate::listener::http::json::{List, Object, Text};
use crate::listener::http::limit::LimitFields;
use crate::listener::http::{answer, body, json};

#[derive(serde::Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"rule\": \"api\", \"subject\": {\"tenant\": \"acme\"}, \"limits\": [\"block\"]}"
)]
pub struct OverrideFields<'a> {
    #[serde(borrow)]
    pub(crate) rule: Text<'a>,
    #[serde(borrow)]
    pub(crate) subject: KeyValues<'a>,
    #[serde(deserialize_with = "limit_list")]
    pub(crate) limits: LimitList,
    pub(crate) expires_at: Option<Instant>,
    #[serde(borrow)]
    reason: Option<Text<'a>>,
    /// Whether to check the override and show its effect, without setting it.
    #[serde(default)]
    dry_run: bool,
}

type LimitList = List<LimitField, LIMITS_MAX>;

/// A quota, or a limit field by field, as in the policy file.
pub struct LimitField(pub LimitSpec);

#[derive(Serialize)]
struct Overrides<'o> {
    overrides: Vec<OverrideAnswer<'o>>,
}

#[derive(Serialize)]
struct OverrideAnswer<'o> {
    rule: &'o str,
    subject: BTreeMap<&'o str, Cow<'o, str>>,
    limits: Vec<LimitAnswer<'o>>,
    written_at: Instant,
    expires_at: Option<Instant>,
    actor: Option<&'o str>,
    reason: Option<&'o str>,
    /// The reason for which it is not in force, if it is not.
    not_in_force: Option<String>,
    /// Shards that do not have it yet.
    saved: bool,
}

#[derive(Serialize)]
pub struct LimitAnswer<'o> {
    quota: &'o str,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<&'o str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'o str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'o str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_zone: Option<&'o str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_hold: Option<&'o str>,
}

/// The effect of an override that is not set.
#[derive(Serialize)]
struct DryRunAnswer<'d> {
    result: &'static str,
    subject: BTreeMap<&'d str, Cow<'d, str>>,
    before: Vec<LimitInForce>,
    after: Vec<LimitInForce>,
    notes: Vec<String>,
}

/// A limit that a subject has.
#[derive(Serialize)]
struct LimitInForce {
    limit: String,
    quota: String,
    unit: String,
    capacity: Option<u64>,
}

/// Lists all overrides, or with a rule and a subject those in force that cover it, the one that applies first.
pub async fn list(
    State(app): State<App>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let mut overrides = app.limiter().overrides();
    if uri.query().is_some_and(|query| !query.is_empty()) {
        let query = Query::parse(&uri)?.without_all()?;
        let policy = app.limiter().policy();
        let subject = policy.named_subject(&query.subject);
        overrides.retain(|set| {
            set.rule() == query.rule
                && set.not_in_force().is_none()
                && policy.covers(&subject_of(set), &subject)
        });
        sort_as_they_apply(&mut overrides);
    }
    let answer = Overrides { overrides: overrides.iter().map(OverrideAnswer::new).collect() };
    let bytes = answer::ANSWER_BYTES * (1 + overrides.len());
    Ok(versions::unless_known(&headers, &answer, bytes))
}

/// Sorts overrides that cover one subject, as the policy chooses among them: those with most attributes first. Of the same
/// attributes the smallest network applies, and of different ones that which was set last.
fn sort_as_they_apply(overrides: &mut [Override]) {
    let key = |set: &Override| (prefix_of(set), set.written_at());
    let names = |set: &Override| -> Vec<String> {
        set.subject().map(|(name, _)| name.to_owned()).collect()
    };
    let mut applies = HashMap::new();
    for set in &*overrides {
        let best = applies.entry(names(set)).or_insert(key(set));
        *best = key(set).max(*best);
    }
    overrides.sort_by_cached_key(|set| {
        let names = names(set);
        Reverse((names.len(), applies.get(&names).map(|(_, at)| *at), key(set)))
    });
}

fn subject_of(set: &Override) -> Subject {
    set.subject().map(|(name, value)| (name.into(), value.into())).collect()
}

/// Returns the prefix of the smallest network among an override's values.
fn prefix_of(set: &Override) -> Option<u8> {
    set.subject().filter_map(|(_, value)| Some(Network::of_value(value)?.prefix())).max()
}

pub async fn set(
    State(app): State<App>,
    Extension(holder): Extension<Holder>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let body = body::read(body).await?;
    let Object(fields): Object<OverrideFields<'_>> = json::parse(&body)?;
    let limits: Vec<_> = fields.limits.0.into_iter().map(|LimitField(limit)| limit).collect();
    let expires_at = fields.expires_at.map(|Instant(instant)| instant);
    let subject = subject(&fields.subject);
    let note = holder.note(fields.reason.as_ref().map(|Text(reason)| &**reason))?;
    let limiter = app.limiter().with_note(versions::replacing(note, &headers)?);
    let (policy, rule) = (limiter.policy(), &*fields.rule.0);
    let named = policy.named_subject(&subject);
    let lowered = policy.lowered(rule, &named, &limits);
    if fields.dry_run {
        return dry_run(&policy, rule, &named, limits, lowered).await;
    }
    let set = limiter.set_override(rule, &subject, limits, expires_at).await?;
    Ok(written_for(&set, &named, policy.rule(rule), lowered))
}

/// Answers with the limits of a subject before and after an override, without setting it.
async fn dry_run(
    policy: &Policy,
    rule: &str,
    subject: &Subject,
    limits: Vec<LimitSpec>,
    mut notes: Vec<String>,
) -> Result<Response, Problem> {
    policy.pairs(rule, subject, &limits).map_err(ControlError::from)?;
    let request = subject
        .iter()
        .fold(Request::new(), |request, (name, value)| request.with(&**name, &**value));
    // Only a limiter applies an override to a policy, so one in memory does, which is dropped at once.
    // Its log would report a change that was not made.
    let trial = Limiter::in_memory(policy.clone());
    let set = trial.set_override(rule, &request, limits, None);
    set.with_subscriber(NoSubscriber::default()).await?;
    notes.extend(policy.rule(rule).and_then(without_effect));
    let answer = DryRunAnswer {
        result: "valid",
        subject: shown(subject.iter().map(|(name, value)| (name.as_ref(), value.as_ref()))),
        before: limits_of(policy, rule, &request),
        after: limits_of(&trial.policy(), rule, &request),
        notes,
    };
    Ok(answer::json(&answer, answer::ANSWER_BYTES))
}

fn limits_of(policy: &Policy, rule: &str, subject: &Request<'_>) -> Vec<LimitInForce> {
    let matched = policy.rule(rule).and_then(|rule| policy.matched_by_subject(rule, subject));
    let limits = matched.map(|matched| matched.limits).unwrap_or_default();
    let in_force = limits.iter().map(|named| LimitInForce {
        limit: named.name().to_owned(),
        quota: named.limit().to_string(),
        unit: named.limit().unit().to_owned(),
        capacity: named.limit().capacity(),
    });
    in_force.collect()
}

pub async fn remove(
    State(app): State<App>,
    Extension(holder): Extension<Holder>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let query = Query::parse(&uri)?.without_all()?;
    let note = holder.note(query.reason.as_deref())?;
    let limiter = app.limiter().with_note(versions::replacing(note, &headers)?);
    Ok(written(&limiter.remove_override(&query.rule, &query.subject).await?))
}

/// Reads the list of limits. Its error for a quota outside a list shows the list.
fn limit_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LimitList, D::Error> {
    deserializer.deserialize_seq(LimitListVisitor)
}

struct LimitListVisitor;

impl<'de> Visitor<'de> for LimitListVisitor {
    type Value = LimitList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an array of 1 to {LIMITS_MAX} limits; write [\"block\"] or [\"5/minute\"]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<LimitList, A::Error> {
        List::deserialize(SeqAccessDeserializer::new(list))
    }
}

impl<'de> Deserialize<'de> for LimitField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LimitVisitor).map(LimitField)
    }
}

struct LimitVisitor;

impl<'de> Visitor<'de> for LimitVisitor {
    type Value = LimitSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quota such as \"5/minute\", or an object such as {\"quota\": \"5/minute\"}")
    }

    fn visit_str<E: Error>(self, quota: &str) -> Result<LimitSpec, E> {
        Ok(LimitSpec::new(quota))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LimitSpec, A::Error> {
        Ok(LimitFields::deserialize(MapAccessDeserializer::new(map))?.spec())
    }
}

impl<'o> OverrideAnswer<'o> {
    fn new(set: &'o Override) -> OverrideAnswer<'o> {
        OverrideAnswer {
            rule: set.rule(),
            subject: shown(set.subject()),
            limits: set.limits().iter().map(LimitAnswer::new).collect(),
            written_at: Instant(set.written_at()),
            expires_at: set.expires_at().map(Instant),
            actor: set.actor(),
            reason: set.reason(),
            not_in_force: set.not_in_force().map(ToString::to_string),
            saved: set.is_saved(),
        }
    }
}

impl<'o> LimitAnswer<'o> {
    pub fn new(limit: &'o LimitSpec) -> LimitAnswer<'o> {
        LimitAnswer {
            quota: &limit.quota,
            burst: limit.burst,
            algorithm: limit.algorithm.as_deref(),
            name: limit.name.as_deref(),
            unit: limit.unit.as_deref(),
            time_zone: limit.time_zone.as_deref(),
            max_hold: limit.max_hold.as_deref(),
        }
    }
}

/// The most limits of an override, as of a rule.
pub const LIMITS_MAX: usize = 64;
