//! Checks the normalisation of any path.

use spillgate::http::normalised_path;

/// Panics if a path has two normal forms, or one that a rule could not match.
pub fn holds(input: &[u8]) {
    let path = normalised_path(input);
    assert!(path == "*" || path.starts_with('/'), "{path}");
    assert!(path.is_ascii() && !path.contains("//"), "{path}");
    assert!(!path.split('/').any(|segment| segment == "." || segment == ".."), "{path}");
    assert!(path.len() <= 1 + 3 * input.len(), "{path}");
    assert_eq!(normalised_path(path.as_bytes()), path);
    if path != "*" {
        assert_eq!(
            normalised_path(&respelled(&path)),
            path,
            "every encoding has the same normal form"
        );
    }
}

/// Returns the path with every byte encoded that need not be, in lower-case digits, and each slash written three
/// times with a dot segment between.
fn respelled(path: &str) -> String {
    let (mut text, mut rest) = (String::new(), path);
    while let Some(first) = rest.chars().next() {
        let taken = if first == '%' { "%XX".len() } else { 1 };
        let (piece, after) = rest.split_at(taken);
        match first {
            '/' => text.push_str("//%2e/"),
            '%' => text.push_str(&piece.to_ascii_lowercase()),
            _ if first.is_ascii_alphanumeric() || "-._~".contains(first) => {
                text.push_str(&format!("%{:02x}", u32::from(first)));
            }
            _ => text.push(first),
        }
        rest = after;
    }
    text
}
