//! Reads the token of a client of the service.

use std::path::Path;

use crate::Failure;

/// Reads a token from a file, if one is named, and returns it as the value of the header `authorization`.
///
/// # Errors
///
/// If the file cannot be read.
pub fn token(file: Option<&Path>) -> Result<Option<String>, Failure> {
    let Some(file) = file else { return Ok(None) };
    let token = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    Ok(Some(format!("Bearer {}", token.trim())))
}
