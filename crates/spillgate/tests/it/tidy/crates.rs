//! Dependencies between our crates: a crate uses only crates below it.

use std::collections::{BTreeMap, BTreeSet};

use toml::de::{DeTable, DeValue};

use super::{assert_clean, files};

/// Our crates, and those of ours that each may depend on. Rows of planned crates show where they will go.
const MAY_DEPEND_ON: [(&str, &[&str]); 9] = [
    ("spillgate-core", &[]),
    ("spillgate-redis", &["spillgate-core"]),
    ("spillgate", &["spillgate-core", "spillgate-redis"]),
    ("spillgate-server", &["spillgate"]),
    ("spillgate-tools", &["spillgate"]),
    ("spillgate-cli", &["spillgate", "spillgate-server", "spillgate-tools"]),
    ("spillgate-testkit", &[]),
    // Writes the committed code of Envoy's protocol.
    ("spillgate-proto", &[]),
    // Uses the parsers of every crate; no product depends on it.
    (
        "spillgate-fuzz",
        &["spillgate", "spillgate-core", "spillgate-redis", "spillgate-server", "spillgate-tools"],
    ),
];

/// The programs in `examples/` are applications.
const OF_APPLICATIONS: &[&str] = &["spillgate"];

#[test]
fn a_crate_depends_only_on_crates_below_it() {
    let manifests: Vec<Manifest> =
        files("toml").filter_map(|file| Manifest::read(&file.path, &file.text)).collect();
    assert!(manifests.len() >= CRATES_MIN, "only {} crates were found", manifests.len());
    assert_clean(&findings(&manifests));
}

#[test]
fn the_check_on_crates_finds_forbidden_dependencies() {
    let of = |name: &str, rest: &str| {
        let text = format!("[package]\nname = \"{name}\"\n{rest}");
        Manifest::read(&format!("crates/{name}/Cargo.toml"), &text).unwrap()
    };
    let allowed = [
        of(
            "spillgate",
            "[dependencies]\nredis = \"1\"\n[dev-dependencies]\nspillgate-testkit = { path = \".\" }",
        ),
        of("spillgate-server", "[dependencies]\nspillgate.workspace = true"),
        of("spillgate-tools", "[dependencies.spillgate]\npath = \".\""),
        of("spillgate-testkit", ""),
    ];
    assert_eq!(findings(&allowed), [""; 0]);
    let example = |on: &str| {
        let text = format!("[package]\nname = \"x\"\n[dependencies]\n{on} = {{ path = \".\" }}");
        Manifest::read("examples/x/Cargo.toml", &text).unwrap()
    };
    assert_eq!(findings(&[example("spillgate")]), [""; 0]);
    let [spillgate, server, _, testkit] = allowed;
    let planted = [
        spillgate,
        server,
        testkit,
        of(
            "spillgate-tools",
            "[target.'cfg(unix)'.dependencies]\ncore = { package = \"spillgate-server\", path = \".\" }",
        ),
        of("spillgate-cli", "[dev-dependencies]\nspillgate-fuzz = { path = \".\" }"),
        of("spillgate-extra", "[build-dependencies]\nspillgate-testkit = { path = \".\" }"),
        example("spillgate-core"),
    ];
    let found = findings(&planted);
    let named = ["spillgate-server", "`spillgate-fuzz`", "no row", "`spillgate-core`"];
    assert_eq!(found.len(), named.len(), "{found:?}");
    for (finding, named) in found.iter().zip(named) {
        assert!(finding.contains(named), "{finding}");
    }
}

/// What one crate of ours needs of another is public and documented, or belongs below both.
#[test]
fn no_crate_has_hidden_accessors_for_the_others() {
    // Parsers are fuzzed from a program of its own.
    let is_for_fuzzing = |line: &str| line.trim() == "pub mod fuzzed;";
    let mut findings = Vec::new();
    for file in
        files("rs").filter(|file| file.path.starts_with("crates/") && file.path.contains("/src/"))
    {
        let lines: Vec<&str> = file.text.lines().collect();
        for (number, pair) in lines.windows(2).enumerate() {
            if pair[0].trim() == "#[doc(hidden)]" && !is_for_fuzzing(pair[1]) {
                findings.push(format!(
                    "{}:{}: hidden from users: document it, or move it below both crates",
                    file.path,
                    number + 1
                ));
            }
        }
    }
    assert_clean(&findings);
}

/// The package and dependencies of a Cargo.toml.
struct Manifest {
    path: String,
    name: String,
    /// Of the library, and of tests only.
    dependencies: BTreeSet<String>,
    for_tests: BTreeSet<String>,
}

impl Manifest {
    /// Returns `None` if the file describes no package.
    fn read(path: &str, text: &str) -> Option<Manifest> {
        if path.rsplit('/').next() != Some("Cargo.toml") {
            return None;
        }
        let tree = DeTable::parse(text).unwrap_or_else(|error| panic!("{path}: {error}"));
        let tree = tree.get_ref();
        let name = table(tree, "package")?.get("name")?.get_ref().as_str()?.to_owned();
        let mut manifest = Manifest {
            path: path.to_owned(),
            name,
            dependencies: BTreeSet::new(),
            for_tests: BTreeSet::new(),
        };
        manifest.add(tree);
        for target in table(tree, "target").into_iter().flat_map(DeTable::values) {
            if let DeValue::Table(target) = target.get_ref() {
                manifest.add(target);
            }
        }
        Some(manifest)
    }

    fn add(&mut self, tree: &DeTable<'_>) {
        self.dependencies.extend(names(tree, "dependencies"));
        self.dependencies.extend(names(tree, "build-dependencies"));
        self.for_tests.extend(names(tree, "dev-dependencies"));
    }
}

/// Returns the packages of a list of dependencies: the key, unless `package` renames it.
fn names(tree: &DeTable<'_>, list: &str) -> Vec<String> {
    let Some(list) = table(tree, list) else { return Vec::new() };
    let name = |(key, value): (&str, &DeValue<'_>)| {
        let package = match value {
            DeValue::Table(table) => table.get("package").and_then(|it| it.get_ref().as_str()),
            _ => None,
        };
        package.unwrap_or(key).to_owned()
    };
    list.iter().map(|(key, value)| name((key.get_ref().as_ref(), value.get_ref()))).collect()
}

fn table<'t, 'i>(tree: &'t DeTable<'i>, name: &str) -> Option<&'t DeTable<'i>> {
    match tree.get(name)?.get_ref() {
        DeValue::Table(table) => Some(table),
        _ => None,
    }
}

fn findings(manifests: &[Manifest]) -> Vec<String> {
    let allowed = BTreeMap::from(MAY_DEPEND_ON);
    let mut findings = Vec::new();
    for Manifest { path, name, dependencies, for_tests } in manifests {
        let below = match path.starts_with("examples/") {
            true => Some(&OF_APPLICATIONS),
            false => allowed.get(name.as_str()),
        };
        let Some(below) = below else {
            findings.push(format!("{path}: {name} has no row in MAY_DEPEND_ON: add one"));
            continue;
        };
        let may = |on: &str| below.contains(&on);
        // Tests may use the test helpers, and the crate itself with other features. Examples show
        // the library that applications use.
        let helpers = ["spillgate-testkit", "spillgate", name.as_str()];
        let may_for_tests = |on: &str| may(on) || helpers.contains(&on);
        let ours = |on: &&String| on.starts_with("spillgate");
        let wrong = dependencies.iter().filter(ours).filter(|on| !may(on));
        let wrong_for_tests = for_tests.iter().filter(ours).filter(|on| !may_for_tests(on));
        for on in wrong.chain(wrong_for_tests) {
            findings.push(format!(
                "{path}: {name} must not depend on `{on}`: move the code that it needs below both, or let the caller pass it in"
            ));
        }
    }
    findings
}

/// Fewer would mean that manifests are not found.
const CRATES_MIN: usize = 5;
