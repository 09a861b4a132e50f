//! A shared secret that callers of a door must show.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use subtle::ConstantTimeEq;

use crate::config::Problem;

/// The secret; compared without telling how much of it was right. Clones share it.
#[derive(Clone)]
pub(crate) struct Token(Arc<[u8]>);

impl Token {
    /// The token that a file holds on its one line; `setting` names the file in what is wrong.
    pub(crate) fn read(setting: &str, file: &Path) -> Result<Token, Problem> {
        let problem = |why: String| {
            let remedy = "make one with: openssl rand -hex 32";
            Problem::of_setting(setting, format!("{}: {why}; {remedy}", file.display()))
        };
        let text = std::fs::read_to_string(file).map_err(|error| problem(error.to_string()))?;
        let token = text.trim();
        let speakable = token.bytes().all(|byte| byte.is_ascii_graphic());
        if token.len() < LENGTH_MIN || !speakable {
            return Err(problem(format!(
                "holds no token, which is one line of at least {LENGTH_MIN} printable characters"
            )));
        }
        Ok(Token(token.as_bytes().into()))
    }

    /// Whether this is the token.
    pub(crate) fn is(&self, shown: &[u8]) -> bool {
        self.0.ct_eq(shown).into()
    }

    /// Whether a request shows it: `Authorization: Bearer …`.
    pub(crate) fn is_in(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        let bearer = shown.and_then(|shown| shown.split_at_checked(BEARER.len()));
        bearer.is_some_and(|(scheme, shown)| {
            scheme.eq_ignore_ascii_case(BEARER) && self.is(shown.trim_ascii_start())
        })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

const BEARER: &[u8] = b"Bearer ";

/// Shorter ones are guessed, or were meant as something else.
const LENGTH_MIN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_behind_its_scheme_is_taken() {
        let token = Token(b"0123456789abcdef".as_slice().into());
        let shows = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            token.is_in(&headers)
        };
        assert!(shows("Bearer 0123456789abcdef"));
        assert!(shows("bearer  0123456789abcdef"));
        for value in ["", "Bearer", "Bearer ", "0123456789abcdef", "Bearer 0123456789abcde"] {
            assert!(!shows(value), "{value:?}");
        }
        assert!(!token.is_in(&HeaderMap::new()));
    }
}
