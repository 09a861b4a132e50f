//! Problems of settings and policy: where each was given, the field, and the fix.

use std::error::Error;
use std::fmt;
use std::path::Path;

use spillgate::PolicyError;

/// The problems that keep a command from starting, shown on one line each.
#[derive(Debug)]
pub struct ConfigError(Vec<Problem>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(Problem::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl Error for ConfigError {}

impl From<Vec<Problem>> for ConfigError {
    fn from(problems: Vec<Problem>) -> Self {
        ConfigError(problems)
    }
}

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> Self {
        ConfigError(vec![problem])
    }
}

/// One problem: where it was given, its field, and how to fix it.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The line of the file that the problem is about; `None` if it is about no line.
    pub line: Option<usize>,
    /// The field that the problem is about; empty if it is about none.
    pub field: String,
    /// The whole text, with origin and field.
    text: String,
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
    /// Returns the problem of a setting.
    pub(crate) fn new(origin: &Origin, name: &str, message: impl fmt::Display) -> Problem {
        let text = format!("{origin}field `{}`: {message}", name.escape_debug());
        Problem { line: origin.line(), field: name.to_owned(), text }
    }

    /// Returns the problem of a setting whose origin is not known, or of several settings.
    pub(crate) fn of_setting(name: &str, message: String) -> Problem {
        Problem::new(&Origin::Unknown, name, message)
    }

    /// Returns the problem of the file that a setting names.
    pub(crate) fn of_file(setting: &str, file: &Path, why: impl fmt::Display) -> Problem {
        Problem::of_setting(setting, format!("{}: {why}", file.display()))
    }

    /// Returns the problem that the file of settings and policy cannot be read.
    pub(crate) fn unreadable(file: &Path, why: impl fmt::Display) -> Problem {
        let mut text =
            format!("cannot read {}: {why}; name a file that it can read", file.display());
        if let Ok(folder) = std::env::current_dir()
            && file.is_relative()
        {
            text += &format!(", by its path from {}", folder.display());
        }
        Problem { line: None, field: String::new(), text }
    }
}

impl From<PolicyError> for Problem {
    fn from(error: PolicyError) -> Problem {
        let (line, field) = (Some(error.line()), error.field().to_owned());
        Problem { line, field, text: error.to_string() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Problem {}

impl Origin {
    /// Returns whether both are lines of the file, both variables or both flags, so that neither overrides the other.
    pub(crate) fn is_like(&self, other: &Origin) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    pub(crate) fn line(&self) -> Option<usize> {
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
