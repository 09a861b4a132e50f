//! Policies with a planted defect, and good ones. The first line of each file names the findings that are expected,
//! and their lines.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::server::run;

/// Returns every policy of the corpus.
pub(crate) fn policies() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/validate/corpus");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.collect();
    files.sort();
    files
}

#[test]
fn each_planted_defect_is_found_and_nothing_else() {
    let (mut good, mut odd, mut codes) = (0, 0, BTreeSet::new());
    for file in policies() {
        let text = fs::read_to_string(&file).unwrap();
        let planted = text.lines().next().and_then(|line| line.strip_prefix("# finds "));
        let planted = planted.unwrap_or_else(|| panic!("{file:?} does not name its findings"));
        let found = found(file.to_str().unwrap());
        let found = if found.is_empty() { vec!["nothing".to_owned()] } else { found };
        assert_eq!(found.join(" "), planted, "{file:?}");
        match planted {
            "nothing" => good += 1,
            _ => odd += 1,
        }
        codes.extend(found.iter().map(|found| found.split(':').next().unwrap().to_owned()));
    }
    assert!(odd >= 30 && good >= 10, "{odd} with something odd, {good} good ones");
    assert!(codes.len() >= 18, "{codes:?}");
}

#[test]
fn an_unlimited_rule_that_is_meant_as_an_exemption_gets_the_pattern_that_exempts() {
    let file =
        policies().into_iter().find(|file| file.ends_with("exempt-by-an-unlimited-rule.toml"));
    let output = run(&["validate", file.unwrap().to_str().unwrap()]);
    let report = String::from_utf8(output.stdout).unwrap();
    for part in [
        "it exempts its requests from no other rule: \"all\" limits them too",
        "write match = { ip = { not = [\"10.0.0.0/8\"] } } in rule \"all\"",
    ] {
        assert!(report.contains(part), "{report}");
    }
}

/// Returns `code:line` of each finding, in the order of the file.
fn found(file: &str) -> Vec<String> {
    let output = run(&["validate", "--json", file]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{file}: {report}");
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .map(|finding| {
            for text in ["problem", "remedy"] {
                assert!(finding[text].as_str().is_some_and(|text| text.len() > 10), "{finding}");
            }
            format!("{}:{}", finding["code"].as_str().unwrap(), finding["line"])
        })
        .collect()
}
