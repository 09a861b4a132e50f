//! Names that no rule uses: `server.domains`, `server.attributes` and `server.units`, the same at every API.

use crate::envoy::client::{Caller, descriptor, in_domain};
use crate::server::{Server, TempFile, on_both_engines};

const RULES: &str =
    "[[rule]]\nname = \"web\"\ndomain = \"web\"\nkey = [\"ip\"]\nlimits = [\"5/day\"]\n";
const WHY: &str =
    "no rule has the domain \"wbe\", and server.domains is \"known\"; correct the domain";

fn server(domains: &str, rules: &str) -> Server {
    let file =
        TempFile::new("domains.toml", &format!("[server]\ndomains = \"{domains}\"\n{rules}"));
    Server::start(&["--config", file.path()])
}

fn of_domain(domain: &str) -> String {
    format!(r#"{{"domain": "{domain}", "attributes": {{"ip": "::1"}}}}"#)
}

#[test]
fn http_refuses_a_domain_without_rules() {
    let server = server("known", RULES);
    assert_eq!(server.check(&of_domain("web"))["remaining"], 4);
    let refused = server.post("/v1/check", of_domain("wbe").as_bytes());
    assert_eq!((refused.status, &refused.json()["field"]), (400, &"domain".into()));
    assert!(refused.body.contains("no rule has the domain"), "{}", refused.body);
}

#[test]
fn an_item_of_a_batch_with_an_unknown_domain_is_refused_alone() {
    let server = server("known", RULES);
    let batch = format!("[{}, {}]", of_domain("web"), of_domain("wbe"));
    let answer = server.post("/v1/check/batch", batch.as_bytes()).json();
    assert_eq!(answer["results"][0]["remaining"], 4, "{answer}");
    assert_eq!(answer["results"][1]["error"]["field"], "domain", "{answer}");
}

#[test]
fn resp_refuses_that_command_and_answers_those_around_it() {
    let server = server("known", RULES);
    let mut client = server.resp();
    let mut ask = |domain| format!("{:?}", client.command(&["SG.CHECK", domain, "1", "ip", "::1"]));
    assert!(ask("web").contains("Integer(4)"));
    let refused = ask("wbe").replace('\\', "");
    assert!(refused.contains("ERR domain: ") && refused.contains(WHY), "{refused}");
    assert!(ask("web").contains("Integer(3)"));
}

#[test]
fn grpc_answers_not_found() {
    let server = server("known", RULES);
    let request = in_domain("wbe", &[descriptor(&[("ip", "::1")])]);
    let error = Caller::of(&server).try_ask(tonic::Request::new(request)).unwrap_err();
    assert_eq!(error.code(), tonic::Code::NotFound);
    assert!(error.message().contains(WHY), "{error:?}");
}

/// Forward auth checks in the domain of rules without one. If there are none, the operator made a mistake.
#[test]
fn forward_auth_fails_without_rules_for_proxies() {
    let ask = |server: &Server| server.client().send("GET", "/v1/auth", b"").unwrap().status;
    assert_eq!(ask(&server("known", RULES)), 500);
    assert_eq!(ask(&server("known", &RULES.replace("domain = \"web\"", ""))), 200);
    assert_eq!(ask(&server("open", RULES)), 200);
}

#[test]
fn an_inline_limit_needs_no_rule() {
    let server = server("known", RULES);
    assert_eq!(server.check(r#"{"key": "u1", "limit": {"quota": "5/day"}}"#)["remaining"], 4);
    let answer = server.resp().command(&["CL.THROTTLE", "u1", "4", "5", "86400"]).unwrap();
    assert!(format!("{answer:?}").contains("Integer(5)"), "{answer:?}");
}

/// Starts a server with a setting, and rules by user that count tokens.
fn with(setting: &str) -> Server {
    let rules = "[[rule]]\nname = \"user\"\nkey = [\"user\"]\nlimits = [\"5/day\", { quota = \"90/day\", unit = \"tokens\" }]\n";
    let file = TempFile::new("names.toml", &format!("[server]\n{setting}\n{rules}"));
    Server::start(&["--config", file.path()])
}

const MISSPELT: &str = r#"{"attributes": {"usr": "ann"}}"#;
const OTHER_UNIT: &str = r#"{"attributes": {"user": "ann"}, "cost": {"token": 7}}"#;
const USR: &str =
    r#"no rule of the domain "default" uses the attribute "usr"; did you mean "user"?"#;
const TOKEN: &str =
    r#"no rule of the domain "default" uses the unit "token"; did you mean "tokens"?"#;

#[test]
fn a_misspelt_attribute_or_unit_is_named_in_the_answer_and_once_in_the_log() {
    let mut server = with("");
    for _ in 0..3 {
        assert_eq!(server.check(MISSPELT)["unused"], serde_json::json!([USR]));
        assert_eq!(server.check(OTHER_UNIT)["unused"], serde_json::json!([TOKEN]));
        let reserved = server.post("/v1/reserve", OTHER_UNIT.as_bytes()).json();
        assert_eq!(reserved["unused"], serde_json::json!([TOKEN]));
        // A batch names each once, beside the results.
        let batch = format!("[{OTHER_UNIT},{MISSPELT},{OTHER_UNIT}]");
        let batch = server.post("/v1/check/batch", batch.as_bytes()).json();
        assert_eq!(batch["unused"], serde_json::json!([TOKEN, USR]));
        assert!(batch["results"][0]["unused"].is_null(), "{batch}");
    }
    // Middleware sends the other attributes unasked.
    let sent = r#"{"attributes": {"user": "ann", "ip": "192.0.2.1", "method": "GET", "host": "h", "path": "/"}}"#;
    assert!(server.check(sent)["unused"].is_null());
    let named = |log: &str| log.matches("a request names what no rule uses").count();
    // The log is written by a thread of its own, in order.
    let log = server.log_until("token");
    assert_eq!(named(&log) + named(&server.rest_of_log()), 2, "{log}");
}

#[test]
fn names_beyond_the_bound_are_neither_logged_nor_compared_with_others() {
    let server = with("");
    for number in 0..100 {
        server.check(&format!(r#"{{"attributes": {{"x{number}": "ann"}}}}"#));
    }
    let plain = r#"no rule of the domain "default" uses the attribute "usr""#;
    assert_eq!(server.check(MISSPELT)["unused"], serde_json::json!([plain]));
    let checks = (0..99).map(|number| format!(r#"{{"attributes": {{"y{number}": "ann"}}}}"#));
    let batch = format!("[{}]", checks.collect::<Vec<_>>().join(","));
    let answer = server.post("/v1/check/batch", batch.as_bytes()).json();
    assert_eq!(answer["unused"].as_array().map(Vec::len), Some(16), "{answer}");
    let log = server.rest_of_log();
    assert_eq!(log.matches("a request names what no rule uses").count(), 64, "{log}");
}

#[test]
fn http_and_resp_refuse_attributes_that_no_rule_uses_if_the_operator_chooses_it() {
    let server = with("attributes = \"known\"");
    let refused = server.post("/v1/check", MISSPELT.as_bytes());
    assert_eq!((refused.status, &refused.json()["field"]), (400, &"attributes".into()));
    assert!(refused.body.contains("did you mean"), "{}", refused.body);
    let batch = server.post("/v1/check/batch", format!("[{MISSPELT}]").as_bytes()).json();
    assert_eq!(batch["results"][0]["error"]["field"], "attributes", "{batch}");
    let answer = server.resp().command(&["SG.CHECK", "default", "1", "usr", "ann"]);
    assert!(format!("{answer:?}").contains("ERR attributes: "), "{answer:?}");
    // Forward auth sets the names itself, so none of them is a mistake of a client.
    assert_eq!(server.client().send("GET", "/v1/auth", b"").unwrap().status, 200);
    assert_eq!(server.check(OTHER_UNIT)["allowed"], true);
    assert_eq!(server.check(r#"{"key": "u1", "limit": {"quota": "5/day"}}"#)["remaining"], 4);
}

/// Envoy admits a request after an error, and its clients choose which optional headers they send, and how often.
#[test]
fn grpc_logs_an_entry_that_no_rule_uses_and_decides() {
    let mut server = with("attributes = \"known\"");
    let caller = Caller::of(&server);
    assert_eq!(caller.ask(&[descriptor(&[("user", "ann"), ("x-beta", "1")])]).remaining(), [4]);
    assert_eq!(caller.ask(&[descriptor(&[("user", "ann"), ("user", "bob")])]).remaining(), [3]);
    let log = server.log_until("user.2");
    assert!(log.contains("x-beta"), "{log}");
}

#[test]
fn units_that_no_limit_counts_are_refused_if_the_operator_chooses_it() {
    let server = with("units = \"known\"");
    let refused = server.post("/v1/check", OTHER_UNIT.as_bytes());
    assert_eq!((refused.status, &refused.json()["field"]), (400, &"cost".into()));
    assert!(refused.body.contains("did you mean"), "{}", refused.body);
    let answer = server.resp().command(&["SG.CHECK", "default", "token=7", "user", "ann"]);
    assert!(format!("{answer:?}").contains("ERR cost: "), "{answer:?}");
    assert_eq!(server.check(MISSPELT)["allowed"], true);
    let override_ = "{\"rule\": \"user\", \"subject\": {\"user\": \"ann\"}, \"limits\": [{\"quota\": \"9/day\", \"unit\": \"token\"}]}";
    let set = server.operator().send("PUT", "/admin/v1/overrides", override_.as_bytes()).unwrap();
    assert_eq!(set.status, 200, "{}", set.body);
    assert_eq!(server.check(OTHER_UNIT)["allowed"], true, "an override counts it");
}

#[test]
fn check_and_explain_print_unused_names_and_rules_of_other_domains() {
    let server = server("open", RULES.replace("ip", "user").as_str());
    let url = server.url();
    let print = |words: &[&str]| {
        let output = crate::server::run(words);
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let checked = print(&["check", "--url", &url, "--domain", "web", "usr=ann"]);
    assert!(checked.contains("unused: no rule of the domain \"web\" uses the attribute \"usr\"; did you mean \"user\"?"), "{checked}");
    let admin = format!("http://127.0.0.1:{}", server.admin_port.unwrap());
    let explained = print(&["explain", "--url", &admin, "user=ann"]);
    assert!(explained.contains("would match with --domain web: web"), "{explained}");
    let explained = print(&["explain", "--url", &admin, "--domain", "web", "usr=ann"]);
    assert!(explained.contains("did you mean \"user\"?"), "{explained}");
}

#[test]
fn units_that_an_inline_limit_does_not_count_are_named_or_refused() {
    const WRONG: &str = r#"{"key": "a", "limit": {"quota": "5/hour"}, "cost": {"toknes": 3}}"#;
    const RIGHT: &str = r#"{"key": "b", "limit": {"quota": "5/hour"}, "cost": {"requests": 3}}"#;
    const SENTENCE: &str = r#"the inline limit counts "requests", not the unit "toknes""#;
    let server = with("");
    assert_eq!(server.check(WRONG)["unused"], serde_json::json!([SENTENCE]));
    assert!(server.check(RIGHT)["unused"].is_null());
    let server = with("units = \"known\"");
    let refused = server.post("/v1/check", WRONG.as_bytes());
    assert_eq!((refused.status, &refused.json()["field"]), (400, &"cost".into()));
    let batch = server.post("/v1/check/batch", format!("[{WRONG}]").as_bytes()).json();
    assert_eq!(batch["results"][0]["error"]["field"], "cost", "{batch}");
    assert_eq!(server.check(RIGHT)["remaining"], 2);
}

#[test]
fn a_settlement_names_units_that_no_rule_counts_and_is_not_refused() {
    let rules = "[[rule]]\nname = \"user\"\nkey = [\"user\"]\nlimits = [{ quota = \"90/day\", unit = \"tokens\" }]\n";
    let named = |unit: &str| {
        let sentence = format!(
            "no rule counts the unit {unit:?}, so it has an effect only if the reservation was charged in it"
        );
        serde_json::json!({"result": "done", "unused": [sentence]})
    };
    for units in ["open", "known"] {
        let text = format!("[server]\nunits = \"{units}\"\n{rules}");
        let file = TempFile::new("names.toml", &text);
        on_both_engines(&["--config", file.path()], |server| {
            let receipt = |body: &str| {
                let answer = server.post("/v1/reserve", body.as_bytes()).json();
                answer["receipt"].as_str().unwrap().to_owned()
            };
            let settle = |receipt: &str, unit: &str| {
                let body = format!(r#"{{"receipt": "{receipt}", "cost": {{"{unit}": 10}}}}"#);
                server.post("/v1/settle", body.as_bytes())
            };
            let ann = r#"{"attributes": {"user": "ann"}, "cost": {"tokens": 20}}"#;
            assert_eq!(settle(&receipt(ann), "tokns").json(), named("tokns"));
            let settled = server.resp().command(&["SG.SETTLE", &receipt(ann), "tokns=10"]);
            assert!(format!("{settled:?}").contains("done"), "{settled:?}");
            assert_eq!(settle(&receipt(ann), "tokens").json()["result"], "done");
            // The reservation counts a unit that no rule counts any more.
            let overrides = |method: &str, query: &str, body: &str| {
                let path = format!("/admin/v1/overrides{query}");
                let reply = server.operator().send(method, &path, body.as_bytes()).unwrap();
                assert_eq!(reply.status, 200, "{}", reply.body);
            };
            let pages = r#"{"rule": "user", "subject": {"user": "bob"}, "limits": [{"quota": "90/day", "unit": "pages"}]}"#;
            let bob = r#"{"attributes": {"user": "bob"}, "cost": {"pages": 20}}"#;
            overrides("PUT", "", pages);
            let reserved = receipt(bob);
            overrides("DELETE", "?rule=user&attr.user=bob", "");
            assert_eq!(settle(&reserved, "pages").json(), named("pages"));
            overrides("PUT", "", pages);
            assert_eq!(server.check(bob)["remaining"], 60);
        });
    }
}

#[test]
fn an_explanation_of_a_refused_request_is_refused_alike() {
    let server = with("attributes = \"known\"");
    let reply = server.operator().send("GET", "/admin/v1/explain?attr.usr=ann", b"").unwrap();
    assert_eq!((reply.status, &reply.json()["field"]), (400, &"attributes".into()));
    assert!(reply.body.contains("did you mean"), "{}", reply.body);
}
