//! Other limiters' configurations as ours: what comes out loads, and decides as before.

use std::fs;
use std::path::{Path, PathBuf};

use spillgate::Policy;

use crate::envoy::client::{Caller, Code, descriptor, in_domain};
use crate::server::{Server, TempFile, run};

/// Writes what comes out instead of comparing.
const WRITE: &str = "SPILLGATE_WRITE_IMPORTS";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import").join(name)
}

/// The policy, and the remarks without the file's name.
fn import(name: &str) -> (String, String) {
    let file = fixture(&format!("{name}.yaml"));
    let file = file.to_str().unwrap();
    let output = run(&["import", "envoy", file]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let remarks = said.replace(&format!("spillgate: {file}:"), "");
    (String::from_utf8(output.stdout).unwrap(), remarks)
}

#[test]
fn each_configuration_comes_out_as_it_should_and_loads() {
    for name in ["databases", "messaging", "edge", "everything"] {
        let (policy, remarks) = import(name);
        Policy::from_toml(&policy).unwrap();
        for (extension, text) in [("toml", policy), ("notes", remarks)] {
            let file = fixture(&format!("{name}.{extension}"));
            if std::env::var_os(WRITE).is_some() {
                fs::write(&file, &text).unwrap();
            }
            let expected = fs::read_to_string(&file).unwrap();
            assert_eq!(text, expected, "{name}.{extension}: {WRITE}=1 writes it anew");
        }
    }
}

/// A descriptor, and what it is told, call by call.
type Calls<'a> = (&'a [(&'a str, &'a str)], &'a [Code]);

/// Starts the door on what came out, and asks it.
fn story(name: &str, domain: &str, calls: &[Calls<'_>]) {
    let file = TempFile::new("imported.toml", &import(name).0);
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
fn a_rule_is_only_for_descriptors_with_just_its_entries() {
    let marketing = &[("message_type", "marketing"), ("to_number", "1")];
    story(
        "messaging",
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
fn named_values_take_the_place_of_the_general_limit() {
    let to = |value| [("remote_address", value)];
    story(
        "edge",
        "edge_proxy_per_ip",
        &[
            (&to("50.0.0.5"), &[Code::OverLimit]),
            (&to("50.0.0.6"), &[Code::Ok; 30]),
            (&to("50.0.0.7"), &[Code::Ok; 30]),
        ],
    );
}

#[test]
fn a_mistake_is_told_with_its_line() {
    for (text, expected) in [
        ("descriptors: []\n", ":1: there is no domain; name it"),
        ("domain: a\ndescriptors:\n  - value: b\n", ":3: a descriptor has a key; write it"),
        ("domain: a\ndescriptors: 5\n", ":2: descriptors is no list"),
        (
            "domain: a\ndescriptors:\n  - key: b\n    colour: red\n",
            ":3: there is no field \"colour\" here",
        ),
        (
            "domain: a\ndescriptors:\n  - key: b\n    rate_limit:\n      unit: fortnight\n",
            ":5: \"fortnight\" is no unit; write one of second, minute",
        ),
        ("domain: a\ndescriptors:\n  - key: b\n  - key: b\n", ":4: this key and value stand"),
        ("domain: [\n", ": cannot be read as YAML: "),
    ] {
        let file = TempFile::new("bad.yaml", text);
        let output = run(&["import", "envoy", file.path()]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{text}: {said}");
        assert!(output.stdout.is_empty());
    }
}
