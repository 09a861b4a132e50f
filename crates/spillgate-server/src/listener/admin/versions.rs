//! Versions of what the admin API has: a client does not get a list again that it knows, and replaces no change that it
//! does not know.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::SystemTime;

use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{ETAG, HeaderMap, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use jiff::Timestamp;
use serde::Serialize;
use spillgate::control::ChangeNote;

use super::Problem;
use super::instant::Instant;
use crate::listener::http::answer;

/// Returns a list with its version, or the version alone if the client knows it. `capacity` is the estimated number of
/// bytes.
pub fn unless_known(known: &HeaderMap, list: &impl Serialize, capacity: usize) -> Response {
    let bytes = answer::json_bytes(list, capacity);
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    let version = version_of(format_args!("{:016x}", hasher.finish()));
    let response = match known.get(IF_NONE_MATCH) == Some(&version) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => answer::response(bytes),
    };
    with_version(response, version)
}

/// Returns the answer to a change with the version that it wrote.
pub fn written_at(response: Response, written_at: SystemTime) -> Response {
    with_version(response, version_of(format_args!("{}", Instant(written_at))))
}

/// Returns the note of a change that may only replace the version in `If-Match`, if there is one. `*` is any version.
///
/// # Errors
///
/// If the field has no version of a change, or several.
pub fn replacing(note: ChangeNote, headers: &HeaderMap) -> Result<ChangeNote, Problem> {
    let mut fields = headers.get_all(IF_MATCH).iter();
    let Some(seen) = fields.next() else { return Ok(note) };
    let no_version = || Problem::in_field("If-Match", NO_VERSION);
    let seen = seen.to_str().ok().filter(|_| fields.next().is_none()).ok_or_else(no_version)?;
    if seen.trim() == ANY {
        return Ok(note);
    }
    // A proxy that compresses answers marks their versions as weak.
    let seen = seen.trim().trim_start_matches("W/").trim_matches('"');
    let seen = seen.parse::<Timestamp>().map_err(|_| no_version())?;
    Ok(note.replacing(seen.into()))
}

/// Refuses a change of counters that names the version to replace: counters have no versions.
pub fn refuse_any(headers: &HeaderMap) -> Result<(), Problem> {
    match headers.get_all(IF_MATCH).iter().all(|seen| *seen == ANY) {
        true => Ok(()),
        false => Err(Problem::in_field("If-Match", NO_VERSIONS)),
    }
}

fn version_of(text: impl std::fmt::Display) -> HeaderValue {
    HeaderValue::try_from(format!("\"{text}\""))
        .expect("digits, letters and signs in ASCII are a value")
}

fn with_version(mut response: Response, version: HeaderValue) -> Response {
    response.headers_mut().insert(ETAG, version);
    response
}

/// The `If-Match` that every version matches.
const ANY: &str = "*";
const NO_VERSION: &str = "this is not a version of a change; send one ETag, of the answer to the change that you \
     replace, or * for any version; a list is not accepted";
const NO_VERSIONS: &str = "counters have no versions to compare with; leave the field out";
