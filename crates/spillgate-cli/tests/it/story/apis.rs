//! Calls each API, and reads its answers.

use serde_json::{Map, Value};
use spillgate_testkit::Reply;

use super::{Answer, Check};
use crate::envoy::client::{Caller, Code, descriptor};
use crate::server::Server;

/// One API.
pub(crate) struct Api {
    pub(crate) name: &'static str,
    pub(crate) ask: fn(&Server, &Check<'_>) -> Answer,
    /// The chapters that it cannot express, and the reasons.
    pub(crate) cannot: &'static [(&'static str, &'static str)],
}

pub(crate) const APIS: &[Api] = &[
    Api { name: "HTTP", ask: http, cannot: &[] },
    Api { name: "HTTP batch", ask: http_batch, cannot: &[] },
    Api { name: "RESP", ask: resp, cannot: &[] },
    Api { name: "gRPC", ask: grpc, cannot: &[("costs in two units", "an addend counts requests")] },
    Api {
        name: "forward auth",
        ask: forward_auth,
        cannot: &[
            ("costs in two units", "a proxy's request costs one request"),
            ("peek", "a proxy's request costs one request"),
        ],
    },
];

fn http(server: &Server, check: &Check<'_>) -> Answer {
    answer(&server.check(&body(check).to_string()))
}

fn http_batch(server: &Server, check: &Check<'_>) -> Answer {
    let batch = Value::Array(vec![body(check)]).to_string();
    answer(&server.post("/v1/check/batch", batch.as_bytes()).json()["results"][0])
}

fn body(check: &Check<'_>) -> Value {
    let cost: Map<String, Value> =
        check.cost.iter().map(|(unit, amount)| ((*unit).to_owned(), (*amount).into())).collect();
    serde_json::json!({"attributes": {"ip": check.ip, "path": check.path}, "cost": cost})
}

fn answer(answer: &Value) -> Answer {
    let decision = match answer["reason"].as_str() {
        None => "allowed",
        Some("limit-exceeded") => "denied",
        Some(_) => "denied for good",
    };
    let number = |name: &str| answer[name].as_u64();
    Answer { decision, remaining: number("remaining"), retry_after_ms: number("retry_after_ms") }
}

fn resp(server: &Server, check: &Check<'_>) -> Answer {
    let cost: Vec<String> =
        check.cost.iter().map(|(unit, amount)| format!("{unit}={amount}")).collect();
    let cost = cost.join(",");
    let command = ["SG.CHECK", "default", &cost, "ip", check.ip, "path", check.path];
    let reply = server.resp().command(&command).unwrap();
    let Reply::Array(fields) = reply else { panic!("{command:?}: {reply:?}") };
    let known = |field: usize| u64::try_from(fields[field].integer()).ok();
    let decision = match (fields[0].integer(), fields[2].integer()) {
        (1, 0) => "allowed",
        (0, -1) => "denied for good",
        (0, _) => "denied",
        _ => panic!("{command:?}: {fields:?}"),
    };
    Answer { decision, remaining: known(1), retry_after_ms: known(2) }
}

fn grpc(server: &Server, check: &Check<'_>) -> Answer {
    let [("requests", hits)] = *check.cost else { panic!("an addend counts requests") };
    let entries = [("ip", check.ip), ("path", check.path)];
    let answer = Caller::of(server).ask(&[descriptor(&entries).costing(hits)]);
    let [status] = &answer.statuses[..] else { panic!("{answer:?}") };
    assert_eq!(answer.overall_code(), status.code());
    let wait = status.reset().map(|wait| wait.as_millis() as u64);
    let allowed = status.code() == Code::Ok;
    let decision = match wait {
        _ if allowed => "allowed",
        Some(_) => "denied",
        None => "denied for good",
    };
    Answer {
        decision,
        remaining: status.current_limit.as_ref().map(|_| status.limit_remaining.into()),
        retry_after_ms: if allowed { Some(0) } else { wait },
    }
}

fn forward_auth(server: &Server, check: &Check<'_>) -> Answer {
    assert_eq!(check.cost, [("requests", 1)], "a proxy's request costs one request");
    let headers = [("Host", "h"), ("X-Forwarded-For", check.ip), ("X-Forwarded-Uri", check.path)];
    let reply = server.client().send_with("GET", "/v1/auth", &headers, b"").unwrap();
    let wait_ms = reply.header("retry-after").map(|wait| wait.parse::<u64>().unwrap() * 1_000);
    let decision = match (reply.status, wait_ms) {
        (200, _) => "allowed",
        (429, Some(_)) => "denied",
        (429 | 403, None) => "denied for good",
        _ => panic!("{reply:?}"),
    };
    let remaining = reply.header("ratelimit").and_then(|field| {
        field.split(";r=").nth(1)?.split(|end: char| !end.is_ascii_digit()).next()?.parse().ok()
    });
    Answer { decision, remaining, retry_after_ms: wait_ms.or((decision == "allowed").then_some(0)) }
}
