//! Health: a store that is down or hangs takes no instance out of service.

use spillgate_testkit::{RedisServer, eventually, free_port};

use crate::server::Server;

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
    assert_eq!(health(&server, "/readyz?verbose").1, "ok\npolicy: 0 rules\nstore: answers\n");
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
