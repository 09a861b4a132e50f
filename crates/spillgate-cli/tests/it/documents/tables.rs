//! Tables about the program: each setting with its default, each bound with its constant, each check of the doctor.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::page::{Page, read};
use crate::server::run;
use crate::settings::every_setting;

/// Settings come from the lists in the source, the fields of rules and all defaults from the schema.
#[test]
fn the_reference_has_every_setting_and_field_with_its_default() {
    let rows = [
        Page::of("reference/settings").section("All settings"),
        Page::of("reference/policy").section("Fields"),
    ];
    let documented: BTreeMap<&str, &str> =
        rows.iter().flat_map(Page::rows).map(|row| (row[0].trim_matches('`'), row[1])).collect();

    let schema: Value = serde_json::from_slice(&run(&["validate", "--schema"]).stdout).unwrap();
    let (rule, overriding) = (&schema["properties"]["rule"], &schema["properties"]["override"]);
    let limit = &schema["definitions"]["limits"]["items"];
    let attribute = &schema["properties"]["attribute"]["additionalProperties"];
    let (rule, overriding) = (&rule["items"], &overriding["items"]);
    let fields =
        [("attribute", attribute), ("rule", rule), ("override", overriding), ("limits", limit)];
    let fields = fields.into_iter().flat_map(|(table, node)| {
        let names = properties(node).keys();
        names.map(move |name| format!("{table}.{name}"))
    });
    let known: BTreeSet<String> = every_setting().into_iter().chain(fields).collect();
    assert!(known.len() > 60, "{known:?}");

    for name in &known {
        let default = documented.get(name.as_str());
        let default = default.unwrap_or_else(|| panic!("docs/reference has no row for {name}"));
        let Some(expected) = default_of(&schema, name) else { continue };
        assert_eq!(*default, format!("`{expected}`"), "the default of {name}");
    }
    for name in documented.keys() {
        assert!(known.contains(*name), "docs/reference: there is no {name}");
    }
}

/// Returns the fields of a table, which may have a shorter notation too.
fn properties(node: &Value) -> &serde_json::Map<String, Value> {
    let forms = std::iter::once(node).chain(node["anyOf"].as_array().into_iter().flatten());
    forms.filter_map(|form| form["properties"].as_object()).next().unwrap()
}

fn default_of<'s>(schema: &'s Value, name: &str) -> Option<&'s Value> {
    let (first, rest) = name.split_once('.').unwrap();
    let mut node = match first {
        "limits" => &schema["definitions"]["limits"]["items"],
        "attribute" => &schema["properties"][first]["additionalProperties"],
        "rule" | "override" => &schema["properties"][first]["items"],
        _ => &schema["properties"][first],
    };
    for name in rest.split('.') {
        node = &properties(node)[name];
    }
    let referred = node["$ref"].as_str().or(node["allOf"][0]["$ref"].as_str());
    let referred = referred.and_then(|path| path.strip_prefix("#/definitions/"));
    let definition = || schema["definitions"][referred?].get("default");
    node.get("default").or_else(definition)
}

#[test]
fn the_reference_names_every_setting_of_the_library() {
    let section = Page::of("reference/library").text;
    let builder = ["builder.rs", "builder/store.rs"];
    let source = builder.map(|file| read(&format!("crates/spillgate/src/limiter/{file}"))).concat();
    let mut hidden = false;
    let mut named = 0;
    for line in source.lines().map(str::trim) {
        hidden |= line == "#[doc(hidden)]";
        let Some(name) = line.strip_prefix("pub fn ").and_then(|rest| rest.split('(').next())
        else {
            continue;
        };
        if !std::mem::take(&mut hidden) {
            assert!(
                section.contains(&format!("`{name}`")),
                "docs/reference/library.md leaves out {name}"
            );
            named += 1;
        }
    }
    assert!(named > 15, "{named}");
}

#[test]
fn the_reference_has_every_bound_of_the_code() {
    let page = Page::of("reference/bounds");
    let rows = page.rows();
    assert!(rows.len() > 50, "{}", rows.len());
    for row in rows {
        let [meaning, documented, place] = row[..] else { panic!("{row:?}") };
        let (file, name) = place.trim_matches('`').split_once("` `").unwrap();
        let source = read(file);
        let found = constant(&source, name);
        let found = found.unwrap_or_else(|| panic!("{file}: no {name} that is a number or a time"));
        assert_eq!(
            value_in_text(documented, name),
            found,
            "{meaning}: {documented}; {file} {name}"
        );
    }
}

/// Returns the value of a constant: a number, or the microseconds of a time.
fn constant(source: &str, name: &str) -> Option<u64> {
    let (rust, lua) = (format!("const {name}: "), format!("local {name} = "));
    let mut lines = source.lines().map(str::trim);
    let line = lines.find(|line| line.contains(&rust) || line.starts_with(&lua))?;
    let expression = line.split_once(" = ")?.1.trim_end_matches(';');
    let call = expression.strip_suffix(')').and_then(|call| call.split_once('('));
    let unit = |name: &str, us: u64| call.filter(|(of, _)| *of == name).map(|call| (call.1, us));
    let time = unit("Duration::from_secs", 1_000_000)
        .or(unit("Duration::from_millis", 1_000))
        .or(unit("Duration::from_micros", 1));
    let (expression, factor) = time.unwrap_or((expression, 1));
    let shifted = expression.split(" << ").map(|product| {
        product
            .split(" * ")
            .map(|factor| factor.replace('_', "").parse::<u64>().ok())
            .product::<Option<u64>>()
    });
    let shifted: Option<Vec<u64>> = shifted.collect();
    match shifted?[..] {
        [number] => Some(number * factor),
        [number, places] => Some(number << places),
        _ => None,
    }
}

/// Returns the value in a document: a number, or a time in the unit that the constant's name ends in, else in
/// microseconds.
fn value_in_text(text: &str, constant: &str) -> u64 {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let number: u64 = number.replace(',', "").parse().unwrap();
    let us = match unit {
        "" => return number,
        "KiB" => return number << 10,
        "MiB" => return number << 20,
        "µs" => number,
        "ms" => number * 1_000,
        "s" => number * 1_000_000,
        "min" => number * 60_000_000,
        "h" => number * 3_600_000_000,
        other => panic!("{other} is no unit"),
    };
    if constant.ends_with("_MS") { us / 1_000 } else { us }
}

#[test]
fn a_constant_has_the_value_of_its_text() {
    let worth = |text: &str| constant(&format!("pub(crate) const A: usize = {text};"), "A");
    assert_eq!(worth("20_000"), Some(20_000));
    assert_eq!(worth("64 * 1024"), Some(65_536));
    assert_eq!(worth("1 << 14"), Some(16_384));
    assert_eq!(worth("Duration::from_secs(30 * 60)"), Some(1_800_000_000));
    assert_eq!(worth("Duration::from_micros(250)"), Some(250));
    assert_eq!(worth("4 * OTHER"), None);
    assert_eq!(value_in_text("30 min", "AGE"), 1_800_000_000);
    assert_eq!(value_in_text("5 s", "GONE_MS"), 5_000);
    assert_eq!(value_in_text("250 µs", "SPACING"), 250);
    assert_eq!(value_in_text("64 KiB", "A"), 65_536);
}

#[test]
fn the_page_about_redis_lists_every_check_of_the_doctor() {
    let page = Page::of("how-to/redis").section("What the doctor finds");
    let documented: BTreeSet<String> =
        page.rows().into_iter().map(|row| row[0].trim_matches('`').to_owned()).collect();
    let server = read("crates/spillgate-server/src/doctor/checks.rs");
    let store = read("crates/spillgate-server/src/doctor/store.rs");
    let on_each =
        server.lines().filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').next());
    let of_all =
        store.lines().filter_map(|line| line.trim().strip_prefix("check: \"")?.split('"').next());
    let instances = read("crates/spillgate-server/src/doctor/instances.rs");
    let of_instances = instances.lines().filter_map(|line| {
        line.strip_prefix("const ")?.split_once(": &str = \"")?.1.strip_suffix("\";")
    });
    let known: BTreeSet<String> =
        on_each.chain(of_all).chain(of_instances).map(str::to_owned).collect();
    assert!(known.len() > 18, "{known:?}");
    assert_eq!(documented, known);
}
