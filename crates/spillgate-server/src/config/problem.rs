//! Problems of settings and policy: where each was given, the field, and the fix.

use std::error::Error;
use std::fmt;
use std::path::Path;

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

/// One problem: where it was given, its field, and how to fix it.
#[derive(Clone, Debug)]
pub enum Problem {
    /// A wrong setting.
    Setting {
        /// Where it was given.
        origin: Origin,
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

/// Where a setting was given.
#[derive(Clone, Debug)]
pub enum Origin {
    Line {
        file: String,
        line: usize,
    },
    Variable(String),
    Flag(&'static str),
    /// Not known, or the problem is between several settings.
    Unknown,
}

impl Problem {
    pub(crate) fn of_setting(name: &str, message: String) -> Problem {
        Problem::Setting { origin: Origin::Unknown, name: name.to_owned(), message }
    }

    /// Returns the problem of the file that a setting names.
    pub(crate) fn of_file(setting: &str, file: &Path, why: impl fmt::Display) -> Problem {
        Problem::of_setting(setting, format!("{}: {why}", file.display()))
    }

    /// Returns the line of the file that the problem is about; `None` if it is about no line.
    pub fn line(&self) -> Option<usize> {
        match self {
            Problem::Setting { origin, .. } => origin.line(),
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
            Problem::Setting { origin, name, message } => {
                write!(f, "{origin}field `{}`: {message}", name.escape_debug())
            }
            Problem::Policy(error) => error.fmt(f),
            Problem::File(message) => f.write_str(message),
        }
    }
}

impl Error for Problem {}

impl Origin {
    /// Returns whether both are lines of the file, both variables or both flags, so that neither overrides the other.
    pub(super) fn is_like(&self, other: &Origin) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    pub(super) fn line(&self) -> Option<usize> {
        match self {
            Origin::Line { line, .. } => Some(*line),
            _ => None,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Line { file, line } => write!(f, "{file}:{line}: "),
            Origin::Variable(variable) => write!(f, "environment, {variable}: "),
            Origin::Flag(flag) => write!(f, "{flag}: "),
            Origin::Unknown => Ok(()),
        }
    }
}
