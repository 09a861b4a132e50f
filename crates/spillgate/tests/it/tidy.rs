//! Rules that the compiler does not check: dependencies between modules, links and names of files in documents, words
//! that the glossary replaced. Each failure names the problem, the place and the fix.

mod documents;
mod faults;
mod modules;
mod mutations;
mod source;
mod tree;
mod words;

use std::collections::BTreeSet;

use documents::{is_path, lost_links, quoted_spans};
use source::{alternatives, has_word, imports};
use tree::{SourceFile, TREE};

#[test]
fn the_core_does_no_io_reads_no_clock_and_logs_nothing() {
    let forbidden = [
        "crate::engine",
        "super::engine",
        "crate::limiter",
        "super::limiter",
        "crate::Limiter",
        "tokio",
        "tracing",
        "std::net",
        "std::fs",
        "SystemTime",
        "Instant::now",
    ];
    let remedy = "the core computes: let the caller do that, and pass in the result";
    // Its clocks are the one place that reads the system's time, and one function opens a file.
    let core = files("rs").filter(|file| file.path.starts_with("crates/spillgate-core/src/"));
    let exempt = ["/time.rs", "/policy/from_path.rs"];
    let core = core.filter(|file| !exempt.iter().any(|name| file.path.ends_with(name)));
    assert_clean(&mentions(core, &forbidden, remedy));
}

#[test]
fn lua_algorithms_read_no_clock_and_no_key_but_their_own() {
    let lua = || files("lua").filter(|file| file.path.contains("/lua/algorithm/"));
    let without_keys = lua().filter(|file| !file.text.contains("\n-- Own key:"));
    let mut findings = mentions(
        without_keys,
        &["redis"],
        "let check.lua load and store, or name the key after \"Own key:\" in the header",
    );
    findings.extend(mentions(lua(), &["TIME"], "check.lua reads the time once, first"));
    assert_clean(&findings);
}

#[test]
fn stores_do_not_use_apis() {
    let stores = files("rs").filter(|file| {
        ["spillgate-core", "spillgate-redis"]
            .iter()
            .any(|of| file.path.starts_with(&format!("crates/{of}/src/")))
    });
    assert_clean(&mentions(stores, &["listener", "axum"], "let the API translate"));
}

#[test]
fn apis_do_not_use_stores() {
    let listeners = modules("crates/spillgate-server/src", &["listener"]);
    let forbidden = ["spillgate_core", "spillgate_redis", "redis"];
    assert_clean(&mentions(
        listeners,
        &forbidden,
        "let the App do that: an API decodes and encodes",
    ));
}

#[test]
fn architecture_names_files_that_exist() {
    let mut findings = Vec::new();
    for page in architecture() {
        for (number, span) in quoted_spans(&page.text) {
            for path in alternatives(&span) {
                if is_path(&path) && !TREE.has(&path) {
                    findings.push(format!(
                        "{}:{number}: there is no `{path}`: name its replacement",
                        page.path
                    ));
                }
            }
        }
    }
    assert_clean(&findings);
}

#[test]
fn links_in_documents_have_targets() {
    let is_page = |file: &&SourceFile| !file.path.contains('/') || file.path.starts_with("docs/");
    let mut findings = Vec::new();
    for page in files("md").filter(is_page) {
        for (number, link) in lost_links(page) {
            findings.push(format!("{}:{number}: `{link}` has no target: correct it", page.path));
        }
    }
    assert_clean(&findings);
}

#[test]
fn log_events_of_the_library_have_its_target() {
    let mut findings = Vec::new();
    let library = ["crates/spillgate/src/", "crates/spillgate-redis/src/"];
    for file in files("rs").filter(|file| library.iter().any(|path| file.path.starts_with(path))) {
        for call in ["tracing::info!(", "tracing::warn!(", "tracing::error!("] {
            let mut events = file.text.split(call).skip(1);
            if !events.all(|event| event.trim_start().starts_with("target: \"spillgate\"")) {
                findings.push(format!("{}: {call}: begin with target: \"spillgate\"", file.path));
            }
        }
    }
    assert_clean(&findings);
}

#[track_caller]
fn assert_clean(findings: &[String]) {
    assert!(findings.is_empty(), "{} to fix:\n  {}", findings.len(), findings.join("\n  "));
}

fn files(extension: &'static str) -> impl Iterator<Item = &'static SourceFile> {
    let has_extension = move |file: &&SourceFile| {
        file.path.rsplit_once('.').is_some_and(|(_, end)| end == extension)
    };
    TREE.files.iter().filter(has_extension)
}

/// Returns the Rust files of these top-level modules of a crate, and of modules named after them: for `listener`,
/// `listener.rs`, `listener/http.rs`, `listener_limits.rs`.
fn modules(folder: &str, names: &[&str]) -> Vec<&'static SourceFile> {
    let found: Vec<_> = files("rs")
        .filter(|file| {
            let inside = file.path.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/'));
            let module = inside.and_then(|path| path.split(['/', '.', '_']).next());
            module.is_some_and(|module| names.contains(&module))
        })
        .collect();
    assert!(!found.is_empty(), "no module of {folder} has a name of {names:?}: fix this test");
    found
}

/// Returns the places where the code of `files`, outside their tests, names any of `forbidden`.
fn mentions(
    files: impl IntoIterator<Item = &'static SourceFile>,
    forbidden: &[&str],
    remedy: &str,
) -> Vec<String> {
    let mut findings = Vec::new();
    for file in files {
        let code = file.code_without_tests();
        let spelled_out = imports(&code);
        let lines = (1..).zip(code.lines().map(str::to_owned)).chain(spelled_out);
        let found: BTreeSet<(usize, &str)> = lines
            .flat_map(|(number, line)| {
                let named = forbidden.iter().filter(move |name| has_word(&line, name));
                named.map(move |name| (number, *name))
            })
            .collect();
        findings.extend(
            found
                .iter()
                .map(|(number, name)| format!("{}:{number}: `{name}`: {remedy}", file.path)),
        );
    }
    findings
}

/// Returns the map of the code, and the page that follows a check through it.
fn architecture() -> [&'static SourceFile; 2] {
    ["ARCHITECTURE.md", "docs/internals/check.md"].map(|path| {
        let page = TREE.files.iter().find(|file| file.path == path);
        page.unwrap_or_else(|| panic!("{path} is missing: write how the code works"))
    })
}
