//! `server.domains = "known"`: the same rule at every API.

use crate::envoy::client::{Caller, descriptor, in_domain};
use crate::server::{Server, TempFile};

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
