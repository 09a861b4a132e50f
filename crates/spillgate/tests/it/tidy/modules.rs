//! Modules of a crate form layers: a module imports only modules below it.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{code_only, without_trailing_tests};
use super::{assert_clean, files};

const FOLDERS: [&str; 10] = [
    "crates/spillgate-core/src",
    "crates/spillgate-redis/src",
    "crates/spillgate/src",
    "crates/spillgate-cli/src",
    "crates/spillgate-server/src",
    "crates/spillgate-tools/src",
    "crates/spillgate-redis/src/calls",
    "crates/spillgate-redis/src/connecting",
    "crates/spillgate-redis/src/fleet",
    "crates/spillgate-redis/src/deciding",
];

#[test]
fn modules_import_only_modules_below_them() {
    let mut findings = Vec::new();
    for folder in FOLDERS {
        for cycle in cycles(&imports_of(folder)) {
            let names: Vec<_> = cycle.into_iter().collect();
            findings.push(format!(
                "{folder}: {} import each other in a circle: move their common parts below them",
                names.join(", ")
            ));
        }
    }
    assert_clean(&findings);
}

type Imports = BTreeMap<String, BTreeSet<String>>;

/// For each top-level module of a crate, the other modules that its code names.
fn imports_of(folder: &str) -> Imports {
    let mut imports = Imports::new();
    let modules: BTreeSet<String> =
        files("rs").filter_map(|file| module_of(folder, &file.path)).collect();
    for file in files("rs") {
        let Some(module) = module_of(folder, &file.path) else { continue };
        let is_test = ["/tests.rs", "/tests/"].iter().any(|name| file.path.contains(name));
        let code = from_folder(folder, &code_only(without_trailing_tests(&file.text)));
        let depth = file.path[folder.len() + 1..].split('/').count();
        let named = if is_test { BTreeSet::new() } else { modules_named(&from_root(&code, depth)) };
        let others = named.into_iter().filter(|name| *name != module && modules.contains(name));
        imports.entry(module.clone()).or_default().extend(others);
    }
    imports
}

/// For a folder below `src/`, writes paths as if the folder were the crate: `crate::` begins only those into it.
fn from_folder(folder: &str, code: &str) -> String {
    match folder.split_once("/src/") {
        None => code.to_owned(),
        Some((_, inside)) => {
            let own = format!("crate::{}::", inside.replace('/', "::"));
            code.replace(&own, "\0").replace("crate::", "outside::").replace('\0', "crate::")
        }
    }
}

fn module_of(folder: &str, path: &str) -> Option<String> {
    let inside = path.strip_prefix(folder)?.strip_prefix('/')?;
    let first = inside.split('/').next()?.trim_end_matches(".rs");
    // The root names every module.
    (!["lib", "main"].contains(&first)).then(|| first.to_owned())
}

/// Writes `crate::` for each `super::` chain that leads from a module of this depth to the root.
fn from_root(code: &str, depth: usize) -> String {
    let (chain, longer) = ("super::".repeat(depth), "super::".repeat(depth + 1));
    // No chain leads above the root, so a longer one begins in a module inside the file.
    code.replace(&longer, "crate::").replace(&chain, "crate::")
}

/// Returns the names after `crate::`, including the first names in `crate::{..}`.
fn modules_named(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, start) in code.match_indices("crate::") {
        let rest = &code[at + start.len()..];
        match rest.strip_prefix('{') {
            None => drop(names.insert(word(rest))),
            Some(list) => {
                let mut depth = 0;
                let mut starts = true;
                for (at, character) in list.char_indices() {
                    match character {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => starts = true,
                        _ if starts && !character.is_whitespace() => {
                            names.insert(word(&list[at..]));
                            starts = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    names
}

fn word(text: &str) -> String {
    text.chars().take_while(|character| character.is_alphanumeric() || *character == '_').collect()
}

/// Returns groups of two or more modules in which each reaches each other.
fn cycles(imports: &Imports) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        imports.keys().map(|module| (module, reached_from(module, imports))).collect();
    let mut groups = BTreeSet::new();
    for module in imports.keys() {
        let back = |other: &&&String| reached.get(**other).is_some_and(|all| all.contains(module));
        let group: BTreeSet<String> =
            reached[module].iter().filter(back).map(|name| (*name).clone()).collect();
        if group.len() > 1 {
            groups.insert(group);
        }
    }
    groups.into_iter().collect()
}

fn reached_from<'i>(start: &String, imports: &'i Imports) -> BTreeSet<&'i String> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&String> = imports[start].iter().collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(imports.get(module).into_iter().flatten());
        }
    }
    reached
}

#[test]
fn the_folders_hold_modules() {
    for folder in FOLDERS {
        // The core begins with its leaves, and a folder may hold few.
        let least = if folder.ends_with("/src") && !folder.contains("core") { 6 } else { 2 };
        assert!(imports_of(folder).len() >= least, "{folder}");
    }
}

#[test]
fn a_cycle_is_found_and_a_chain_is_not() {
    let edges = [("a", "b"), ("b", "c"), ("c", "b"), ("c", "d"), ("d", "e")];
    let mut imports = Imports::new();
    for (from, to) in edges {
        imports.entry(from.to_owned()).or_default().insert(to.to_owned());
        imports.entry(to.to_owned()).or_default();
    }
    assert_eq!(cycles(&imports), [BTreeSet::from(["b".to_owned(), "c".to_owned()])]);
    let code = "use crate::{engine::{Memory, redis}, limit};\nlet x = crate::time::now();";
    let names = ["engine", "limit", "time"].map(str::to_owned);
    assert_eq!(modules_named(code), names.into());
    let code = "use super::super::batch;\nuse super::load;";
    assert_eq!(modules_named(&from_root(code, 2)), BTreeSet::from(["batch".to_owned()]));
}
