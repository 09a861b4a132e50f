//! A claim about every file of settings and policy.

use super::file::{settings_in, whole_settings_in};
use super::{Problem, Version, check};

/// Panics if a problem names a line outside of the file, or if settings depend on the rules around them.
pub fn holds(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let version = Version::of("f", text);
    match check("f", text) {
        Ok(policy) => {
            let again = version.next("f", text).unwrap_or_else(|error| panic!("{error}"));
            assert!(!again.other_settings, "the same file is no change");
            assert_eq!(again.policy.rules().len(), policy.rules().len());
            assert_eq!(values(settings_in("f", text)), values(whole_settings_in("f", text)));
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            let lines = 1 + input.iter().filter(|byte| **byte == b'\n').count();
            for problem in &problems {
                assert!(problem.line().is_none_or(|line| (1..=lines).contains(&line)), "{problem}");
                assert!(!problem.to_string().is_empty());
            }
            assert!(version.next("f", text).is_err());
        }
    }
}

/// Returns names and values of settings, without their lines.
fn values(given: Result<Vec<super::Given>, Problem>) -> Vec<(String, Option<String>)> {
    let given = given.unwrap_or_else(|problem| panic!("{problem}"));
    given.into_iter().map(|given| (given.name, given.value)).collect()
}
