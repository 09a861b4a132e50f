//! Reads the subject of an operator's request: a rule and attributes, in a query or in a body.

use std::borrow::Cow;
use std::collections::BTreeMap;

use hyper::Uri;
use spillgate::{Request, Value};

use super::Problem;
use crate::bounds::{ENTRIES_MAX, LONG_NAME_MAX};
use crate::listener::http::json::Named;
use crate::listener::http::request::Attribute;

/// A query such as `?rule=login&attr.ip=203.0.113.7`.
pub struct Query<'u> {
    pub(crate) rule: Cow<'u, str>,
    pub(crate) subject: Request<'u>,
    /// `&all=true`: all subjects of the rule. It must be explicit, so that a forgotten attribute resets no other
    /// subject.
    pub(crate) all: bool,
    /// `&reason=…`: the reason of a change.
    pub(crate) reason: Option<Cow<'u, str>>,
}

impl<'u> Query<'u> {
    pub fn parse(uri: &'u Uri) -> Result<Query<'u>, Problem> {
        let (mut rule, mut all, mut subject) = (None, None, Request::new());
        let mut reason = None;
        for (name, value) in parameters(uri) {
            match name.as_ref() {
                _ if name.starts_with("attr.") => subject = attribute(subject, &name, value)?,
                "rule" => once(&mut rule, &name, value)?,
                "reason" => once(&mut reason, &name, value)?,
                "all" => {
                    let given = value.parse::<bool>();
                    let given = given.map_err(|_| Problem::in_field("all", ONLY_TRUE))?;
                    once(&mut all, &name, given)?;
                }
                _ => return Err(Problem::in_field(&name, NO_SUCH_PARAMETER)),
            }
        }
        let rule = rule.ok_or_else(|| Problem::in_field("rule", NO_RULE))?;
        Ok(Query { rule, subject, all: all.unwrap_or(false), reason })
    }

    /// Refuses `all=true`, which only a reset has.
    pub fn without_all(self) -> Result<Query<'u>, Problem> {
        match self.all {
            true => Err(Problem::in_field("all", ONLY_A_RESET)),
            false => Ok(self),
        }
    }
}

/// Returns the reason of a change that has no other parameter.
pub fn reason_in(uri: &Uri) -> Result<Option<Cow<'_, str>>, Problem> {
    let mut reason = None;
    for (name, value) in parameters(uri) {
        if name != "reason" {
            return Err(Problem::in_field(&name, ONLY_A_REASON));
        }
        once(&mut reason, &name, value)?;
    }
    Ok(reason)
}

/// Keeps the value of a parameter that may be given once.
pub fn once<T>(kept: &mut Option<T>, name: &str, value: T) -> Result<(), Problem> {
    match kept.replace(value) {
        None => Ok(()),
        Some(_) => Err(Problem::in_field(name, TWICE)),
    }
}

/// Returns the parameters of a query, in their order.
pub fn parameters(uri: &Uri) -> form_urlencoded::Parse<'_> {
    form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
}

/// The number of entries that an answer lists.
pub struct Listed {
    pub(crate) unless_given: usize,
    pub(crate) max: usize,
}

/// Returns the parameters `rule` and `n` of a list: the only rule to list, and the number of entries.
pub fn listing(uri: &Uri, listed: Listed) -> Result<(Option<Cow<'_, str>>, usize), Problem> {
    let Listed { unless_given, max } = listed;
    let (mut rule, mut n) = (None, None);
    for (name, value) in parameters(uri) {
        match name.as_ref() {
            "rule" => once(&mut rule, &name, value)?,
            "n" => {
                let asked = value.parse().ok().filter(|n| (1..=max).contains(n));
                let no_n = || {
                    format!(
                        "expected a number from 1 to {max}, got {value:?}; write for example n=20"
                    )
                };
                once(&mut n, &name, asked.ok_or_else(|| Problem::in_field("n", &no_n()))?)?;
            }
            _ => {
                let only = "no such parameter; there are rule and n";
                return Err(Problem::in_field(&name, only));
            }
        }
    }
    Ok((rule, n.unwrap_or(unless_given)))
}

/// Adds the attribute of a parameter `attr.NAME=VALUE` to a subject.
pub fn attribute<'u>(
    subject: Request<'u>,
    name: &str,
    value: Cow<'u, str>,
) -> Result<Request<'u>, Problem> {
    let attribute = name.strip_prefix("attr.").unwrap_or_default();
    if !(1..=LONG_NAME_MAX).contains(&attribute.len()) {
        return Err(Problem::in_field(name, NO_NAME));
    }
    if subject.attributes().count() == ENTRIES_MAX {
        return Err(Problem::in_field(name, TOO_MANY));
    }
    if subject.attribute(attribute).is_some() {
        return Err(Problem::in_field(name, TWICE));
    }
    Ok(subject.with(attribute.to_owned(), Value::from(value.into_owned())))
}

/// The attributes of a subject in a body. A rule's key may have names as long as Envoy sends them.
pub type KeyValues<'a> = Named<'a, Attribute<'a>, LONG_NAME_MAX>;

/// Returns the attributes of a body as a subject.
pub fn subject<'a>(attributes: &'a KeyValues<'_>) -> Request<'a> {
    let with = |subject: Request<'a>, (name, Attribute(value)): &'a (Cow<'_, str>, _)| {
        subject.with(name.as_ref(), Value::from(value.as_ref()))
    };
    attributes.0.iter().fold(Request::new(), with)
}

/// Returns the attributes of a subject as text. Bytes that are no UTF-8 become replacement characters.
pub fn shown<'s>(
    attributes: impl Iterator<Item = (&'s str, &'s [u8])>,
) -> BTreeMap<&'s str, Cow<'s, str>> {
    attributes.map(|(name, value)| (name, String::from_utf8_lossy(value))).collect()
}

pub const TWICE: &str = "given twice; give it once";
const NO_SUCH_PARAMETER: &str =
    "no such parameter; there are rule, attr.NAME for each attribute, all and reason";
const ONLY_TRUE: &str = "write all=true to reset the whole rule, or leave it out";
const ONLY_A_RESET: &str =
    "only DELETE /admin/v1/state has it, for a whole rule; leave it out and write attr.NAME=VALUE";
const ONLY_A_REASON: &str = "no such parameter; there is reason";
const NO_NAME: &str = "the name of an attribute has 1 to 1024 bytes; write attr.NAME=VALUE";
const TOO_MANY: &str = "more than 256 attributes; name only those of the rule's key";
const NO_RULE: &str = "missing; add ?rule=NAME, and &attr.NAME=VALUE for each attribute of its key";
