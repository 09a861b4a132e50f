//! The only I/O of the core: a policy is a type of this crate, and users expect to read one from a file by its type.

use std::fs;
use std::path::Path;

use super::{Policy, PolicyError};

impl Policy {
    /// Reads a policy from a file.
    ///
    /// # Errors
    /// Returns the first of [`Policy::problems_in`], or that the file cannot be read, as an error without a line.
    ///
    /// ```
    /// # use spillgate_core as spillgate;
    /// use spillgate::Policy;
    ///
    /// let error = Policy::from_path("no-such-folder/limits.toml").unwrap_err();
    /// assert!(error.to_string().starts_with("no-such-folder/limits.toml: cannot be read: "));
    /// ```
    pub fn from_path(path: impl AsRef<Path>) -> Result<Policy, PolicyError> {
        let name = path.as_ref().to_string_lossy();
        let text = fs::read_to_string(path.as_ref());
        Policy::from_toml_named(&name, &text.map_err(|error| PolicyError::unread(&name, &error))?)
    }
}
