//! The response of a rule to the requests that it denies, in place of the usual one.

use std::ops::RangeInclusive;

use super::file::{Entry, Table};
use super::json;
use super::problem::{Problem, Problems};

/// The response of a rule to the requests that it denies, written as a table `denial` in the rule. Parts that it does
/// not set are those of the usual response, and the header fields about the quota always are.
///
/// ```
/// # use spillgate_core::Policy;
/// use spillgate_core::policy::DenialBody;
///
/// let policy = Policy::from_toml(r#"
///     [[rule]]
///     name = "free-plan"
///     key = ["user"]
///     limits = ["100/day"]
///     denial = { status = 402, text = "Your free calls are used up.", headers = { x-plan = "free" } }
/// "#)?;
/// let denial = policy.rule("free-plan").unwrap().denial().unwrap();
/// assert_eq!(denial.status(), Some(402));
/// assert_eq!(denial.body(), Some(&DenialBody::Text("Your free calls are used up.".into())));
/// assert!(denial.headers().eq([("x-plan", "free")]));
/// # Ok::<(), spillgate_core::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleDenial {
    status: Option<u16>,
    body: Option<DenialBody>,
    headers: Vec<Member>,
}

/// The body of a [`RuleDenial`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DenialBody {
    /// A text.
    Text(Box<str>),
    /// A JSON object.
    Json(Box<str>),
    /// Members of problem details (RFC 9457): names, and values as JSON. They replace the usual members of these names,
    /// or stand beside them.
    Problem(Vec<Member>),
}

/// A name and its value.
type Member = (Box<str>, Box<str>);

impl RuleDenial {
    /// Returns the status, from 400 to 599. `None` if it goes by the reason, as usual.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// Returns the body. `None` if it is the usual one.
    pub fn body(&self) -> Option<&DenialBody> {
        self.body.as_ref()
    }

    /// Returns the header fields: names in lower case, and values.
    pub fn headers(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Reads the denial of a rule, if it has one.
    pub(crate) fn read(table: &Table<'_>, problems: &mut Problems<'_>) -> Option<RuleDenial> {
        let denial = table.table(FIELD, EXAMPLE, problems)?;
        let all_known = denial.refuse_unknown(&FIELDS, problems);
        if all_known && !FIELDS.iter().any(|field| denial.has(field)) {
            let message =
                format!("an empty table, which changes nothing; write for example {EXAMPLE}");
            problems.note(table.wrong(FIELD, message));
        }
        Some(RuleDenial {
            status: read_status(&denial, problems),
            body: read_body(&denial, problems),
            headers: read_headers(&denial, problems).unwrap_or_default(),
        })
    }
}

impl DenialBody {
    /// Returns the bytes that it adds to a response.
    fn len(&self) -> usize {
        match self {
            DenialBody::Text(text) | DenialBody::Json(text) => text.len(),
            DenialBody::Problem(members) => bytes_of(members),
        }
    }
}

fn read_status(denial: &Table<'_>, problems: &mut Problems<'_>) -> Option<u16> {
    let number = denial.whole_number("status", 429, problems)?;
    let status = u16::try_from(number).ok().filter(|status| STATUSES.contains(status));
    let wrong = || {
        let message = format!("must be from 400 to 599, got {number}; write for example 429");
        denial.wrong("status", message)
    };
    problems.noting(status.ok_or_else(wrong))
}

fn read_body(denial: &Table<'_>, problems: &mut Problems<'_>) -> Option<DenialBody> {
    let mut given = BODIES.into_iter().filter(|field| denial.has(field));
    let field = given.next()?;
    if let Some(second) = given.next() {
        let message = format!("a response has one body, and `{field}` is one; keep one of them");
        problems.note(denial.wrong(second, message));
        return None;
    }
    let body = match field {
        "text" => DenialBody::Text(denial.text(field, problems)?.into()),
        "json" => DenialBody::Json(json::object(&read_members(denial, field, problems)?).into()),
        _ => DenialBody::Problem(read_problem(denial, problems)?),
    };
    if body.len() > BODY_MAX {
        let message = format!("{} bytes, and {BODY_MAX} are the most; shorten it", body.len());
        problems.note(denial.wrong(field, message));
    }
    Some(body)
}

fn read_problem(denial: &Table<'_>, problems: &mut Problems<'_>) -> Option<Vec<Member>> {
    let members = read_members(denial, PROBLEM, problems)?;
    for (name, value) in &members {
        let message = match &**name {
            "status" => "the problem has the status of the response; set the status of the denial",
            "violated-policies" => "Spillgate writes the limits that deny; choose another name",
            "type" | "title" | "detail" | "instance" if !value.starts_with('"') => {
                "type, title, detail and instance are texts; write this one in quotes"
            }
            name if !is_member_name(name) => {
                "the name of a member has a letter, then letters, digits, - and _; choose such a name"
            }
            _ => continue,
        };
        problems.note(denial.wrong(PROBLEM, format!("{name:?}: {message}")));
    }
    Some(members)
}

/// Reads a table, with its values as JSON.
fn read_members(
    denial: &Table<'_>,
    field: &str,
    problems: &mut Problems<'_>,
) -> Option<Vec<Member>> {
    let example = format!("{field} = {{ title = \"Too many logins\" }}");
    let table = denial.table(field, &example, problems)?;
    let member = |(name, value): Entry<'_>| -> Option<Member> {
        let wrong = |message: String| denial.wrong_at(denial.at(value.span()), field, message);
        let json = problems.noting(json::of_value(value.get_ref()).map_err(wrong))?;
        Some((name.into(), json.into()))
    };
    Some(table.members().filter_map(member).collect())
}

fn read_headers(denial: &Table<'_>, problems: &mut Problems<'_>) -> Option<Vec<Member>> {
    let table = denial.table(HEADERS, "headers = { x-reason = \"quota\" }", problems)?;
    let mut headers: Vec<Member> = Vec::new();
    for entry in table.members() {
        let Some((name, value)) = problems.noting(read_header(denial, entry)) else { continue };
        if headers.iter().any(|(known, _)| *known == name) {
            let message = format!("{name:?} is listed twice; keep one of them");
            problems.note(denial.wrong(HEADERS, message));
        }
        headers.push((name, value));
    }
    if headers.len() > FIELDS_MAX {
        let message =
            format!("{} fields, and {FIELDS_MAX} are the most; leave some out", headers.len());
        problems.note(denial.wrong(HEADERS, message));
    }
    let bytes = bytes_of(&headers);
    if bytes > FIELDS_BYTES_MAX {
        let message = format!(
            "{bytes} bytes of names and values, and {FIELDS_BYTES_MAX} are the most; shorten them"
        );
        problems.note(denial.wrong(HEADERS, message));
    }
    Some(headers)
}

/// Reads a header field. Its name becomes lower case, as HTTP/2 has it.
fn read_header<'t>(denial: &Table<'t>, (name, value): Entry<'t>) -> Result<Member, Problem> {
    let wrong = |message: String| denial.wrong_at(denial.at(value.span()), HEADERS, message);
    if name.is_empty() || !name.bytes().all(is_of_token) {
        let message =
            format!("{name:?} is not the name of a header field; write for example x-reason");
        return Err(wrong(message));
    }
    let lower = name.to_ascii_lowercase();
    if is_reserved(&lower) {
        let message =
            format!("{name:?} is a field that Spillgate or the connection sets; leave it out");
        return Err(wrong(message));
    }
    let text = denial.text_of(HEADERS, value)?.text;
    if !text.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte)) {
        let message = format!(
            "the value of {name:?} has other characters than printable ASCII; leave them out"
        );
        return Err(wrong(message));
    }
    Ok((lower.into(), text.into()))
}

/// Returns whether a byte may be in the name of a header field: a `tchar` of RFC 9110.
fn is_of_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Returns whether a field about the connection, the body or the quota has this name.
fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name) || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns whether a name needs no quoting in JSON, and is one that RFC 9457 recommends.
fn is_member_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

fn bytes_of(members: &[Member]) -> usize {
    members.iter().map(|(name, value)| name.len() + value.len()).sum()
}

const FIELD: &str = "denial";
const EXAMPLE: &str = "denial = { status = 403, text = \"No more logins today.\" }";
const FIELDS: [&str; 5] = ["status", "text", "json", PROBLEM, HEADERS];
const BODIES: [&str; 3] = ["text", "json", PROBLEM];
const PROBLEM: &str = "problem";
const HEADERS: &str = "headers";
const STATUSES: RangeInclusive<u16> = 400..=599;
/// The largest body. Each denied request gets one, and an attacker can cause many.
const BODY_MAX: usize = 4 * 1024;
const FIELDS_MAX: usize = 16;
/// The most bytes of all header fields: half of the 4 KiB that proxies hold for the head of a response.
const FIELDS_BYTES_MAX: usize = 2 * 1024;
const RESERVED: [&str; 11] = [
    "connection",
    "content-encoding",
    "content-length",
    "date",
    "keep-alive",
    "proxy-connection",
    "retry-after",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
const RESERVED_PREFIXES: [&str; 3] = ["ratelimit", "x-ratelimit", "x-spillgate"];
