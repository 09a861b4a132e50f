//! Problems of settings and policy: the place, the field, and the fix.

use std::error::Error;
use std::fmt;

use spillgate::PolicyError;

/// The problems that keep a command from starting, shown on one line each.
#[derive(Debug)]
pub struct ConfigError(pub(super) Vec<Problem>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(Problem::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl Error for ConfigError {}

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> Self {
        ConfigError(vec![problem])
    }
}

/// One problem: its place, its field, and how to fix it.
#[derive(Clone, Debug)]
pub enum Problem {
    /// A wrong setting.
    Setting {
        /// The place where it was given.
        place: Place,
        /// Its name, such as `server.http`.
        name: String,
        /// The problem, and how to fix it.
        message: String,
    },
    /// A wrong rule or override.
    Policy(PolicyError),
    /// A file that cannot be read, or is no TOML.
    File(String),
}

/// The place where a setting was given.
#[derive(Clone, Debug)]
pub enum Place {
    Line {
        file: String,
        line: usize,
    },
    Variable(String),
    Flag(&'static str),
    /// No one place: the problem is between several settings.
    Anywhere,
}

impl Problem {
    pub(crate) fn of_setting(name: &str, message: String) -> Problem {
        Problem::Setting { place: Place::Anywhere, name: name.to_owned(), message }
    }

    /// Returns the line of the file that the problem is about; `None` if it is about no line.
    pub fn line(&self) -> Option<usize> {
        match self {
            Problem::Setting { place, .. } => place.line(),
            Problem::Policy(error) => Some(error.line()),
            Problem::File(_) => None,
        }
    }

    /// Returns the field that the problem is about; empty if it is about none.
    pub fn field(&self) -> &str {
        match self {
            Problem::Setting { name, .. } => name,
            Problem::Policy(error) => error.field(),
            Problem::File(_) => "",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Setting { place, name, message } => {
                write!(f, "{place}field `{name}`: {message}")
            }
            Problem::Policy(error) => error.fmt(f),
            Problem::File(message) => f.write_str(message),
        }
    }
}

impl Error for Problem {}

impl Place {
    /// Returns whether both are lines of the file, both variables or both flags, so that neither overrides the other.
    pub(super) fn is_like(&self, other: &Place) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    pub(super) fn line(&self) -> Option<usize> {
        match self {
            Place::Line { line, .. } => Some(*line),
            _ => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line { file, line } => write!(f, "{file}:{line}: "),
            Place::Variable(variable) => write!(f, "environment, {variable}: "),
            Place::Flag(flag) => write!(f, "{flag}: "),
            Place::Anywhere => Ok(()),
        }
    }
}
