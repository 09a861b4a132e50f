//! Health: a store that is down or hangs takes no instance out of service.

use spillgate_testkit::{RedisServer, eventually, free_port};

use crate::server::{Server, TempFile};

#[track_caller]
fn health(server: &Server, path: &str) -> (u16, String) {
    let reply = server.operator().send("GET", path, b"").unwrap();
    (reply.status, reply.body)
}

#[test]
fn an_instance_is_ready_with_its_store_up_hung_and_down() {
    let mut redis = RedisServer::start();
    let server = Server::start(&["--redis", &redis.url()]);
    let ready = |store: &str| {
        for path in ["/livez", "/readyz"] {
            assert_eq!(health(&server, path), (200, "ok\n".to_owned()), "{path}, {store}");
        }
        // The instance notices a restarted store once it has a new connection.
        eventually(|| {
            let (status, answer) = health(&server, "/readyz?verbose");
            let is_away = answer.contains("\nstore: does not answer");
            assert!(!is_away || !answer.contains(": no trouble\n"), "{answer}");
            status == 200
                && answer.starts_with(&format!("ok\npolicy: 0 rules\nstore: {store}\nshard "))
        });
    };
    ready("answers");
    redis.pause();
    ready("does not answer: each rule's on_outage decides");
    redis.resume();
    ready("answers");
    redis.kill();
    ready("does not answer: each rule's on_outage decides");
}

#[test]
fn an_instance_is_ready_though_its_store_was_never_up() {
    let server = Server::start(&["--redis", &format!("redis://127.0.0.1:{}", free_port())]);
    assert_eq!(health(&server, "/readyz").0, 200);
    eventually(|| health(&server, "/readyz?verbose").1.contains("Connection refused"));
    let answer = health(&server, "/readyz?verbose").1;
    assert!(answer.contains("store: does not answer"), "{answer}");
    assert!(answer.contains(": Connection refused"), "{answer}");
}

#[test]
fn a_memory_store_always_answers() {
    let server = Server::start(&[]);
    let answer = health(&server, "/readyz?verbose").1;
    let start =
        "ok\npolicy: 0 rules\nstore: answers\nstatus: no rules\nwarning: there are no rules";
    assert!(answer.starts_with(start), "{answer}");
}

#[test]
fn an_unknown_path_or_method_lists_the_known_ones() {
    let server = Server::start(&[]);
    for (method, path, status) in
        [("GET", "/health", 404), ("POST", "/livez", 405), ("PATCH", "/admin/v1/rules", 405)]
    {
        let (answered, _, detail) = super::refused(&server, method, path, "");
        assert_eq!(answered, status, "{method} {path}");
        assert!(detail.contains("GET /livez, /readyz and /metrics"), "{detail}");
    }
}

/// Each was shown as healthy once.
#[test]
fn the_status_names_a_rule_off_a_refused_file_and_lost_state() {
    let file = super::api_rule();
    let mut redis = RedisServer::start();
    let server = Server::start_on(&redis, &["--config", file.path()]);
    let shows = |part: &str| {
        let mut answer = String::new();
        let shown = spillgate_testkit::poll(std::time::Duration::from_secs(60), || {
            answer = health(&server, "/readyz?verbose").1;
            answer.contains(part).then_some(())
        });
        assert!(shown.is_some(), "no {part:?} in {answer}");
    };
    shows("status: healthy\n");
    let off = serde_json::json!({"mode": "off"});
    super::expect_ok(&server, "PUT", "/admin/v1/rules/api/mode", &off);
    shows("status: nothing enforced\ncritical: the only rule is not enforced");
    super::expect_ok(&server, "DELETE", "/admin/v1/rules/api/mode", &serde_json::Value::Null);
    shows("status: healthy\n");

    let rules = std::fs::read_to_string(file.path()).unwrap();
    std::fs::write(file.path(), rules.replace("hour", "fortnight")).unwrap();
    shows("status: policy refused\ncritical: the changed policy file was refused");
    std::fs::write(file.path(), rules).unwrap();
    shows("status: healthy\n");

    redis.kill();
    shows("critical: decisions are made without redis://");
    redis.restart();
    shows("warning: the store lost its data");
}

#[test]
fn clients_without_the_token_see_only_the_kind_of_a_condition() {
    let token = TempFile::new("token", "ops:operator:0123456789abcdef0123456789abcdef\n");
    let config = format!(
        "[server]\nadmin_token_file = \"{}\"\n[[rule]]\nname = \"secret-name\"\nkey = []\n\
         limits = [\"1/s\"]\nmode = \"off\"\n",
        token.path()
    );
    let file = TempFile::new("limits.toml", &config);
    let server = Server::start(&["--config", file.path()]);
    eventually(|| health(&server, "/readyz?verbose").1.contains("critical: nothing-enforced\n"));
    let answer = health(&server, "/readyz?verbose").1;
    assert!(answer.contains("warning: rule-off\n") && !answer.contains("secret-name"), "{answer}");
}
