//! Lists the subjects with the most use and those with the most denials: `?rule=api&n=20`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use hyper::Uri;
use serde::Serialize;
use spillgate::metrics::{Top, TopOfRule, TopSubject};

use super::Problem;
use super::subject::{Listed, listing, shown};
use crate::app::App;
use crate::listener::http::answer;

#[derive(Serialize)]
pub struct TopAnswer<'t> {
    window_ms: u64,
    rules: Vec<RuleAnswer<'t>>,
    decisions_left_out: u64,
}

#[derive(Serialize)]
struct RuleAnswer<'t> {
    /// Null for inline limits.
    rule: Option<&'t str>,
    unit: &'t str,
    consumed: u64,
    denied: u64,
    consumers: Vec<SubjectAnswer<'t>>,
    most_denied: Vec<SubjectAnswer<'t>>,
}

#[derive(Serialize)]
struct SubjectAnswer<'t> {
    subject: BTreeMap<&'t str, Cow<'t, str>>,
    /// Whether the values are whole; long ones are cut.
    whole: bool,
    count: u64,
}

pub async fn show(State(app): State<App>, uri: Uri) -> Result<Response, Problem> {
    let (rule, n) = listing(&uri, Listed { unless_given: N, max: N_MAX })?;
    if let Some(rule) = &rule
        && app.limiter().policy().rule(rule).is_none()
    {
        return Err(Problem::no_such_rule(rule));
    }
    let top = app.limiter().top(rule.as_deref(), n);
    let answer = TopAnswer::new(&top);
    let subjects = answer.rules.iter().map(|rule| rule.consumers.len() + rule.most_denied.len());
    let bytes = SUBJECT_BYTES * subjects.sum::<usize>() + answer::ANSWER_BYTES;
    Ok(answer::json(&answer, bytes))
}

impl<'t> TopAnswer<'t> {
    pub fn new(top: &'t Top) -> TopAnswer<'t> {
        TopAnswer {
            window_ms: answer::ms_up(top.window()),
            rules: top.rules().iter().map(RuleAnswer::new).collect(),
            decisions_left_out: top.left_out(),
        }
    }
}

impl<'t> RuleAnswer<'t> {
    fn new(rule: &'t TopOfRule) -> RuleAnswer<'t> {
        RuleAnswer {
            rule: rule.rule(),
            unit: rule.unit(),
            consumed: rule.consumed(),
            denied: rule.denied(),
            consumers: rule.consumers().iter().map(SubjectAnswer::new).collect(),
            most_denied: rule.most_denied().iter().map(SubjectAnswer::new).collect(),
        }
    }
}

impl<'t> SubjectAnswer<'t> {
    fn new(subject: &'t TopSubject) -> SubjectAnswer<'t> {
        let (whole, count) = (subject.whole(), subject.count());
        SubjectAnswer { subject: shown(subject.attributes()), whole, count }
    }
}

/// The subjects of a list by default: as many as an operator reads.
const N: usize = 10;
/// The most subjects of a list. A subject with a hundredth of a rule's use is always listed.
const N_MAX: usize = 100;
/// The estimated bytes of a subject and its count.
const SUBJECT_BYTES: usize = 96;
