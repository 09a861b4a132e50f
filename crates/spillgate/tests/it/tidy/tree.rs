//! The files of the workspace that may be committed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::source::{code_only, lua_code_only, without_trailing_tests};

pub(super) static TREE: LazyLock<Tree> = LazyLock::new(Tree::read);

pub(super) struct Tree {
    /// Files that hold text.
    pub(super) files: Vec<SourceFile>,
    paths: BTreeSet<String>,
    folders: BTreeSet<String>,
}

pub(super) struct SourceFile {
    /// Relative to the root of the workspace, with `/`.
    pub(super) path: String,
    pub(super) text: String,
}

impl Tree {
    /// Returns whether a file or folder has this path, or a path that ends with it. `*` stands for anything:
    /// `engine/memory.rs`, `algorithm/*.lua`.
    pub(super) fn has(&self, pattern: &str) -> bool {
        let pattern = pattern.trim_end_matches('/');
        let fits = |end: &str| match pattern.split_once('*') {
            Some((head, tail)) => end.starts_with(head) && end.ends_with(tail),
            None => end == pattern,
        };
        let mut ends = self.paths.iter().flat_map(|path| {
            let inner = path.match_indices('/').map(|(at, _)| at + 1);
            std::iter::once(0).chain(inner).map(|start| &path[start..])
        });
        ends.any(fits)
    }

    /// Returns whether any folder has this name.
    pub(super) fn has_folder(&self, name: &str) -> bool {
        self.folders.contains(name)
    }

    fn read() -> Self {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut tree = Self { files: Vec::new(), paths: BTreeSet::new(), folders: BTreeSet::new() };
        tree.read_folder(&root, "");
        assert!(tree.paths.contains("crates/spillgate"), "{} is not the workspace", root.display());
        tree
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) {
        for entry in fs::read_dir(folder).expect("the workspace can be read") {
            let entry = entry.expect("the workspace can be read");
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == "target"
                || (name.starts_with('.') && !HIDDEN_BUT_OURS.contains(&name.as_str()))
            {
                continue;
            }
            let path = format!("{prefix}{name}");
            self.paths.insert(path.clone());
            if entry.path().is_dir() {
                self.read_folder(&entry.path(), &format!("{path}/"));
                self.folders.insert(name);
            } else if let Ok(text) = fs::read_to_string(entry.path()) {
                self.files.push(SourceFile { path, text });
            }
        }
    }
}

impl SourceFile {
    /// Returns the text without comments, and in Rust without strings.
    pub(super) fn code(&self) -> String {
        if self.path.ends_with(".lua") { lua_code_only(&self.text) } else { code_only(&self.text) }
    }

    /// Returns the code without the tests at its end.
    pub(super) fn code_without_tests(&self) -> String {
        let text = without_trailing_tests(&self.text).to_owned();
        Self { path: self.path.clone(), text }.code()
    }
}

const HIDDEN_BUT_OURS: [&str; 3] = [".ci", ".cargo", ".github"];

#[test]
fn a_path_is_found_by_its_end() {
    for path in ["crates/spillgate", "tests/it/tidy.rs", "tree.rs", "it/", "it/*.rs", "tidy/t*"] {
        assert!(TREE.has(path), "{path} exists");
    }
    for path in ["it/tidy.lua", "idy.rs", "it/*.lua", "nowhere/"] {
        assert!(!TREE.has(path), "{path} does not exist");
    }
}
