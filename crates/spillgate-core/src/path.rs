//! Normalises paths, so that a client gets no second limit by writing `//login`, `/%6Cogin` or
//! `/a/../login`. A path with `%2F` or dot segments has several readings. Normalises hosts likewise.

use std::borrow::Cow;

/// Returns a path in its normal form.
///
/// Query and fragment are cut, unreserved bytes decoded, bytes that a path may not hold encoded,
/// and hexadecimal digits upper-case. `//` and dot segments are resolved.
///
/// `target` is the target of a request line, or a header that repeats it. Of an absolute URL the
/// path is used.
///
/// ```
/// use spillgate_core::path::normalised_path;
/// assert_eq!(normalised_path("/a/./b//%7Euser/..%2f?x=1"), "/a/b/~user/..%2F");
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

/// Returns the readings of a path with dot segments by servers that do not resolve them, such as Express and Starlette:
/// as [`normalised_path`] and [`path_with_slashes_decoded`], but for these segments. Empty without any.
pub(crate) fn paths_with_dots_kept(target: &[u8]) -> impl Iterator<Item = String> {
    let path = path_of(target);
    let readings = [Some(path.to_vec()), with_slashes(path)].into_iter().flatten();
    let has_dots =
        |path: &Vec<u8>| path.split(|byte| *byte == b'/').any(|one| is_dots(&respelled(one)));
    readings.filter(has_dots).map(|path| spelled(&path, Dots::Kept))
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
    let end = target.iter().position(|byte| b"?#".contains(byte)).unwrap_or(target.len());
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
                let byte = nibble(*high) << 4 | nibble(*low);
                if !is_unreserved(byte) {
                    push_encoded(byte, &mut text);
                    continue;
                }
                byte
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

/// Returns whether a byte may stand unencoded in a segment (RFC 3986: `pchar`).
fn stays(byte: u8) -> bool {
    is_unreserved(byte) || b"!$&'()*+,;=:@".contains(&byte)
}

/// Returns whether a byte means the same encoded and plain.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}
