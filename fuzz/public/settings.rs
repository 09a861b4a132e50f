//! Checks the settings and the policy in any file.

use spillgate_server::config::load_text;

/// Panics if a problem names a line outside of the file, or if a setting that was read has none.
pub fn holds(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let lines = 1 + input.iter().filter(|byte| **byte == b'\n').count();
    match load_text("f", text) {
        Ok(loaded) => {
            assert!(loaded.set.iter().all(|set| (1..=lines).contains(&set.line)));
            let again = load_text("f", text).unwrap_or_else(|_| panic!("the same file is valid"));
            assert_eq!(again.set, loaded.set);
            assert_eq!(again.policy.rules().len(), loaded.policy.rules().len());
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            for problem in &problems {
                assert!(problem.line.is_none_or(|line| (1..=lines).contains(&line)), "{problem}");
                assert!(!problem.to_string().is_empty());
            }
        }
    }
}
