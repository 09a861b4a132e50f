//! The shared secret that clients of a listener must send.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, RwLock};

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use rustls::crypto::ring;
use subtle::ConstantTimeEq;

use crate::config::Problem;
use crate::files;

/// A token, or two while clients change over, compared in constant time. Clones share them, also when they are read
/// again.
#[derive(Clone)]
pub(crate) struct Token(Arc<RwLock<Vec<Box<[u8]>>>>);

/// The credentials that a client sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Right,
    /// No credentials: the client may not know that it needs some.
    Nothing,
    Wrong,
}

impl Token {
    /// Reads the token of a file, or its two tokens, one a line. `setting` is the setting that an error names.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or holds no token.
    pub(crate) fn read(setting: &str, file: &Path) -> Result<Token, Problem> {
        Ok(Token::from(values_in(setting, file)?))
    }

    /// Makes a token that this process alone knows, and its text for the operator.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub(crate) fn generate() -> Result<(Token, String), rustls::Error> {
        let text = random_token()?;
        Ok((Token::from(vec![text.as_bytes().into()]), text))
    }

    /// Reads the file again. On an error the token before stays in force.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or holds no token.
    pub(crate) fn read_again(&self, setting: &str, file: &Path) -> Result<(), Problem> {
        let read = values_in(setting, file)?;
        *self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = read;
        Ok(())
    }

    /// Returns whether these bytes are the token.
    pub(crate) fn is(&self, shown: &[u8]) -> bool {
        let values = self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Each is compared, so that the time taken does not reveal which one matched.
        values.iter().fold(false, |is, value| is | bool::from(value.ct_eq(shown)))
    }

    /// Compares the credentials of a request, in `Authorization: Bearer …`.
    pub(crate) fn shown_in(&self, headers: &HeaderMap) -> Shown {
        match bearer_in(headers) {
            None => Shown::Nothing,
            Some(shown) if self.is(shown) => Shown::Right,
            Some(_) => Shown::Wrong,
        }
    }
}

impl From<Vec<Box<[u8]>>> for Token {
    fn from(values: Vec<Box<[u8]>>) -> Token {
        Token(Arc::new(RwLock::new(values)))
    }
}

/// Returns the token that a request shows in `Authorization: Bearer …`. For credentials of another kind it is empty,
/// and so equals no token.
pub(crate) fn bearer_in(headers: &HeaderMap) -> Option<&[u8]> {
    let shown = headers.get(AUTHORIZATION)?.as_bytes();
    if shown.is_empty() {
        return None;
    }
    let (scheme, token) = shown.split_at_checked(BEARER.len()).unwrap_or_default();
    Some(if scheme.eq_ignore_ascii_case(BEARER) { token.trim_ascii_start() } else { b"" })
}

/// Returns a new token that cannot be guessed.
///
/// # Errors
///
/// If the system has no random numbers.
pub(crate) fn random_token() -> Result<String, rustls::Error> {
    let mut bytes = [0; GENERATED_BYTES];
    ring::default_provider().secure_random.fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns whether a text can be a token: long enough, and without spaces.
pub(crate) fn is_token(text: &str) -> bool {
    text.len() >= LENGTH_MIN && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn values_in(setting: &str, file: &Path) -> Result<Vec<Box<[u8]>>, Problem> {
    let problem = |why: String| {
        Problem::of_file(setting, file, format_args!("{why}; make one with: openssl rand -hex 32"))
    };
    let text = files::read_text(file, files::CREDENTIAL_BYTES_MAX)
        .map_err(|error| problem(error.to_string()))?;
    let tokens: Vec<&str> = text.trim().lines().map(str::trim).collect();
    if !(1..=TOKENS_MAX).contains(&tokens.len()) || !tokens.iter().all(|token| is_token(token)) {
        return Err(problem(format!(
            "holds no token of one line with at least {LENGTH_MIN} printable ASCII characters, nor two such lines"
        )));
    }
    Ok(tokens.into_iter().map(|token| token.as_bytes().into()).collect())
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

const BEARER: &[u8] = b"Bearer ";

/// The most tokens in force: the new one and the old one.
const TOKENS_MAX: usize = 2;

/// The least length of a token: a shorter one could be guessed, or was meant as something else.
const LENGTH_MIN: usize = 16;

/// As `openssl rand -hex 32` makes them.
const GENERATED_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_behind_its_scheme_is_right() {
        let token = Token::from(vec![b"0123456789abcdef".as_slice().into()]);
        let shows = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            token.shown_in(&headers)
        };
        assert_eq!(shows("Bearer 0123456789abcdef"), Shown::Right);
        assert_eq!(shows("bearer  0123456789abcdef"), Shown::Right);
        for value in ["Bearer", "Bearer ", "0123456789abcdef", "Bearer 0123456789abcde"] {
            assert_eq!(shows(value), Shown::Wrong, "{value:?}");
        }
        assert_eq!(shows(""), Shown::Nothing);
        assert_eq!(token.shown_in(&HeaderMap::new()), Shown::Nothing);
    }
}
