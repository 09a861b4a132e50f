//! The tokens of operators: a file with a line `name:role:token` for each.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, RwLock};

use spillgate::control::ChangeNote;
use subtle::ConstantTimeEq;

use super::Problem;
use crate::listener::token::{is_token, random_token};
use crate::{config, files};

/// The tokens of a file, compared in constant time. Clones share them, also when they are read again.
#[derive(Clone)]
pub(crate) struct Tokens(Arc<RwLock<Arc<[Token]>>>);

struct Token {
    holder: Holder,
    value: Box<[u8]>,
}

/// The holder of a token, as changes and the audit name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) name: Arc<str>,
    pub(crate) role: Role,
}

/// The calls that a token admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Calls that read.
    Viewer,
    /// All calls.
    Operator,
}

impl Tokens {
    /// Reads the tokens of a file. `setting` is the setting that an error names.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, has no token, or has a malformed line.
    pub(crate) fn read(setting: &str, file: &Path) -> Result<Tokens, config::Problem> {
        Ok(Tokens::from(tokens_of(setting, file)?))
    }

    /// Makes one token of an operator that this process alone knows, and its text.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub(crate) fn generate() -> Result<(Tokens, String), rustls::Error> {
        let text = random_token()?;
        let holder = Holder { name: GENERATED.into(), role: Role::Operator };
        Ok((Tokens::from(vec![Token { holder, value: text.as_bytes().into() }]), text))
    }

    /// Reads the file again. On an error the tokens before stay in force.
    ///
    /// # Errors
    ///
    /// As [`Tokens::read`].
    pub(crate) fn read_again(&self, setting: &str, file: &Path) -> Result<(), config::Problem> {
        let read = tokens_of(setting, file)?;
        *self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = read.into();
        Ok(())
    }

    /// Returns the holder of a token.
    pub(crate) fn holder_of(&self, shown: &[u8]) -> Option<Holder> {
        let tokens = Arc::clone(&self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner()));
        // Every token is compared, so that the time taken does not reveal which one matched.
        let mut holder = None;
        for token in tokens.iter() {
            if token.value.ct_eq(shown).into() {
                holder = Some(token.holder.clone());
            }
        }
        holder
    }
}

impl From<Vec<Token>> for Tokens {
    fn from(tokens: Vec<Token>) -> Tokens {
        Tokens(Arc::new(RwLock::new(tokens.into())))
    }
}

impl Holder {
    /// Returns the note of a change by this holder.
    pub fn note(&self, reason: Option<&str>) -> Result<ChangeNote, Problem> {
        let note = ChangeNote::by(&self.name);
        match reason {
            None => Ok(note),
            Some(reason) if reason.chars().count() <= REASON_MAX => Ok(note.because(reason)),
            Some(_) => Err(Problem::in_field("reason", LONG_REASON)),
        }
    }

    /// A program of this machine, where no token is asked for.
    pub(crate) fn local() -> Holder {
        Holder { name: LOCAL.into(), role: Role::Operator }
    }
}

impl Role {
    pub(crate) fn may_write(self) -> bool {
        self == Role::Operator
    }

    /// Returns the role's name in the file of tokens.
    pub fn name(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
        }
    }

    fn named(name: &str) -> Option<Role> {
        [Role::Viewer, Role::Operator].into_iter().find(|role| role.name() == name)
    }
}

fn tokens_of(setting: &str, file: &Path) -> Result<Vec<Token>, config::Problem> {
    let read =
        files::read_text(file, files::CREDENTIAL_BYTES_MAX).map_err(|error| error.to_string());
    let tokens = read.and_then(|text| tokens_in(&text));
    tokens.map_err(|why| config::Problem::of_file(setting, file, format_args!("{why}; {REMEDY}")))
}

/// Reads the lines of a file. Empty lines and comments are left out.
fn tokens_in(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens: Vec<Token> = Vec::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let token = token_in(line).map_err(|why| format!("line {number}: {why}"))?;
        if tokens.iter().any(|known| known.value == token.value) {
            return Err(format!("line {number}: an earlier line has the same token"));
        }
        tokens.push(token);
    }
    match tokens.is_empty() {
        true => Err("has no line name:role:token".to_owned()),
        false => Ok(tokens),
    }
}

/// Reads one line. An error quotes no part of it: a token may stand anywhere in a malformed line.
fn token_in(line: &str) -> Result<Token, &'static str> {
    let mut parts = line.splitn(3, ':');
    let (Some(name), Some(role), Some(value)) = (parts.next(), parts.next(), parts.next()) else {
        return Err("is not of the form name:role:token");
    };
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
    if !(1..=NAME_MAX).contains(&name.len()) || !name.bytes().all(is_of_name) {
        return Err("the name has 1 to 64 letters, digits and . _ @ -");
    }
    let role = Role::named(role).ok_or("the role is viewer or operator")?;
    if !is_token(value) {
        return Err("the token has at least 16 printable ASCII characters");
    }
    Ok(Token { holder: Holder { name: name.into(), role }, value: value.as_bytes().into() })
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens(..)")
    }
}

const REMEDY: &str = "write a line for each token, such as ann:operator:TOKEN or grafana:viewer:TOKEN, and make \
     each token with: openssl rand -hex 32";
/// The actor of changes by the generated token.
const GENERATED: &str = "generated";
/// The actor of changes without a token.
const LOCAL: &str = "local";
const NAME_MAX: usize = 64;
/// The most characters of a reason, as the library keeps them.
const REASON_MAX: usize = 500;
const LONG_REASON: &str = "more than 500 characters; shorten it";

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: &str = "0123456789abcdef";
    const BOB: &str = "fedcba:987654:3210";

    #[test]
    fn each_line_is_a_token_with_its_holder() {
        let text = format!("# by hand\n\nann:operator:{ANN}\n  bob@example.com:viewer:{BOB} \r\n");
        let tokens = Tokens::from(tokens_in(&text).unwrap());
        let held = |name: &str, role| Some(Holder { name: name.into(), role });
        assert_eq!(tokens.holder_of(ANN.as_bytes()), held("ann", Role::Operator));
        assert_eq!(tokens.holder_of(BOB.as_bytes()), held("bob@example.com", Role::Viewer));
        for other in ["", "0123456789abcde", "0123456789abcdef0", "ann:operator:0123456789abcdef"] {
            assert_eq!(tokens.holder_of(other.as_bytes()), None, "{other:?}");
        }
    }

    #[test]
    fn two_tokens_of_one_name_rotate() {
        let text = format!("ann:operator:{ANN}\nann:operator:{BOB}\n");
        let tokens = Tokens::from(tokens_in(&text).unwrap());
        assert_eq!(tokens.holder_of(ANN.as_bytes()), tokens.holder_of(BOB.as_bytes()));
    }

    #[test]
    fn a_malformed_line_is_named_and_not_quoted() {
        let line = format!("ann:operator:{ANN}");
        for (text, why) in [
            (String::new(), "has no line name:role:token"),
            ("\n# nothing\n".to_owned(), "has no line name:role:token"),
            (ANN.to_owned(), "line 1: is not of the form name:role:token"),
            (format!("{line}\n\nann:{BOB}"), "line 3: the role is viewer or operator"),
            (format!("ann:admin:{ANN}"), "line 1: the role is viewer or operator"),
            (format!(":operator:{ANN}"), "line 1: the name has 1 to 64 letters"),
            (format!("{}:operator:{ANN}", "a".repeat(65)), "line 1: the name has 1 to 64 letters"),
            (format!("a b:operator:{ANN}"), "line 1: the name has 1 to 64 letters"),
            ("ann:operator:short".to_owned(), "line 1: the token has at least 16"),
            (format!("ann:operator:{ANN} {ANN}"), "line 1: the token has at least 16"),
            (format!("{line}\nbob:viewer:{ANN}"), "line 2: an earlier line has the same token"),
        ] {
            let error = tokens_in(&text).err().unwrap();
            assert!(error.starts_with(why), "{text:?}: {error}");
            assert!(!error.contains(ANN) && !error.contains("987654"), "{error}");
        }
    }
}
