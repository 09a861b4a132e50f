//! `--schema`: a foreign validator accepts by it the files that load, and refuses those with an unknown field.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::corpus::policies;
use crate::server::{TempFile, run};
use crate::settings::every_setting;

#[test]
#[ignore = "needs jsonschema"]
fn every_policy_of_the_project_fits_the_schema() {
    let python = python();
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let folder = |path: &str| {
        let entries = fs::read_dir(root.join(path)).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|file| file.extension().is_some_and(|end| end == "toml")).collect::<Vec<_>>()
    };
    let mut files = policies();
    for path in ["crates/spillgate/examples", "crates/spillgate-cli/tests/import", "deploy/config"]
    {
        files.extend(folder(path));
    }
    let blocks: Vec<TempFile> =
        ["README.md", "docs", "crates/spillgate/src", "crates/spillgate-core/src"]
            .iter()
            .flat_map(|path| documents(&root.join(path)))
            .flat_map(|document| blocks(&fs::read_to_string(document).unwrap()))
            .map(|block| TempFile::new("block.toml", &block))
            .collect();
    assert!(blocks.len() > 3, "only {} blocks of TOML in the documents", blocks.len());
    files.extend(blocks.iter().map(|block| PathBuf::from(block.path())));
    for (file, problems) in validated(&python, &files) {
        let text = fs::read_to_string(&file).unwrap();
        assert!(problems.is_empty(), "{file:?}: {problems}\n{text}");
    }
}

#[test]
#[ignore = "needs jsonschema"]
fn the_schema_refuses_what_the_parser_refuses_as_unknown() {
    let python = python();
    let refused = [
        "[[rules]]\nname = \"a\"\nkey = []\nlimits = [\"1/s\"]\n",
        "[[rule]]\nname = \"a\"\nkeys = []\nkey = []\nlimits = [\"1/s\"]\n",
        "[[rule]]\nname = \"a\"\nkey = []\nlimits = [{ quota = \"1/s\", bursts = 2 }]\n",
        "[[rule]]\nname = \"a\"\nkey = []\nmatch = { a = { suffix = \"b\" } }\nlimits = [\"1/s\"]\n",
        "[[rule]]\nname = \"a\"\nkey = [\"b\"]\nlimits = [\"1/s\"]\n[[override]]\nrule = \"a\"\nsubject = { b = \"c\" }\nlimits = [\"2/s\"]\nuntil = \"x\"\n",
        "[server]\nhttps = \"127.0.0.1:0\"\n",
        "[server.grpc]\nport = 1\n",
        "[server.resp]\nport = 1\n",
        "[server.auth]\nheader = [\"x\"]\n",
        "[server.tls]\nca = \"x\"\n",
        "[store]\nurls = [\"redis://127.0.0.1\"]\n",
        "[store.sentinel]\nmaster = \"m\"\nurl = \"redis://127.0.0.1\"\n",
        "[store.ring]\nnodes = [{ name = \"a\", url = \"redis://127.0.0.1\" }]\n",
        "[store.tls]\nclient_ca = \"x\"\n",
        "[telemetry]\nlogs = \"info\"\n",
        "[telemetry]\nlog = { levels = \"info\" }\n",
        // And an invalid value of a known field.
        "[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"1/fortnight\"]\n",
        "[[rule]]\nname = \"a\"\nkey = []\nlimits = []\n",
        "[[rule]]\nname = \"a b\"\nkey = []\nlimits = [\"1/s\"]\n",
        "[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"1/s\"]\nmode = \"on\"\n",
        "[[rule]]\nname = \"a\"\nlimits = [\"1/s\"]\n",
        "[[rule]]\nname = \"a\"\nkey = []\nmatch = { a = 1 }\nlimits = [\"1/s\"]\n",
        "[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"1/s\"]\ndenial = {}\n",
        "[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"1/s\"]\ndenial.body = \"no\"\n",
        "[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"1/s\"]\ndenial.status = 200\n",
        "[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"1/s\"]\ndenial = { text = \"no\", json = {} }\n",
        "[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"1/s\"]\ndenial = { json = {}, problem = {} }\n",
        "[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"1/s\"]\ndenial.problem = { status = 402 }\n",
        "[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"1/s\"]\ndenial.problem = { title = 5 }\n",
        "[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"1/s\"]\ndenial.headers = { \"x:y\" = \"a\" }\n",
        "[[rule]]\nname = \"a\"\nkey = []\nlimits = [\"1/s\"]\ndenial.headers = { x = \"a\\nb\" }\n",
        "[server.auth]\ndeny_status = 302\n",
        "[store]\nurl = \"http://127.0.0.1\"\n",
    ];
    let files: Vec<TempFile> = refused.iter().map(|text| TempFile::new("bad.toml", text)).collect();
    let paths: Vec<PathBuf> = files.iter().map(|file| PathBuf::from(file.path())).collect();
    for ((file, problems), text) in validated(&python, &paths).into_iter().zip(refused) {
        assert_eq!(run(&["validate", file.to_str().unwrap()]).status.code(), Some(1), "{text}");
        assert!(!problems.is_empty(), "the schema takes it: {text}");
    }
}

#[test]
fn the_schema_knows_every_setting() {
    let known = every_setting();
    assert!(known.len() > 30, "{known:?}");
    for setting in known {
        assert!(knows(&setting), "the schema has no {setting}");
    }
    assert!(!knows("server.nothing"));
}

/// Returns whether the schema has a setting such as `server.http`.
pub(crate) fn knows(setting: &str) -> bool {
    let printed = run(&["validate", "--schema"]);
    let schema: Value = serde_json::from_slice(&printed.stdout).unwrap();
    let mut tables = vec![&schema];
    for name in setting.split('.') {
        let forms = tables.iter().flat_map(|table| {
            let others = table["anyOf"].as_array().into_iter().flatten();
            std::iter::once(*table).chain(others)
        });
        tables = forms.filter_map(|form| form["properties"].get(name)).collect();
    }
    !tables.is_empty()
}

/// Returns every block of TOML in a document that is a policy, or a part of one.
fn blocks(document: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = document.lines().map(|line| line.trim_start_matches("/// "));
    while let Some(line) = lines.next() {
        if line.trim() == "```toml" {
            let block: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != "```").collect();
            blocks.push(block.join("\n") + "\n");
        }
    }
    blocks.retain(|block| OURS.iter().any(|head| block.contains(head)));
    blocks
}

/// Returns a document, or those of a folder and the folders in it.
fn documents(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        let is_document = path.extension().is_some_and(|end| end == "md");
        return is_document.then(|| path.to_owned()).into_iter().collect();
    }
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|entry| documents(&entry)).collect()
}

/// Returns the validator's complaints about each file; empty if it fits.
fn validated(python: &str, files: &[PathBuf]) -> Vec<(PathBuf, String)> {
    let schema = run(&["validate", "--schema"]);
    assert_eq!(schema.status.code(), Some(0));
    let schema = TempFile::new("schema.json", std::str::from_utf8(&schema.stdout).unwrap());
    let mut validator = Command::new(python);
    validator.args(["-c", VALIDATOR, schema.path()]).args(files);
    let output = validator.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let printed: Vec<&str> = printed.lines().collect();
    assert_eq!(printed.len(), files.len(), "{printed:?}");
    files.iter().cloned().zip(printed.into_iter().map(str::to_owned)).collect()
}

/// Returns a Python that has the validator and reads TOML.
fn python() -> String {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/python/bin/python");
    let has = |python: &&str| {
        let tried = Command::new(python).args(["-c", "import jsonschema, tomllib"]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    [own, "python3"].into_iter().find(has).expect(NO_PYTHON).to_owned()
}

const NO_PYTHON: &str = "no python3 has jsonschema and tomllib; ./check --full installs the first";
const VALIDATOR: &str = r#"
import json, jsonschema, sys, tomllib
schema = json.load(open(sys.argv[1]))
jsonschema.Draft7Validator.check_schema(schema)
validator = jsonschema.Draft7Validator(schema)
for file in sys.argv[2:]:
    errors = validator.iter_errors(tomllib.load(open(file, "rb")))
    print("; ".join(f"{error.json_path}: {error.message[:200]}" for error in errors).replace("\n", " "))
"#;
const OURS: [&str; 5] = ["[[rule]]", "[[override]]", "[server", "[store", "[telemetry"];
