//! `/v1/openapi.json` has the routes of the listeners, and no others.

use std::collections::BTreeSet;

use serde_json::Value;

use super::page::{assert_same, read};

/// Routes that only the dashboard asks for: its page, and its stream.
const OF_THE_DASHBOARD: [&str; 2] = ["GET /", "GET /admin/v1/events"];

#[test]
fn the_description_has_the_routes_of_the_listeners() {
    let routed = routed().into_iter();
    let for_programs = routed.filter(|call| !OF_THE_DASHBOARD.contains(&call.as_str()));
    assert_same("openapi.json", described(), for_programs);
}

fn described() -> BTreeSet<String> {
    let description = read("crates/spillgate-server/src/listener/http/openapi.json");
    let description: Value = serde_json::from_str(&description).unwrap();
    let mut calls = BTreeSet::new();
    for (path, operations) in description["paths"].as_object().unwrap() {
        let methods = operations.as_object().unwrap().keys().filter(|name| *name != "servers");
        calls.extend(methods.map(|method| format!("{} {path}", method.to_uppercase())));
    }
    calls
}

/// The calls that the routers of the HTTP and admin listeners have, read from their sources.
fn routed() -> BTreeSet<String> {
    // It takes any method, and the paths below it.
    let mut calls = BTreeSet::from([format!("GET {AUTH}")]);
    for file in ["http.rs", "http/reservation.rs", "admin.rs"] {
        let source = read(&format!("crates/spillgate-server/src/listener/{file}"));
        for route in source.split(".route(").skip(1) {
            let (path, handlers) = arguments(route).split_once(',').unwrap();
            let path = match path.trim().strip_prefix('"') {
                Some(path) => path.trim_end_matches('"'),
                None => text_of(&source, path.trim()),
            };
            let path = path.replace("{*mode_of}", "{name}/mode");
            for method in ["get", "post", "put", "delete"] {
                let calls_it = |end: &str| handlers.contains(&format!("{end}{method}("));
                if [" ", ".", "\n"].into_iter().any(calls_it) {
                    calls.insert(format!("{} {path}", method.to_uppercase()));
                }
            }
        }
    }
    calls
}

/// Returns the arguments of a call, whose text begins with them.
fn arguments(text: &str) -> &str {
    let mut depth = 1;
    let end = text.find(|character: char| {
        depth += i32::from(character == '(') - i32::from(character == ')');
        depth == 0
    });
    &text[..end.unwrap()]
}

/// Returns the value of a text constant.
fn text_of<'s>(source: &'s str, name: &str) -> &'s str {
    let (_, value) = source.split_once(&format!("const {name}: &str = \"")).unwrap();
    value.split('"').next().unwrap()
}

const AUTH: &str = "/v1/auth";
