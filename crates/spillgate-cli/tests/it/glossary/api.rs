//! The names of the library: what `lib.rs` exports, with methods, fields and variants. The sources are read as text, since
//! rustdoc writes its JSON with a nightly compiler only.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::Seen;

/// A public item: its doc comment, and those of its public fields, variants and methods.
#[derive(Default)]
pub(crate) struct Item {
    pub(crate) docs: String,
    pub(crate) parts: BTreeMap<String, String>,
}

pub(super) fn names() -> Vec<Seen> {
    let mut names = BTreeSet::new();
    for (name, item) in exported() {
        names.extend(item.parts.keys().map(|part| format!("{name}::{part}")));
        names.insert(name);
    }
    let seen = |name: String| {
        let text = name.rsplit("::").next().unwrap().to_owned();
        Seen { place: format!("library: {name}"), text }
    };
    names.into_iter().map(seen).collect()
}

/// The types, functions and constants that an application can name: those that `lib.rs` and its public modules export.
pub(crate) fn exported() -> BTreeMap<String, Item> {
    let mut items = items();
    let mut exported = BTreeSet::new();
    for file in ["lib.rs", "control.rs", "metrics.rs", "reservation.rs", "testing.rs", "tower.rs"] {
        let text = fs::read_to_string(library().join(file)).unwrap();
        for uses in text.split("pub use ").skip(1) {
            let uses = uses.split(';').next().unwrap();
            let names =
                uses.split(|character: char| !character.is_alphanumeric() && character != '_');
            exported.extend(names.filter(|name| items.contains_key(*name)).map(str::to_owned));
        }
        if file != "lib.rs" {
            exported.extend(
                text.lines()
                    .filter_map(|line| item_of(line.strip_prefix("pub ")?))
                    .map(|(_, name)| name),
            );
        }
    }
    assert!(exported.len() > 50, "{exported:?}");
    items.retain(|name, _| exported.contains(name));
    items
}

/// Each public item at the left edge of a source.
fn items() -> BTreeMap<String, Item> {
    let mut items: BTreeMap<String, Item> = BTreeMap::new();
    for file in files() {
        let (mut open, mut is_enum, mut is_hidden) = (None, false, false);
        let mut docs = String::new();
        for line in fs::read_to_string(&file).unwrap().lines() {
            if let Some(text) = line.trim_start().strip_prefix("///") {
                docs.push_str(&format!("{text}\n"));
                continue;
            }
            if line.is_empty() {
                docs.clear();
            }
            let inner = line.strip_prefix("    ").filter(|inner| !inner.starts_with(' '));
            if let Some(inner) = inner {
                let part = inner.strip_prefix("pub ").and_then(part_of).or_else(|| {
                    let variant =
                        inner.split(|character: char| !character.is_alphanumeric()).next()?;
                    (is_enum && variant.starts_with(char::is_uppercase)).then(|| variant.to_owned())
                });
                if let (Some(item), Some(part), false) = (&open, part, is_hidden) {
                    let item = items.entry(String::clone(item)).or_default();
                    item.parts.entry(part).or_default().push_str(&std::mem::take(&mut docs));
                }
                let is_about_next = inner.starts_with('#') || inner.starts_with("//");
                is_hidden = inner == "#[doc(hidden)]" || is_hidden && is_about_next;
            } else if let Some((kind, name)) = line.strip_prefix("pub ").and_then(item_of) {
                let item = items.entry(name.clone()).or_default();
                item.docs.push_str(&std::mem::take(&mut docs));
                (open, is_enum, is_hidden) = (Some(name), kind == "enum", false);
            } else if line.starts_with("impl") && !line.contains(" for ") {
                let name = line.trim_end_matches(" {").rsplit(' ').next().unwrap();
                (open, is_enum, is_hidden) =
                    (Some(name.split('<').next().unwrap().to_owned()), false, false);
            } else if line.starts_with('}') {
                open = None;
            }
        }
    }
    items
}

/// The kind and name of an item without its `pub`.
fn item_of(line: &str) -> Option<(&str, String)> {
    let line = ["const fn", "async fn"]
        .iter()
        .find_map(|kind| line.strip_prefix(kind))
        .map_or(line, |rest| rest);
    let (kind, rest) = line.trim_start().split_once(' ').unwrap_or(("", line));
    let kinds = ["struct", "enum", "trait", "type", "const", "static", "fn"];
    let rest = if kinds.contains(&kind) { rest } else { line.trim_start() };
    let name =
        rest.split(|character: char| !character.is_alphanumeric() && character != '_').next()?;
    (!name.is_empty() && name != "mod" && name != "use").then(|| (kind, name.to_owned()))
}

/// The name of a method or a field without its `pub`.
fn part_of(line: &str) -> Option<String> {
    item_of(line).map(|(_, name)| name)
}

/// The sources of the crates whose items the library exports.
pub(crate) fn files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    gather(&library(), &mut files);
    for below in ["spillgate-core", "spillgate-redis"] {
        gather(&library().join("../..").join(below).join("src"), &mut files);
    }
    files
}

fn gather(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            gather(&entry, files);
        } else if entry.extension().is_some_and(|end| end == "rs") {
            files.push(entry);
        }
    }
}

fn library() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../spillgate/src"))
}
