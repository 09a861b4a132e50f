//! The files and the events of the dashboard. Chromium drives it in tests/outside/dashboard.sh.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use spillgate_testkit::{RedisServer, eventually};

use super::{api_rule, decision};
use crate::server::{Server, TempFile};

#[test]
fn the_files_need_no_token_and_load_nothing_from_elsewhere() {
    let token = TempFile::new("token", "ann:operator:0123456789abcdef0123456789abcdef\n");
    let config = format!("[server]\nadmin_token_file = \"{}\"\n", token.path());
    let config = TempFile::new("limits.toml", &config);
    let server = Server::start(&["--config", config.path()]);
    let get = |path: &str| server.operator().send("GET", path, b"").unwrap();
    let page = get("/");
    let named = page
        .body
        .split('"')
        .filter(|part| [".js", ".css", ".svg"].iter().any(|end| part.ends_with(end)));
    let mut files: Vec<String> = named.map(|file| format!("/{file}")).collect();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../spillgate-server/dashboard");
    let scripts = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    files.extend(scripts.map(|name| format!("/{}", name.to_string_lossy())));
    files.retain(|file| file != "/index.html");
    files.push("/".to_owned());
    for path in files {
        let file = get(&path);
        assert_eq!(file.status, 200, "{path}");
        let policy = file.header("content-security-policy").unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"),
            "{policy}"
        );
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"));
        let without_namespace = file.body.replace("http://www.w3.org/2000/svg", "");
        for foreign in ["http:", "https:", "innerHTML", "style=\"", "onclick=\"", "eval("] {
            assert!(!without_namespace.contains(foreign), "{foreign} in {path}");
        }
    }
    assert_eq!(get("/admin/v1/events").status, 401);
    assert_eq!(server.operator().send("POST", "/", b"").unwrap().status, 405);
}

/// Opens a stream of events, and returns the status of the answer.
fn listen(server: &Server) -> (u16, BufReader<TcpStream>) {
    listen_with(server, "")
}

fn listen_with(server: &Server, header: &str) -> (u16, BufReader<TcpStream>) {
    let port = server.admin_port.unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!("GET /admin/v1/events HTTP/1.1\r\nHost: localhost:{port}\r\n{header}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head).unwrap();
    }
    (head.split(' ').nth(1).unwrap().parse().unwrap(), reader)
}

fn next_event(listener: &mut BufReader<TcpStream>) -> Value {
    loop {
        let mut line = String::new();
        assert!(listener.read_line(&mut line).unwrap() > 0, "the stream ended");
        if let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str(data).unwrap();
        }
    }
}

/// Reads a stream to its end: the connection stays open for the next request.
fn read_to_end(listener: &mut BufReader<TcpStream>) {
    let mut line = String::new();
    while listener.read_line(&mut line).unwrap() > 0 && line != "0\r\n" {
        line.clear();
    }
}

#[test]
fn events_show_changes_every_second() {
    let file = api_rule();
    let server = Server::start(&["--config", file.path()]);
    let (status, mut listener) = listen(&server);
    assert_eq!(status, 200);
    let first = next_event(&mut listener);
    assert_eq!((&first["rules"], &first["store"]), (&1.into(), &"memory".into()), "{first}");
    for _ in 0..3 {
        decision(&server);
    }
    let counted = loop {
        let event = next_event(&mut listener);
        if event["top"]["rules"][0]["denied"] == 1 {
            break event;
        }
    };
    assert_eq!(counted["top"]["rules"][0]["most_denied"][0]["subject"]["user"], "ann", "{counted}");
    // An event has the rates of the last whole second.
    while next_event(&mut listener)["rates"][0]["denied"].as_u64().unwrap_or(0) == 0 {
        decision(&server);
    }
    assert!(counted["at_ms"].as_u64() > first["at_ms"].as_u64());
}

#[test]
fn events_have_the_decisions_of_all_instances_on_the_store() {
    let (file, store) = (api_rule(), RedisServer::start());
    let start = || Server::start_on(&store, &["--config", file.path()]);
    let (one, other) = (start(), start());
    let (_, mut events) = listen(&one);
    let mut event = || next_event(&mut events);
    let servers = [&one, &one, &one, &other];
    let denied = servers.map(decision).iter().filter(|decision| *decision != "allowed").count();
    assert_eq!(denied, 2, "both instances share the limit");
    eventually(|| event()["fleet"] == json!({"instances": 2, "allowed": 2, "denied": 2}));
    // The other one is killed: it counts for five seconds more, then its load is removed.
    drop(other);
    eventually(|| event()["fleet"] == json!({"instances": 1, "allowed": 2, "denied": 1}));
    // Nothing is known while the store gives no answer.
    store.pause();
    eventually(|| event()["fleet"].is_null());
    store.resume();
    eventually(|| event()["fleet"]["instances"] == 1);
    let in_memory = Server::start(&[]);
    let (_, mut events) = listen(&in_memory);
    assert_eq!(next_event(&mut events)["fleet"], Value::Null);
}

/// 32 dashboards that no longer read must not keep an operator out.
#[test]
fn of_too_many_event_streams_the_oldest_ends() {
    let server = Server::start(&[]);
    let mut listeners: Vec<_> = (0..32).map(|_| listen(&server)).collect();
    let newest = listen(&server);
    let statuses: Vec<u16> = listeners.iter().chain([&newest]).map(|(status, _)| *status).collect();
    assert_eq!(statuses, [200; 33]);
    read_to_end(&mut listeners[0].1);
    for _ in 0..2 {
        next_event(&mut listeners[1].1);
    }
}

#[test]
fn a_revoked_token_ends_its_event_stream() {
    let [ann, bob] = ["0123456789abcdef", "fedcba9876543210"];
    let tokens = TempFile::new("tokens", &format!("ann:operator:{ann}\nbob:viewer:{bob}\n"));
    let config = format!("[server]\nadmin_token_file = \"{}\"\n", tokens.path());
    let config = TempFile::new("limits.toml", &config);
    let server = Server::start(&["--config", config.path()]);
    let listen = |token: &str| listen_with(&server, &format!("Authorization: Bearer {token}\r\n"));
    let [mut of_ann, mut of_bob] = [ann, bob].map(listen);
    assert_eq!((of_ann.0, of_bob.0), (200, 200));
    next_event(&mut of_bob.1);
    std::fs::write(tokens.path(), format!("ann:operator:{ann}\n")).unwrap();
    server.hang_up();
    read_to_end(&mut of_bob.1);
    next_event(&mut of_ann.1);
}

#[test]
fn a_stopping_server_ends_the_streams() {
    let server = Server::start(&[]);
    let (_, mut listener) = listen(&server);
    next_event(&mut listener);
    assert!(server.stop().success());
}

#[test]
fn events_carry_the_warning_about_the_file_in_force() {
    let rule =
        |name: &str| format!("[[rule]]\nname = \"{name}\"\nkey = []\nlimits = [\"5/day\"]\n");
    let file = TempFile::new("limits.toml", &(rule("a") + &rule("b") + &rule("c")));
    let server = Server::start(&["--config", file.path()]);
    let (_, mut listener) = listen(&server);
    assert_eq!(next_event(&mut listener)["status"]["word"], "healthy");
    std::fs::write(file.path(), rule("a")).unwrap();
    let warned =
        std::iter::repeat_with(|| next_event(&mut listener)).find(|event| event["rules"] == 1);
    let condition = warned.unwrap()["status"]["conditions"][0].clone();
    assert_eq!(
        (&condition["kind"], &condition["level"]),
        (&"rules-gone".into(), &"warning".into())
    );
    assert!(condition["text"].as_str().unwrap().starts_with("2 of 3 rules are gone"));
}
