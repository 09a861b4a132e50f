//! Reads the token of a client of the service.

use std::path::Path;

use crate::Failure;

/// Reads a token from a file, if one is named, and returns it as the value of the header `authorization`.
///
/// The file holds the token alone, or one line `name:role:token` as the service's `admin_token_file` does.
///
/// # Errors
///
/// If the file cannot be read or has several lines.
pub fn token(file: Option<&Path>) -> Result<Option<String>, Failure> {
    let Some(file) = file else { return Ok(None) };
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let text = text.trim();
    if text.lines().count() > 1 {
        let file = file.display();
        return Err(format!("{file} has several lines; name a file with one token").into());
    }
    Ok(Some(format!("Bearer {}", token_in(text))))
}

fn token_in(line: &str) -> &str {
    match line.splitn(3, ':').collect::<Vec<_>>()[..] {
        [_, "viewer" | "operator", token] => token,
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_service_gives_its_token_and_any_other_text_is_the_token() {
        assert_eq!(token_in("ann:operator:a:b"), "a:b");
        assert_eq!(token_in("eve:viewer:abc"), "abc");
        for token in ["abc", "a:b:c", "operator:abc"] {
            assert_eq!(token_in(token), token);
        }
    }
}
