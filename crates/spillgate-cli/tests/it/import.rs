//! Configurations of other limiters: the imported policy loads and decides as before, or a note names the difference.

use std::fs;
use std::path::{Path, PathBuf};

use spillgate::Policy;

use crate::envoy::client::{Caller, Code, descriptor, in_domain};
use crate::server::{Server, TempFile, run};

/// Writes the expected files instead of comparing.
const WRITE: &str = "SPILLGATE_WRITE_IMPORTS";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import")
}

/// Imports a file, and returns the policy, and the notes without the file's name, with the exit code.
fn import(file: &Path) -> (String, String) {
    let file = file.to_str().unwrap();
    let output = run(&["import", "envoy", file]);
    let notes =
        String::from_utf8(output.stderr).unwrap().replace(&format!("spillgate: {file}:"), "");
    let code = output.status.code().unwrap();
    (String::from_utf8(output.stdout).unwrap(), format!("{notes}exit code {code}\n"))
}

/// The peer's own configurations are in `envoyproxy/`.
#[test]
fn every_configuration_has_its_policy_notes_and_exit_code() {
    let mut files = Vec::new();
    for folder in [folder(), folder().join("envoyproxy")] {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.extend(entries.filter(|path| path.extension().is_some_and(|it| it == "yaml")));
    }
    assert!(files.len() > 30, "{} configurations", files.len());
    for file in files {
        let (policy, notes) = import(&file);
        Policy::from_toml(&policy).unwrap();
        for (extension, text) in [("toml", policy), ("notes", notes)] {
            let file = file.with_extension(extension);
            if std::env::var_os(WRITE).is_some() {
                fs::write(&file, &text).unwrap();
            }
            let expected = fs::read_to_string(&file).unwrap();
            assert_eq!(text, expected, "{}: {WRITE}=1 writes it again", file.display());
        }
    }
}

/// A descriptor, and the codes of its calls.
type Calls<'a> = (&'a [(&'a str, &'a str)], &'a [Code]);

/// Starts a server with an imported policy, and makes calls.
fn expect_codes(name: &str, domain: &str, calls: &[Calls<'_>]) {
    let file = TempFile::new("imported.toml", &import(&folder().join(name)).0);
    let server = Server::start(&["--config", file.path()]);
    let caller = Caller::of(&server);
    for (entries, expected) in calls {
        let ask = || {
            let request = in_domain(domain, &[descriptor(entries)]);
            caller.try_ask(tonic::Request::new(request)).unwrap().overall_code()
        };
        let codes: Vec<Code> = expected.iter().map(|_| ask()).collect();
        assert_eq!(codes, *expected, "{entries:?}");
    }
}

#[test]
fn a_rule_matches_only_descriptors_with_exactly_its_entries() {
    let marketing = &[("message_type", "marketing"), ("to_number", "1")];
    expect_codes(
        "messaging.yaml",
        "messaging",
        &[
            (marketing, &[Code::Ok, Code::Ok, Code::Ok, Code::Ok, Code::Ok, Code::OverLimit]),
            (&[("to_number", "1")], &[Code::Ok; 100]),
            (&[("to_number", "1")], &[Code::OverLimit]),
            (&[("message_type", "other"), ("to_number", "1")], &[Code::Ok]),
        ],
    );
}

#[test]
fn given_values_replace_the_general_limit() {
    let to = |value| [("remote_address", value)];
    expect_codes(
        "edge.yaml",
        "edge_proxy_per_ip",
        &[
            (&to("50.0.0.5"), &[Code::OverLimit]),
            (&to("50.0.0.6"), &[Code::Ok; 30]),
            (&to("50.0.0.7"), &[Code::Ok; 30]),
        ],
    );
}

/// A shared threshold of ten over all values of a wildcard, and one for each value without it.
#[test]
fn values_of_a_wildcard_share_a_threshold_only_if_it_is_shared() {
    let (shared, own) = (|file| [("files", file)], |file| [("files_no_share", file)]);
    expect_codes(
        "envoyproxy/example-11-1.yaml",
        "example11",
        &[
            (&shared("files/a.pdf"), &[Code::Ok; 5]),
            (&shared("files/b.csv"), &[Code::Ok; 5]),
            (&shared("files/c.txt"), &[Code::OverLimit]),
            (&own("files_no_share/a.pdf"), &[Code::Ok; 10]),
            (&own("files_no_share/a.pdf"), &[Code::OverLimit]),
            (&own("files_no_share/b.csv"), &[Code::Ok; 10]),
        ],
    );
}

#[test]
fn an_invalid_configuration_is_exit_code_2_with_its_line() {
    for (text, expected) in [
        ("descriptors: []\n", ":1: there is no domain; write for example domain: web"),
        (
            "domain: a\ndescriptors:\n  - value: b\n",
            ":3: there is no key; write for example key: path",
        ),
        ("domain: a\ndescriptors: 5\n", ":2: descriptors is not a list"),
        (
            "domain: a\ndescriptors:\n  - key: b\n    colour: red\n",
            ":3: there is no field \"colour\" here",
        ),
        (
            "domain: a\ndescriptors:\n  - key: b\n    rate_limit:\n      unit: fortnight\n",
            ":5: \"fortnight\" is not a unit; write one of second, minute",
        ),
        (
            "domain: a\ndescriptors:\n  - key: b\n  - key: b\n",
            ":4: this key and value are in the list",
        ),
        (
            "domain: a\ndescriptors:\n  - key: b\n    value: c\n    share_threshold: true\n",
            ":3: share_threshold needs a value with a *, got \"c\"",
        ),
        (
            "domain: a\n---\ndomain: b\n",
            ":1: a file has one document with domain and descriptors, got 2",
        ),
        ("domain: [\n", ": cannot be read as YAML: "),
    ] {
        let file = TempFile::new("bad.yaml", text);
        let output = run(&["import", "envoy", file.path()]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(expected), "{text}: {errors}");
        assert!(output.stdout.is_empty());
    }
}

/// An entry that YAML merges from an anchor is read as if it were written out.
#[test]
fn merged_fields_are_read() {
    let text = "domain: a\ndescriptors:\n  - key: b\n    rate_limit: &hourly { unit: hour, requests_per_unit: 5 }\n  \
                - key: c\n    rate_limit: { <<: *hourly, requests_per_unit: 7 }\n";
    let file = TempFile::new("merged.yaml", text);
    let (policy, notes) = import(Path::new(file.path()));
    assert_eq!(notes, "exit code 0\n");
    assert!(policy.contains("\"5/hour\"") && policy.contains("\"7/hour\""), "{policy}");
}
