//! Reservations through the APIs: the answer to each call, access to reservations, and permits whose holder dies or
//! sleeps.

use serde_json::{Value, json};
use spillgate_testkit::{RedisServer, Reply, eventually};

use crate::server::{Server, TempFile, on_both_engines, resident_kib, spillgate};

const POLICY: &str = r#"
    [[rule]]
    name = "model"
    key = ["user"]
    limits = [
        { quota = "10/366d" },
        { quota = "1000/366d", unit = "tokens" },
        { quota = "2", algorithm = "concurrency", max_hold = "1h" },
    ]
"#;

fn policy() -> TempFile {
    TempFile::new("limits.toml", POLICY)
}

fn ask(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let reply = server.post(path, body.to_string().as_bytes());
    (reply.status, reply.json())
}

fn remaining(server: &Server) -> Vec<u64> {
    let look = server.check(r#"{"attributes":{"user":"ada"},"cost":0}"#);
    let limits = look["limits"].as_array().unwrap().iter();
    limits.map(|limit| limit["remaining"].as_u64().unwrap()).collect()
}

fn of_ada() -> Value {
    json!({"attributes": {"user": "ada"}, "cost": {"requests": 1, "tokens": 400}, "ttl_ms": 60000, "id": "job"})
}

#[test]
fn over_http_a_reservation_is_made_once_and_settled_once() {
    on_both_engines(&["--config", policy().path()], |server| {
        let (status, first) = ask(server, "/v1/reserve", &of_ada());
        assert_eq!((status, &first["allowed"]), (200, &json!(true)), "{first}");
        let receipt = first["receipt"].as_str().unwrap();
        let (_, again) = ask(server, "/v1/reserve", &of_ada());
        assert_eq!(again["receipt"], first["receipt"]);
        assert_eq!(remaining(server), [9, 600, 1]);
        let mut other = of_ada();
        other["cost"] = json!(2);
        let (status, problem) = ask(server, "/v1/reserve", &other);
        assert_eq!((status, &problem["field"]), (409, &json!("id")), "{problem}");

        let settlement = json!({"receipt": receipt, "cost": {"tokens": 50}});
        assert_eq!(ask(server, "/v1/settle", &settlement), (200, json!({"result": "done"})));
        assert_eq!(ask(server, "/v1/settle", &settlement), (200, json!({"result": "repeated"})));
        let (status, problem) = ask(server, "/v1/cancel", &json!({"receipt": receipt}));
        assert_eq!((status, &problem["field"]), (409, &json!("receipt")), "{problem}");
        assert_eq!(remaining(server), [9, 950, 2]);
    });
}

#[test]
fn over_http_permits_of_a_check_are_renewed_and_released() {
    on_both_engines(&["--config", policy().path()], |server| {
        let check = r#"{"attributes":{"user":"ada"}}"#;
        let first = server.check(check);
        let receipt = json!({"receipt": first["receipt"]});
        assert!(server.check(check)["receipt"].is_string());
        let denied = server.check(check);
        assert_eq!((&denied["reason"], denied.get("receipt")), (&json!("limit-exceeded"), None));
        let mut renewal = receipt.clone();
        renewal["ttl_ms"] = json!(30_000);
        assert_eq!(ask(server, "/v1/renew", &renewal), (200, json!({"result": "done"})));
        assert_eq!(ask(server, "/v1/release", &receipt), (200, json!({"result": "done"})));
        assert_eq!(ask(server, "/v1/release", &receipt), (200, json!({"result": "repeated"})));
        assert_eq!(ask(server, "/v1/renew", &renewal), (200, json!({"result": "expired"})));
        assert_eq!(server.check(check)["allowed"], true);
    });
}

#[test]
fn an_invalid_reservation_is_a_400_that_names_its_field() {
    let server = Server::start(&[]);
    for (path, body, field, part) in [
        ("/v1/reserve", r#"{"ttl_ms":0}"#, "ttl_ms", "from 1 ms to 24 h, got 0 ms; give"),
        ("/v1/reserve", r#"{"ttl_ms":86400001}"#, "ttl_ms", "got 86400001 ms; renew"),
        ("/v1/reserve", r#"{"ttl_ms":-1}"#, "ttl_ms", "expected a whole number"),
        ("/v1/reserve", r#"{"id":""}"#, "id", "1 to 128"),
        ("/v1/reserve", r#"{"id":7}"#, "id", "expected a string"),
        ("/v1/reserve", r#"{"cost":"x"}"#, "cost", "expected a whole number"),
        ("/v1/check", r#"{"ttl_ms":1000}"#, "ttl_ms", "POST /v1/reserve"),
        ("/v1/check", r#"{"id":"x"}"#, "id", "POST /v1/reserve"),
        ("/v1/settle", r#"{"receipt":"AQAB"}"#, "receipt", "this is not a receipt"),
        ("/v1/settle", r#"{"cost":1}"#, "receipt", "missing field `receipt`; add for example"),
        ("/v1/cancel", r#"{"receipt":""}"#, "receipt", "this is not a receipt"),
        ("/v1/cancel", r#"{"receipt":null}"#, "receipt", "expected a string"),
        ("/v1/release", r#"{"receipt":"x","cost":1}"#, "receipt", "this is not a receipt"),
        ("/v1/renew", r#"["x"]"#, "", "expected"),
        ("/v1/renew", LONG_RENEWAL, "ttl_ms", "from 1 ms to 24 h"),
    ] {
        let reply = server.post(path, body.as_bytes());
        assert_eq!(reply.status, 400, "{path} {body}: {}", reply.body);
        let problem = reply.json();
        assert_eq!(
            problem["field"].as_str().unwrap_or_default(),
            field,
            "{path} {body}: {problem}"
        );
        assert!(problem["detail"].as_str().unwrap().contains(part), "{path} {body}: {problem}");
    }
}

/// More than a day, of a receipt that no server issued.
const LONG_RENEWAL: &str =
    r#"{"receipt":"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","ttl_ms":86400001}"#;

#[test]
fn an_ended_id_is_refused_with_its_end_over_http_and_resp() {
    on_both_engines(&["--config", policy().path()], |server| {
        let mut client = server.resp();
        let mut command =
            |line: &str| client.command(&line.split(' ').collect::<Vec<_>>()).unwrap();
        for (path, ended) in
            [("/v1/settle", "settled"), ("/v1/cancel", "cancelled"), ("/v1/release", "released")]
        {
            let mut body = of_ada();
            body["id"] = json!(ended);
            let (_, first) = ask(server, "/v1/reserve", &body);
            let mut end = json!({"receipt": first["receipt"]});
            if path == "/v1/settle" {
                end["cost"] = json!({"requests": 0, "tokens": 0});
            }
            assert_eq!(ask(server, path, &end), (200, json!({"result": "done"})));
            let before = remaining(server);
            let (status, problem) = ask(server, "/v1/reserve", &body);
            assert_eq!((status, &problem["field"]), (409, &json!("id")), "{problem}");
            assert_eq!((&problem["reason"], &problem["ended"]), (&json!("ended"), &json!(ended)));
            assert!(problem.get("receipt").is_none(), "{problem}");
            let again = command(&format!(
                "SG.RESERVE default requests=1,tokens=400 60000 {ended} user ada"
            ));
            let Reply::Error(again) = again else { panic!("{again:?}") };
            assert!(again.starts_with(&format!("ENDED {ended}: ")), "{again}");
            assert_eq!(remaining(server), before, "{ended}: nothing is charged");
        }
        for bad in ["SG.RESERVE default 1 86400001 - user ada", &long_renewal_over_resp()] {
            let Reply::Error(refused) = command(bad) else { panic!("{bad}") };
            assert!(
                refused.contains(" ttl_ms: '86400001' is not a whole number from 1 to 86400000"),
                "{refused}"
            );
        }
    });
}

fn long_renewal_over_resp() -> String {
    let renewal: Value = serde_json::from_str(LONG_RENEWAL).unwrap();
    format!("SG.RENEW {} {}", renewal["receipt"].as_str().unwrap(), renewal["ttl_ms"])
}

#[test]
fn an_unmatched_reservation_has_a_receipt_that_every_call_accepts() {
    on_both_engines(&["--config", policy().path()], |server| {
        let unmatched = json!({"attributes": {"path": "/"}, "ttl_ms": 60000, "id": "job"});
        let (status, decision) = ask(server, "/v1/reserve", &unmatched);
        assert_eq!((status, &decision["allowed"]), (200, &json!(true)), "{decision}");
        let receipt = decision["receipt"].as_str().unwrap();
        for (path, field, value) in [
            ("/v1/renew", "ttl_ms", json!(1_000)),
            ("/v1/settle", "cost", json!(7)),
            ("/v1/cancel", "receipt", json!(receipt)),
            ("/v1/release", "receipt", json!(receipt)),
        ] {
            let mut body = json!({"receipt": receipt});
            body[field] = value;
            assert_eq!(ask(server, path, &body), (200, json!({"result": "done"})), "{path}");
        }
        let mut client = server.resp();
        let mut command =
            |line: &str| client.command(&line.split(' ').collect::<Vec<_>>()).unwrap();
        let Reply::Array(answer) = command("SG.RESERVE default 1 60000 - path /") else {
            panic!("an answer is a list")
        };
        assert_eq!(command(&format!("SG.SETTLE {} 7", answer[6].text())).text(), "done");
    });
}

/// The room of one subject: a hundredth of 256 MiB.
const SUBJECT_BYTES: u64 = (256 << 20) / 100;

#[test]
fn at_the_bound_one_subject_is_overloaded_and_others_go_on() {
    let file = policy();
    let server = Server::start(&["--config", file.path()]);
    let mut client = server.resp();
    let before = resident_kib(server.pid());
    let mut opened = 0;
    let refused = loop {
        let line = ["SG.RESERVE", "default", "0", "86400000", "-", "user", "eve"];
        match client.command(&line).unwrap() {
            Reply::Array(answer) => assert!(answer[6].text().len() > 40),
            Reply::Error(refused) => break refused,
            other => panic!("{other:?}"),
        }
        opened += 1;
    };
    let grown = resident_kib(server.pid()).saturating_sub(before);
    println!("{opened} reservations of one subject, resident {grown} KiB more");
    assert!(refused.starts_with("OVERLOADED "), "{refused}");
    assert!(1_024 * grown < 8 * SUBJECT_BYTES, "{grown} KiB");
    let of = |user: &str, cost: u64| json!({"attributes": {"user": user}, "cost": cost});
    let reply = server.post("/v1/reserve", of("eve", 0).to_string().as_bytes());
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")), "{}", reply.body);
    assert_eq!(reply.json()["reason"], "overloaded");
    // A permit is denied rather than granted without a receipt.
    let (status, check) = ask(&server, "/v1/check", &of("eve", 1));
    assert_eq!((status, &check["reason"]), (200, &json!("overloaded")), "{check}");
    for user in ["ada", "bob"] {
        let (status, decision) = ask(&server, "/v1/reserve", &of(user, 1));
        assert_eq!(status, 200, "{decision}");
        assert!(decision["receipt"].is_string() && decision["allowed"] == true, "{decision}");
    }
    let metrics = server.metrics();
    let value = |name: &str| -> u64 {
        let line = metrics.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.rsplit(' ').next()).unwrap().parse().unwrap()
    };
    assert_eq!(value("spillgate_reservations{state=\"open\"}"), opened + 2);
    assert_eq!(value("spillgate_reservations{state=\"ended\"}"), 0);
    let bytes = value("spillgate_reservation_bytes");
    assert!((SUBJECT_BYTES - 2_000..SUBJECT_BYTES + 4_000).contains(&bytes), "{bytes}");
}

#[test]
fn over_resp_a_reservation_is_made_once_and_settled_once() {
    on_both_engines(&["--config", policy().path()], |server| {
        let mut client = server.resp();
        let mut ask = |line: &str| client.command(&line.split(' ').collect::<Vec<_>>()).unwrap();
        let reserve = "SG.RESERVE default requests=1,tokens=400 60000 job user ada";
        let Reply::Array(first) = ask(reserve) else { panic!("an answer is a list") };
        assert_eq!((first.len(), first[0].integer(), first[1].integer()), (7, 1, 1));
        let Reply::Array(again) = ask(reserve) else { panic!("an answer is a list") };
        let receipt = first[6].text();
        assert_eq!(again[6].text(), receipt);
        let conflict = ask("SG.RESERVE default 2 60000 job user ada");
        assert!(format!("{conflict:?}").contains("CONFLICT"), "{conflict:?}");
        for (line, expected) in [
            (format!("SG.RENEW {receipt} 60000"), "done"),
            (format!("SG.SETTLE {receipt} tokens=50"), "done"),
            (format!("SG.SETTLE {receipt} tokens=50"), "repeated"),
            (format!("SG.RENEW {receipt} 60000"), "expired"),
        ] {
            assert_eq!(ask(&line).text(), expected, "{line}");
        }
        assert!(format!("{:?}", ask(&format!("SG.CANCEL {receipt}"))).contains("CONFLICT"));
        assert_eq!(remaining(server), [9, 950, 2]);
        let Reply::Array(check) = ask("SG.CHECK default 1 user ada") else { panic!("a list") };
        assert_eq!(ask(&format!("SG.RELEASE {}", check[6].text())).text(), "done");
        let Reply::Array(look) = ask("SG.CHECK default 0 user ada") else { panic!("a list") };
        assert_eq!((look.len(), remaining(server)), (6, vec![8, 950, 2]));
    });
}

#[test]
fn a_receipt_is_valid_at_another_instance_and_not_at_a_foreign_server() {
    let (redis, file) = (RedisServer::start(), policy());
    let one = Server::start_on(&redis, &["--config", file.path()]);
    let other = Server::start_on(&redis, &["--config", file.path()]);
    let (_, decision) = ask(&one, "/v1/reserve", &of_ada());
    let receipt = decision["receipt"].as_str().unwrap();
    let last = if receipt.ends_with('A') { "Q" } else { "A" };
    let forged = format!("{}{last}", &receipt[..receipt.len() - 1]);
    let reply = other.post("/v1/cancel", json!({"receipt": forged}).to_string().as_bytes());
    let unknown = reply.status == 200 && reply.json() == json!({"result": "unknown"});
    assert!(unknown || reply.status == 400, "{}", reply.body);
    assert_eq!(remaining(&one), [9, 600, 1]);
    let cancelled = ask(&other, "/v1/cancel", &json!({"receipt": receipt}));
    assert_eq!(cancelled, (200, json!({"result": "done"})));
    assert_eq!(remaining(&one), [10, 1000, 2]);
}

#[test]
fn a_settlement_without_the_store_is_to_be_repeated_and_names_no_server() {
    let (mut redis, file) = (RedisServer::start(), policy());
    let server = Server::start_on(&redis, &["--config", file.path()]);
    let (_, decision) = ask(&server, "/v1/reserve", &of_ada());
    let receipt = decision["receipt"].as_str().unwrap().to_owned();
    redis.kill();
    let (status, problem) = ask(&server, "/v1/settle", &json!({"receipt": receipt, "cost": 1}));
    assert_eq!((status, &problem["retryable"]), (503, &json!(true)), "{problem}");
    let reply = format!("{:?}", server.resp().command(&["SG.SETTLE", &receipt, "1"]).unwrap());
    assert!(reply.contains("TRYAGAIN a part of the store is down"), "{reply}");
    for text in [problem.to_string(), reply] {
        assert!(!text.contains("127.0.0.1") && text.contains("repeat the same call"), "{text}");
    }
}

#[test]
fn beyond_loopback_reservations_need_a_key_secret() {
    let secret = TempFile::new("secret", "000102030405060708090a0b0c0d0e0f");
    for has_secret in [false, true] {
        let mut command = spillgate(&["serve", "--http", "0.0.0.0:0", "--resp", "127.0.0.1:0"]);
        command.env("SPILLGATE_SERVER__INSECURE", "true");
        if has_secret {
            command.env("SPILLGATE_STORE__KEY_SECRET_FILE", secret.path());
        }
        let mut server = Server::start_command(&mut command);
        let body = json!({"key": "u", "limit": {"quota": "5/minute"}});
        let (status, answer) = ask(&server, "/v1/reserve", &body);
        if has_secret {
            assert_eq!((status, &answer["allowed"]), (200, &json!(true)), "{answer}");
            continue;
        }
        assert_eq!(status, 403, "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains("store.key_secret_file"), "{answer}");
        let refused = server.resp().command(&["SG.CANCEL", "AQAB"]).unwrap();
        assert!(format!("{refused:?}").contains("receipt"), "{refused:?}");
        server.log_until("store.key_secret_file");
    }
}

const BRIEF: &str = r#"
    [[rule]]
    name = "brief"
    key = []
    limits = [{ quota = "1", algorithm = "concurrency", max_hold = "2s" }]
"#;

#[test]
fn a_killed_holder_frees_its_permit_within_its_hold() {
    let (redis, file) = (RedisServer::start(), TempFile::new("limits.toml", BRIEF));
    let holder = Server::start_on(&redis, &["--config", file.path()]);
    let other = Server::start_on(&redis, &["--config", file.path()]);
    assert_eq!(holder.check("{}")["allowed"], true);
    let denied = other.check("{}");
    if denied["allowed"] == false {
        let wait = denied["retry_after_ms"].as_u64().unwrap();
        assert!(wait <= 2_000, "{denied}");
    }
    holder.kill();
    eventually(|| other.check("{}")["allowed"] == true);
}

#[test]
fn a_holder_that_slept_too_long_cannot_release_or_renew_the_next_permit() {
    let (redis, file) = (RedisServer::start(), TempFile::new("limits.toml", BRIEF));
    let sleeper = Server::start_on(&redis, &["--config", file.path()]);
    let other = Server::start_on(&redis, &["--config", file.path()]);
    let held = sleeper.check("{}");
    let receipt = json!({"receipt": held["receipt"]});
    sleeper.pause();
    let mut taken = Value::Null;
    eventually(|| {
        taken = other.check("{}");
        taken["allowed"] == true
    });
    // Long enough for a slow machine.
    let renewal = json!({"receipt": taken["receipt"], "ttl_ms": 2_000});
    assert_eq!(ask(&other, "/v1/renew", &renewal).0, 200);
    sleeper.resume();
    let renewal = json!({"receipt": held["receipt"], "ttl_ms": 2_000});
    assert_eq!(ask(&sleeper, "/v1/renew", &renewal), (200, json!({"result": "expired"})));
    assert_eq!(ask(&sleeper, "/v1/release", &receipt), (200, json!({"result": "expired"})));
    // The other caller still holds its permit, and releases it once.
    let taken = json!({"receipt": taken["receipt"]});
    let released = ask(&other, "/v1/release", &taken);
    let was_slow = json!({"result": "expired"});
    assert!(released == (200, json!({"result": "done"})) || released.1 == was_slow, "{released:?}");
}
