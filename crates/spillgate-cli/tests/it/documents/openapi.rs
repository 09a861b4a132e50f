//! The pages on the HTTP, forward-auth and admin APIs have the calls, fields, values and statuses of
//! `/v1/openapi.json`, and no others; that file has the routes of the listeners, and no others.

use std::collections::BTreeSet;

use serde_json::Value;

use super::page::{Page, assert_same, read, spans};

/// Routes that only the dashboard asks for: its page, and its stream.
const OF_THE_DASHBOARD: [&str; 2] = ["GET /", "GET /admin/v1/events"];

#[test]
fn the_description_has_the_routes_of_the_listeners() {
    let described = described();
    let calls = described.iter().map(|call| call.name.clone());
    let routed = routed().into_iter();
    let for_programs = routed.filter(|call| !OF_THE_DASHBOARD.contains(&call.as_str()));
    assert_same("openapi.json", calls, for_programs);
}

#[test]
fn the_page_on_http_has_the_calls_and_statuses_of_the_description() {
    let page = Page::of("reference/http");
    let calls = page.section("Calls");
    let listed = calls.rows().into_iter().filter_map(|row| spans(row[0]).next());
    let described: Vec<Call> =
        described().into_iter().filter(|call| call.path().starts_with("/v1/")).collect();
    assert_same("reference/http, calls", listed, described.iter().map(|call| &call.name));

    // Forward auth answers a denial by its status, on a page of its own.
    let statuses = described.iter().filter(|call| call.path() != AUTH).flat_map(Call::statuses);
    let listed = numbers(&page.section("Errors"));
    assert_same("reference/http, errors", listed, statuses.filter(|status| status != "200"));
}

#[test]
fn the_page_on_http_has_the_fields_and_values_of_the_description() {
    let page = Page::of("reference/http");
    let schemas = &description()["components"]["schemas"];
    let fields = |section: &str| -> Vec<String> {
        let rows = page.section(section);
        let rows = rows.rows().into_iter().flat_map(|row| spans(row[0]));
        rows.map(str::to_owned).collect()
    };
    assert_same("a check", fields("Request of a check"), names(&schemas["Check"]));
    assert_same("an answer", fields("Answer of a check"), names(&schemas["Answer"]));

    let row_of = |section: &str, field: &str| {
        let rows = page.section(section);
        let rows = rows.rows().into_iter().map(|row| row.join(" "));
        let mut rows = rows.filter(|row| spans(row).next() == Some(field));
        rows.next().unwrap_or_else(|| panic!("no row of {field}"))
    };
    let listed = |section: &str, field: &str| -> Vec<String> {
        spans(&row_of(section, field)).skip(1).map(str::to_owned).collect()
    };
    let answer = &schemas["Answer"]["properties"];
    for field in ["reason", "source"] {
        assert_same(field, listed("Answer of a check", field), texts(&answer[field]));
    }
    let errors = Page::of("reference/errors").section("Denials over HTTP and gRPC");
    let reasons = errors.rows().into_iter().flat_map(|row| spans(row[0]));
    assert_same("reference/errors, reasons", reasons, texts(&answer["reason"]));
    let of_a_limit = names(&schemas["LimitDecision"]);
    let own = of_a_limit.difference(&names(&schemas["Answer"])).cloned().collect::<Vec<_>>();
    assert_same("a limit of an answer", listed("Answer of a check", "limits"), own);
    let inline = &schemas["Check"]["properties"]["limit"]["oneOf"][0];
    assert_same("an inline limit", listed("Request of a check", "limit"), names(inline));
    let styles = listed("Request of a check", "headers").into_iter();
    let described = texts(&schemas["Check"]["properties"]["headers"]);
    assert_same("styles", styles, described);

    let problem = page.section("Errors");
    let problem = problem.rows().into_iter().flat_map(|row| spans(row[0]));
    assert_same("a problem", problem, names(&schemas["Problem"]));
}

#[test]
fn the_page_on_http_has_the_bodies_and_results_of_reservations() {
    let page = Page::of("reference/http").section("Reservations");
    let (calls, values): (Vec<_>, Vec<_>) =
        page.rows().into_iter().partition(|row| row[0].starts_with("`/v1/"));
    let listed = calls.iter().flat_map(|row| {
        let call = spans(row[0]).next().unwrap();
        spans(row[1]).map(move |field| format!("{call} {field}"))
    });
    let schemas = &description()["components"]["schemas"];
    let of_a_check = names(&schemas["Check"]);
    let mut known = Vec::new();
    for call in described() {
        let path = call.path();
        if path.starts_with("/v1/") && !path.starts_with("/v1/check") && path != AUTH {
            let is_own = |field: &&String| path != RESERVE || !of_a_check.contains(*field);
            let own = call.inputs.iter().filter(is_own);
            known.extend(own.map(|field| format!("{path} {field}")));
        }
    }
    assert_same("reservations", listed, known);

    let results = texts(&schemas["EndResult"]["properties"]["result"]);
    let ends = texts(&schemas["Problem"]["properties"]["ended"]);
    let listed: Vec<&str> = values.iter().filter_map(|row| spans(row[0]).next()).collect();
    assert_same("results and ends", listed, results.into_iter().chain(ends));
}

#[test]
fn the_page_on_forward_auth_has_the_statuses_of_the_description() {
    let page = Page::of("reference/forward-auth");
    let described = described();
    let auth = described.iter().find(|call| call.path() == AUTH).unwrap();
    assert_same("reference/forward-auth", numbers(&page.section("Answers")), auth.statuses());
    for parameter in &auth.inputs {
        assert!(page.text.contains(&format!("?{parameter}=")), "no parameter {parameter}");
    }
}

#[test]
fn the_page_on_the_admin_api_has_the_calls_inputs_and_statuses_of_the_description() {
    let page = Page::of("reference/admin").section("Calls");
    let rows = page.rows();
    let (calls, statuses): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row[0].starts_with('`'));
    let listed = calls.iter().flat_map(|row| {
        let call = spans(row[0]).next().unwrap();
        // Another form of the parameter `cost`.
        let inputs = spans(row[1]).filter(|input| *input != "cost.UNIT");
        let inputs = inputs.map(move |input| format!("{call} {input}"));
        std::iter::once(call.to_owned()).chain(inputs)
    });
    let described: Vec<Call> =
        described().into_iter().filter(|call| !call.path().starts_with("/v1/")).collect();
    let known = described.iter().flat_map(|call| {
        let name = call.name.replace("{name}", "NAME");
        let inputs = call.inputs.iter().map(|input| format!("{name} {input}")).collect::<Vec<_>>();
        std::iter::once(name).chain(inputs)
    });
    let known = known.chain(OF_THE_DASHBOARD.map(str::to_owned));
    assert_same("reference/admin", listed, known);

    let statuses = statuses.iter().map(|row| row[0]);
    let known = described.iter().flat_map(Call::statuses);
    assert_same("reference/admin, statuses", statuses, known);
}

#[test]
fn the_page_on_the_admin_api_has_the_fields_and_actions_of_the_audit() {
    let page = Page::of("reference/admin").section("Audit");
    let fields = &description()["components"]["schemas"]["AuditedChange"]["properties"];
    let rows = page.rows();
    let action = rows.iter().find(|row| row[0] == "`action`").unwrap();
    assert_same("actions", spans(action[1]), texts(&fields["action"]));
    let listed = rows.iter().flat_map(|row| spans(row[0]));
    assert_same("a change", listed, fields.as_object().unwrap().keys());
}

/// One call of the description.
struct Call {
    /// Its method and path.
    name: String,
    /// The parameters of its query, or the fields of its body.
    inputs: Vec<String>,
    statuses: Vec<String>,
}

impl Call {
    fn path(&self) -> &str {
        self.name.split_once(' ').unwrap().1
    }

    fn statuses(&self) -> impl Iterator<Item = String> {
        self.statuses.clone().into_iter()
    }
}

fn described() -> Vec<Call> {
    let description = description();
    let mut calls = Vec::new();
    for (path, operations) in description["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            if method == "servers" {
                continue;
            }
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let named = parameters.filter(|parameter| parameter["in"] != "path");
            let mut inputs: Vec<String> = named
                .map(|parameter| match parameter["name"].as_str().unwrap() {
                    "attributes" => "attr.NAME".to_owned(),
                    name => name.to_owned(),
                })
                .collect();
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            let schema = body["$ref"].as_str().map(|name| name.trim_start_matches('#'));
            let body = schema.map_or(body, |name| description.pointer(name).unwrap());
            inputs.extend(names(body));
            let statuses = operation["responses"].as_object().unwrap().keys().cloned().collect();
            calls.push(Call {
                name: format!("{} {path}", method.to_uppercase()),
                inputs,
                statuses,
            });
        }
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
pub(super) fn arguments(text: &str) -> &str {
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

fn description() -> Value {
    serde_json::from_str(&read("crates/spillgate-server/src/listener/http/openapi.json")).unwrap()
}

/// The names of an object's fields.
fn names(schema: &Value) -> BTreeSet<String> {
    schema["properties"].as_object().into_iter().flat_map(|fields| fields.keys().cloned()).collect()
}

/// The texts that a value may have.
fn texts(schema: &Value) -> Vec<String> {
    let values = schema["enum"].as_array().unwrap_or_else(|| panic!("no values in {schema}"));
    values.iter().filter_map(|value| value.as_str().map(str::to_owned)).collect()
}

/// The statuses in the first column of a section's tables.
fn numbers(page: &Page) -> Vec<String> {
    let first = page.rows().into_iter().map(|row| row[0].to_owned());
    first.filter(|cell| cell.parse::<u16>().is_ok()).collect()
}

const AUTH: &str = "/v1/auth";
const RESERVE: &str = "/v1/reserve";
