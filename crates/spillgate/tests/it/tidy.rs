//! Rules that the compiler does not check: dependencies between modules, file lengths, names in
//! the pages on architecture. Each failure names the problem, the place and the fix.

mod crates;
mod documents;
mod faults;
mod modules;
mod mutations;
mod source;
mod tree;
mod words;

use std::collections::BTreeSet;

use documents::{claimed_names, is_path, lost_links, quoted_spans};
use source::{alternatives, code_only, definitions, has_word, imports, without_trailing_tests};
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
    // Its clocks are the one place that reads the system's time.
    let core = files("rs").filter(|file| file.path.starts_with("crates/spillgate-core/src/"));
    let core = core.filter(|file| !file.path.ends_with("/time.rs"));
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
fn files_are_short_or_give_a_reason() {
    let mut findings = Vec::new();
    for file in files("rs").chain(files("lua")) {
        let lines = without_trailing_tests(&file.text).lines().count();
        let is_comment = |line: &&str| ["//", "--", "#!"].iter().any(|mark| line.starts_with(mark));
        let mut top_comment = file.text.lines().take_while(is_comment);
        if lines > LINES_MAX && !top_comment.any(|line| line.contains(LONG_BECAUSE)) {
            findings.push(format!(
                "{}: {lines} lines without its tests: split it by idea, or write \"{LONG_BECAUSE} …\" \
                 in its top comment",
                file.path
            ));
        }
    }
    assert_clean(&findings);
}

#[test]
fn no_code_is_left_unfinished() {
    let mut findings = Vec::new();
    for file in files("rs") {
        for (number, line) in (1..).zip(code_only(&file.text).lines()) {
            for mark in ["todo!(", "unimplemented!(", "dbg!(", "#[ignore]"] {
                if line.contains(mark) {
                    findings
                        .push(format!("{}:{number}: `{mark}`: finish it, or remove it", file.path));
                }
            }
        }
    }
    assert_clean(&findings);
}

#[test]
fn a_module_is_named_after_its_idea_not_mod() {
    let findings: Vec<String> = files("rs")
        .filter(|file| file.path.ends_with("/mod.rs"))
        .map(|file| format!("{}: put it beside its folder, under the folder's name", file.path))
        .collect();
    assert_clean(&findings);
}

#[test]
fn no_file_names_a_home_folder() {
    // Each is split in two, so that this file passes.
    let homes = [concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/ro", "ot/")];
    let mut findings = Vec::new();
    for file in &TREE.files {
        for (number, line) in (1..).zip(file.text.lines()) {
            if homes.iter().any(|home| line.contains(home)) {
                findings.push(format!(
                    "{}:{number}: a path of one machine: make it relative",
                    file.path
                ));
            }
        }
    }
    assert_clean(&findings);
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
fn architecture_names_functions_that_exist() {
    let crates = [
        "spillgate",
        "spillgate_cli",
        "spillgate_server",
        "spillgate_testkit",
        "spillgate_tools",
        "crate",
        "Self",
    ];
    let mut defined: BTreeSet<String> = crates.map(str::to_owned).into();
    for file in files("rs").chain(files("lua")) {
        defined.extend(definitions(&file.code()));
    }
    let mut findings = Vec::new();
    for page in architecture() {
        for (number, span) in quoted_spans(&page.text) {
            for name in claimed_names(&span) {
                if !defined.contains(name) {
                    findings.push(format!(
                        "{}:{number}: `{span}`: nothing defines `{name}`: write its current name",
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
fn every_dependency_has_a_comment_with_its_reason() {
    let mut findings = Vec::new();
    for file in files("toml").filter(|file| file.path.ends_with("Cargo.toml")) {
        for (number, line) in unexplained_dependencies(&file.text) {
            findings.push(format!(
                "{}:{number}: `{line}`: write the reason on the line or above it",
                file.path
            ));
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

#[test]
fn the_check_on_dependencies_finds_unexplained_lines() {
    let manifest = r##"
[package]
name = "x"
[dependencies]
bare = "1"
same-line = "1" # reads the policy
# reads the policy
above = { version = "1", features = [
    "one",
] }
shared.workspace = true
hash = { git = "x#y" }
[dev-dependencies.table]
version = "1"
# runs the tests
[target.'cfg(unix)'.dependencies.explained]
version = "1"
[lints]
workspace = true
"##;
    let names: Vec<&str> =
        unexplained_dependencies(manifest).into_iter().map(|(_, line)| line).collect();
    assert_eq!(names, ["bare = \"1\"", "hash = { git = \"x#y\" }", "[dev-dependencies.table]"]);
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

/// Lines that name a direct dependency without a comment on them or right above. Dependencies inherited from
/// the workspace are explained there.
fn unexplained_dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut findings = Vec::new();
    let (mut in_list, mut depth, mut above) = (false, 0, "");
    for (number, line) in (1..).zip(manifest.lines()) {
        // A `#` or a bracket inside quotes does not count.
        let bare: String = line.split('"').step_by(2).collect();
        let is_header = depth == 0 && line.starts_with('[');
        let is_entry =
            depth == 0 && in_list && line.starts_with(|first: char| first.is_ascii_alphanumeric());
        let names_one = (is_header && line.contains("dependencies.")) || is_entry;
        let explained =
            bare.contains('#') || above.starts_with('#') || bare.contains("workspace = true");
        if names_one && !explained {
            findings.push((number, line));
        }
        if is_header {
            in_list = line.trim_end().ends_with("dependencies]");
        } else {
            let opened = bare.matches(['[', '{']).count();
            depth = (depth + opened).saturating_sub(bare.matches([']', '}']).count());
        }
        above = line.trim_start();
    }
    findings
}

/// As much as a reader takes in at once.
const LINES_MAX: usize = 450;

/// The words with which a longer file gives its reason.
const LONG_BECAUSE: &str = "Longer than 450 lines because";
