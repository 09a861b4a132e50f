//! The reference of settings and fields, with their defaults.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::page::Page;
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
