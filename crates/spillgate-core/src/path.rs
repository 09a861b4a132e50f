//! Normalises paths, so that a client gets no second limit by writing `//login`, `/%6Cogin` or
//! `/a/../login`. Servers differ about `%2F`, dot segments, `#` and a final newline, so a path with these has several
//! readings. Normalises hosts likewise.

use std::borrow::Cow;

/// Returns a path in its normal form.
///
/// Query and fragment are cut, bytes that a segment may hold decoded, all others encoded, and
/// hexadecimal digits upper-case. `//` and dot segments are resolved.
///
/// `target` is the target of a request line, or a header that repeats it. Of an absolute URL the
/// path is used.
///
/// ```
/// use spillgate_core::path::normalised_path;
/// assert_eq!(normalised_path("/a/./b//%7Euser/..%2f?x=1"), "/a/b/~user/..%2F");
/// assert_eq!(normalised_path("/gpt%3Agenerate/[1]"), "/gpt:generate/%5B1%5D");
/// assert_eq!(normalised_path("/login/%2e%2E/../../admin/"), "/admin/");
/// assert_eq!(normalised_path("https://example.org"), "/");
/// ```
pub fn normalised_path<T: AsRef<[u8]> + ?Sized>(target: &T) -> Cow<'_, str> {
    let path = path_of(target.as_ref());
    match std::str::from_utf8(path) {
        Ok(text) if is_normal(path) => Cow::Borrowed(text),
        _ if path == b"*" => Cow::Borrowed("*"),
        _ => Cow::Owned(spelled(path, Dots::Resolved)),
    }
}

/// Returns the other reading of a path with `%2F`: as [`normalised_path`], but each `%2F` is a slash before dot
/// segments are resolved. `None` if the path has no `%2F`.
///
/// Servers differ: nginx decodes `%2F` where it rewrites or serves files, most routers keep it in its segment. A client
/// chooses the spelling, so a rule must know both readings.
///
/// ```
/// use spillgate_core::path::path_with_slashes_decoded;
/// assert_eq!(path_with_slashes_decoded("/x%2f..%2Flogin").as_deref(), Some("/login"));
/// assert_eq!(path_with_slashes_decoded("/login%252F"), None);
/// ```
pub fn path_with_slashes_decoded<T: AsRef<[u8]> + ?Sized>(target: &T) -> Option<String> {
    with_slashes(path_of(target.as_ref())).map(|path| spelled(&path, Dots::Resolved))
}

/// Returns every reading of a target that a server may make, each once and in normal form but for the dot segments that
/// some servers keep. The first is the one with all `%2F` decoded, all dots resolved and all final newlines cut.
///
/// They are all combinations of these choices: a `#` ends the path or belongs to it; `%2F` is a slash before dots are
/// resolved, after that, or never; dots are resolved or kept; a newline ends the path, as `$` of most regular
/// expressions allows, or belongs to it.
pub(crate) fn readings(target: &[u8]) -> Vec<String> {
    let mut readings = Vec::new();
    let mut add = |path: String| {
        for reading in without_final_newlines(&path).into_iter().chain([path]) {
            if !readings.contains(&reading) {
                readings.push(reading);
            }
        }
    };
    let cut = path_of(target);
    let with_fragment = has_fragment(target).then(|| path_before(target, b"?"));
    for path in [cut].into_iter().chain(with_fragment) {
        let decoded = with_slashes(path);
        let decoded = decoded.as_deref().unwrap_or(path);
        add(spelled(decoded, Dots::Resolved));
        let resolved = spelled(path, Dots::Resolved);
        // Applications that use `new URL()` decode what it has resolved, and some resolve the result once more.
        if let Some(later) = with_slashes(resolved.as_bytes()) {
            add(spelled(&later, Dots::Resolved));
            add(resolved);
            add(spelled(&later, Dots::Kept));
        } else {
            add(resolved);
        }
        add(spelled(path, Dots::Kept));
        add(spelled(decoded, Dots::Kept));
    }
    for place in 0..readings.len() {
        let subject = subject_of(&readings[place]);
        if !readings.contains(&subject) {
            readings.push(subject);
        }
    }
    readings
}

/// Returns the one spelling by which keys name the subject of a reading. It is a reading of the same target.
pub(crate) fn subject_of(reading: &str) -> String {
    let decoded = with_slashes(reading.as_bytes());
    let path = spelled(decoded.as_deref().unwrap_or(reading.as_bytes()), Dots::Resolved);
    without_final_newlines(&path).unwrap_or(path)
}

/// Returns whether a `#` hides a part of the path from those that cut it there.
pub(crate) fn has_fragment(target: &[u8]) -> bool {
    target.iter().find(|byte| b"?#".contains(byte)) == Some(&b'#')
}

/// Returns a host in its normal form: lower-case, without its port and without a final dot.
///
/// `host` is the value of a `Host` header, or of a header that repeats it. An IPv6 address keeps
/// its brackets.
///
/// ```
/// use spillgate_core::path::normalised_host;
/// assert_eq!(normalised_host("Example.ORG.:8443"), b"example.org");
/// assert_eq!(normalised_host("[2001:DB8::1]:443"), b"[2001:db8::1]");
/// ```
pub fn normalised_host<T: AsRef<[u8]> + ?Sized>(host: &T) -> Vec<u8> {
    let host = host.as_ref().trim_ascii();
    let is_end = |byte: &u8| if host.starts_with(b"[") { *byte == b']' } else { *byte == b':' };
    let name = match host.iter().position(is_end) {
        Some(end) if host[end] == b']' => &host[..=end],
        Some(end) => &host[..end],
        None => host,
    };
    name.strip_suffix(b".").unwrap_or(name).to_ascii_lowercase()
}

/// Returns the path of a target, without scheme, authority, query and fragment.
fn path_of(target: &[u8]) -> &[u8] {
    path_before(target, b"?#")
}

/// Returns the path of a target, which the first of some bytes ends, without scheme and authority.
fn path_before<'t>(target: &'t [u8], ends: &[u8]) -> &'t [u8] {
    let end = target.iter().position(|byte| ends.contains(byte)).unwrap_or(target.len());
    let target = &target[..end];
    let first_slash = target.iter().position(|byte| *byte == b'/').unwrap_or(target.len());
    let (scheme, rest) = target.split_at(first_slash);
    if scheme.len() > 1 && scheme.ends_with(b":") && rest.starts_with(b"//") {
        let authority = &rest[2..];
        let path = authority.iter().position(|byte| *byte == b'/').unwrap_or(authority.len());
        return &authority[path..];
    }
    target
}

/// Returns whether the path is in its normal form already, as nearly every path is.
fn is_normal(path: &[u8]) -> bool {
    path.starts_with(b"/")
        && path.iter().all(|byte| *byte == b'/' || stays(*byte))
        && path.windows(2).all(|pair| pair != b"//" && pair != b"/.")
}

/// Returns a path in which each `%2F` is a slash; `None` if there is none.
fn with_slashes(mut path: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::new();
    while let Some(at) = path.windows(3).position(|triplet| triplet.eq_ignore_ascii_case(b"%2F")) {
        decoded.extend_from_slice(&path[..at]);
        decoded.push(b'/');
        path = &path[at + 3..];
    }
    (!decoded.is_empty()).then(|| [&decoded, path].concat())
}

/// Returns a normalised path without the newlines at its end, before a final slash too; `None` if there are none. A dot
/// segment must not come to light, since it would have to be resolved.
fn without_final_newlines(path: &str) -> Option<String> {
    let (mut rest, mut slash) = (path, "");
    loop {
        if let Some(shorter) = rest.strip_suffix(NEWLINE) {
            rest = shorter;
        } else if let Some(shorter) = rest.strip_suffix('/') {
            (rest, slash) = (shorter, "/");
        } else {
            break;
        }
    }
    let shortened = format!("{rest}{slash}");
    let (_, last) = rest.rsplit_once('/').unwrap_or_default();
    (shortened != path && !is_dots(last)).then_some(shortened)
}

/// What becomes of the segments `.` and `..`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dots {
    Resolved,
    Kept,
}

fn is_dots(segment: &str) -> bool {
    matches!(segment, "." | "..")
}

fn spelled(path: &[u8], dots: Dots) -> String {
    let mut segments: Vec<String> = Vec::new();
    let mut ends_open = false;
    for segment in path.split(|byte| *byte == b'/').map(respelled) {
        let is_resolved = dots == Dots::Resolved && is_dots(&segment);
        ends_open = segment.is_empty() || is_resolved;
        match segment.as_str() {
            "" => {}
            ".." if is_resolved => drop(segments.pop()),
            _ if is_resolved => {}
            _ => segments.push(segment),
        }
    }
    let mut resolved = String::with_capacity(path.len() + 1);
    for segment in &segments {
        resolved.push('/');
        resolved.push_str(segment);
    }
    if ends_open || segments.is_empty() {
        resolved.push('/');
    }
    resolved
}

/// Normalises one segment: decodes and encodes bytes as needed. A `%` that begins no triplet was
/// left unencoded by the client.
fn respelled(segment: &[u8]) -> String {
    let mut text = String::with_capacity(segment.len());
    let mut rest = segment;
    while let [first, after @ ..] = rest {
        rest = after;
        let byte = match (first, after) {
            (b'%', [high, low, after @ ..]) if is_hex(*high) && is_hex(*low) => {
                rest = after;
                nibble(*high) << 4 | nibble(*low)
            }
            _ => *first,
        };
        if stays(byte) {
            text.push(char::from(byte));
        } else {
            push_encoded(byte, &mut text);
        }
    }
    text
}

fn push_encoded(byte: u8, text: &mut String) {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
    text.push('%');
    text.push(DIGITS[usize::from(byte >> 4)]);
    text.push(DIGITS[usize::from(byte & 15)]);
}

fn is_hex(byte: u8) -> bool {
    byte.is_ascii_hexdigit()
}

fn nibble(digit: u8) -> u8 {
    char::from(digit).to_digit(16).map_or(0, |value| value as u8)
}

/// Returns whether a byte may stand unencoded in a segment (RFC 3986: `pchar`). Servers decode all others, so each byte
/// gets one spelling: plain if it may be, else encoded.
fn stays(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte)
}

/// A newline in a normalised path.
const NEWLINE: &str = "%0A";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_plain_path_has_one_reading_and_no_path_has_many() {
        assert_eq!(readings(b"/login?x#/../y"), ["/login"]);
        let worst = readings(b"/a%2fb/../c/..%2fd%0A#%2fe/../f/..%2fg%0A");
        assert!(worst.len() <= 24, "{worst:?}");
    }

    proptest! {
        #[test]
        fn the_subject_of_each_reading_is_a_reading_and_its_own(
            target in "/(/|x|y|\\.\\.|\\.|%0A|%2F|#|\\?|%2E|%3A){0,12}",
        ) {
            let all = readings(target.as_bytes());
            for reading in &all {
                let subject = subject_of(reading);
                prop_assert!(all.contains(&subject), "{} of {} in {:?}", subject, reading, all);
                let only = std::slice::from_ref(&subject);
                prop_assert_eq!(&readings(subject.as_bytes())[..], only, "{}", reading);
            }
            prop_assert_eq!(&subject_of(&all[0]), &all[0]);
        }
    }
}
