//! The memory, files and connections that clients of one listener can take: each has a bound.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use spillgate_testkit::{RedisServer, eventually};

use crate::client::Client;
use crate::server::{LISTENING, Server, TempFile, peak_kib, resident_kib, spillgate};

const CHECK: &str = r#"{"attributes":{"user":"u1"}}"#;
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const POLICY: &str = "[[rule]]\nname = \"user\"\nkey = [\"user\"]\nlimits = [\"1000000/second\"]\n";

/// Returns the binary with a limit on open files.
fn with_files(files: u32, arguments: &[&str]) -> Command {
    let plain = spillgate(&[&["serve"], &LISTENING[..], arguments].concat());
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\"")]);
    command.arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

fn open(port: u16, begun: &[u8]) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(begun)?;
    Ok(stream)
}

fn files_of(server: &Server) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count()
}

/// With a limit of 200 open files, 500 slow connections to each listener that decides.
#[test]
#[cfg(target_os = "linux")]
fn slow_connections_stop_neither_health_nor_reload_nor_store_nor_good_clients() {
    // This process has the other ends.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let mut store = RedisServer::start();
    let file = TempFile::new("limits.toml", POLICY);
    let url = store.url();
    let mut server = Server::start_command(
        with_files(200, &["--config", file.path(), "--redis", &url])
            .env("SPILLGATE_STORE__TIMEOUT", "1s"),
    );
    let listeners: [(u16, &[u8]); 3] = [
        (server.port, b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Le"),
        (server.grpc_port.unwrap(), b"PRI * HTTP/2.0\r\n"),
        (server.resp_port.unwrap(), b"*3\r\n$11\r\nCL.THRO"),
    ];
    let mut slow = Vec::new();
    for (port, begun) in listeners {
        slow.extend((0..500).filter_map(|_| open(port, begun).ok()));
    }
    // All of them have been accepted or are in the system's queue.
    for _ in 0..20 {
        assert_eq!(server.operator().send("GET", "/livez", b"").unwrap().status, 200);
        assert_eq!(server.check(CHECK)["source"], "store");
        assert_eq!(server.resp().command(&["PING"]).unwrap().text(), "PONG");
    }
    let files = files_of(&server);
    println!("{} slow connections, {files} files open", slow.len());
    assert!(files < 200, "{files}");

    std::fs::write(file.path(), POLICY.replace("1000000", "7")).unwrap();
    server.log_until("1 rule in force");

    store.kill();
    eventually(|| server.check(CHECK)["degraded"] == true);
    store.restart();
    eventually(|| server.check(CHECK)["source"] == "store");
    drop(slow);
}

#[test]
#[cfg(target_os = "linux")]
fn a_low_file_limit_is_logged_with_the_shares() {
    let server = Server::start_command(&mut with_files(200, &[]));
    let log = &server.before_ready;
    assert!(log.contains("may open 200 files"), "{log}");
    assert!(log.contains("connections to each listener that decides"), "{log}");
    assert!(log.contains("LimitNOFILE"), "{log}");
}

/// An idle client of a full listener sees its connection close, as any pool expects.
#[test]
#[cfg(target_os = "linux")]
fn a_full_listener_keeps_the_connections_in_use() {
    let server = Server::start_command(&mut with_files(200, &[]));
    let mut used = server.client();
    for round in 0..40 {
        let _idle: Vec<Client> = (0..10)
            .map(|_| {
                let mut client = server.client();
                client.post("/v1/check", b"{}").unwrap();
                client
            })
            .collect();
        let reply = used.post("/v1/check", b"{}");
        assert!(reply.is_ok(), "round {round}: {reply:?}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn clients_with_wrong_tokens_keep_out_no_client_with_the_right_one() {
    let token = TempFile::new("token", TOKEN);
    let tokens = TempFile::new("tokens", &format!("ann:operator:{TOKEN}"));
    let mut command = with_files(200, &[]);
    command.env("SPILLGATE_SERVER__DATA_TOKEN_FILE", token.path());
    command.env("SPILLGATE_SERVER__ADMIN_TOKEN_FILE", tokens.path());
    let server = Server::start_command(&mut command);
    // More than each listener has places for.
    let strangers = |port: u16, wrong: &str| -> Vec<TcpStream> {
        let sent = wrong.repeat(4);
        (0..60).filter_map(|_| open(port, sent.as_bytes()).ok()).collect()
    };
    let get = |path: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\r\n")
    };
    let at_http = strangers(server.port, &get("/v1/openapi.json"));
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("Host", "localhost"), ("Authorization", &*bearer)];
    let reply = server.client().send_with("POST", "/v1/check", &headers, CHECK.as_bytes());
    assert_eq!(reply.unwrap().status, 200);

    let at_resp = strangers(server.resp_port.unwrap(), "*2\r\n$4\r\nAUTH\r\n$5\r\nwrong\r\n");
    assert_eq!(server.resp().command(&["AUTH", TOKEN]).unwrap().text(), "OK");

    let at_admin = strangers(server.admin_port.unwrap(), &get("/admin/v1/rules"));
    assert_eq!(server.operator().send("GET", "/livez", b"").unwrap().status, 200);
    drop((at_http, at_resp, at_admin));
}

/// Opens clients that send all but the end of something long, each until the server stops reading.
fn unfinished(port: u16, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..count {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nonblocking(true).unwrap();
        streams.push((stream, 0));
    }
    // In turns, so that all of them send at the same time.
    for _ in 0..40 {
        for (stream, sent) in &mut streams {
            if let Ok(more) = stream.write(&bytes[*sent..]) {
                *sent += more;
            }
        }
    }
    streams.into_iter().map(|(stream, _)| stream).collect()
}

/// The most that a listener may buffer in all, with the memory of its connections and what the allocator has not returned
/// yet.
const LISTENER_KIB: u64 = 128 * 1024;

#[test]
#[cfg(target_os = "linux")]
fn unfinished_bodies_take_no_more_than_the_listeners_budget() {
    let server = Server::start(&[]);
    let before = resident_kib(server.pid());
    let body = 1 << 20;
    let head =
        format!("POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: {body}\r\n\r\n");
    let bytes = [head.as_bytes(), &vec![b' '; body - 1]].concat();
    let streams = unfinished(server.port, 300, &bytes);
    let grown = peak_kib(server.pid(), Duration::from_secs(2)).saturating_sub(before);
    println!("300 unfinished bodies of 1 MiB: {grown} KiB more");
    assert_eq!(server.check(r#"{"key":"u1","limit":{"quota":"5/minute"}}"#)["allowed"], true);
    assert!(grown < LISTENER_KIB, "{grown} KiB");
    // All of them end after the deadline.
    for mut stream in streams {
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut answer = Vec::new();
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn unfinished_requests_over_resp_take_no_more_than_the_listeners_budget() {
    let server = Server::start(&[]);
    let before = resident_kib(server.pid());
    let string = [&b"$60000\r\n"[..], &[b'a'; 60_000], b"\r\n"].concat();
    let bytes = [&b"*4\r\n$4\r\nECHO\r\n"[..], &string, &string[..50_000]].concat();
    let streams = unfinished(server.resp_port.unwrap(), 2_000, &bytes);
    let grown = peak_kib(server.pid(), Duration::from_secs(2)).saturating_sub(before);
    println!("2000 unfinished requests of 110 KB over RESP: {grown} KiB more");
    assert_eq!(server.resp().command(&["PING"]).unwrap().text(), "PONG");
    assert!(grown < LISTENER_KIB, "{grown} KiB");
    drop(streams);
}

/// Together they exceed the budget, and each of them ends: a few may exceed it until the end of a message.
#[test]
fn many_long_bodies_at_once_are_all_answered() {
    let server = Server::start(&[]);
    let body =
        format!("{{{}\"key\":\"u1\",\"limit\":{{\"quota\":\"5/minute\"}}}}", " ".repeat(1_000_000));
    std::thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| assert_eq!(server.post("/v1/check", body.as_bytes()).status, 200));
        }
    });
}

/// Returns a policy of which one check meets 1,024 limits.
fn wide_policy() -> String {
    let limits: Vec<String> = (1..=64).map(|n| format!("'{n}000/{n}d'")).collect();
    let limits = limits.join(",");
    let rule = |n| format!("[[rule]]\nname = 'rule-{n}'\nkey = ['user']\nlimits = [{limits}]\n");
    (0..16).map(rule).collect()
}

fn batch_of(count: usize) -> Vec<u8> {
    let body = format!("[{}]", vec![CHECK; count].join(","));
    let length = body.len();
    let head = "POST /v1/check/batch HTTP/1.1\r\nHost: localhost\r\n";
    format!("{head}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}

/// Once one batch took 227 MB, and 30 clients that did not read their answers 2.5 GB.
#[test]
#[cfg(target_os = "linux")]
fn clients_that_do_not_read_the_answers_to_batches_take_bounded_memory() {
    let file = TempFile::new("limits.toml", &wide_policy());
    let server = Server::start(&["--config", file.path()]);
    let whole = format!("[{}]", vec![CHECK; 1_000].join(","));
    let refused = server.post("/v1/check/batch", whole.as_bytes());
    assert_eq!(refused.status, 413, "{:.200}", refused.body);
    assert!(refused.body.contains("send at most"), "{}", refused.body);
    assert_eq!(server.check(CHECK)["remaining"], 999, "the refused batch was not charged");
    let before = resident_kib(server.pid());
    let clients: Vec<TcpStream> =
        (0..30).map(|_| open(server.port, &batch_of(50)).unwrap()).collect();
    let most = peak_kib(server.pid(), Duration::from_millis(800)).saturating_sub(before);
    println!("30 clients with 50 checks of 1,024 limits each: {} MiB", most / 1024);
    // The budget of 64 MiB, and eight answers of at most 16 MiB.
    assert!(most < 256 * 1024, "{most} KiB");
    assert_eq!(server.operator().send("GET", "/livez", b"").unwrap().status, 200);
    drop(clients);
}

#[test]
fn a_client_that_closes_its_side_after_its_request_gets_the_answer() {
    let server = Server::start(&[]);
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{CHECK}",
        CHECK.len()
    );
    let answered = (0..50).filter(|_| {
        let mut stream = open(server.port, request.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200")
    });
    assert_eq!(answered.count(), 50);
}

/// A client that closes its side looks like one that has left, which must not keep a place in line or take a permit.
#[test]
fn a_client_that_closes_its_side_while_it_waits_has_left() {
    let file = TempFile::new(
        "limits.toml",
        "[[rule]]\nname = 'user'\nkey = ['user']\n\
         limits = [{ quota = '1', algorithm = 'concurrency', max_hold = '60s' }]\n",
    );
    let server = Server::start(&["--config", file.path()]);
    let held = server.check(CHECK)["receipt"].as_str().unwrap().to_owned();
    let waiting = r#"{"attributes":{"user":"u1"},"wait_ms":50000}"#;
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{waiting}",
        waiting.len()
    );
    let mut stream = open(server.port, request.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(answer, b"", "the server closes the connection");
    let released = server.post("/v1/release", format!("{{\"receipt\":\"{held}\"}}").as_bytes());
    assert_eq!(released.status, 200, "{}", released.body);
    assert_eq!(server.check(CHECK)["allowed"], true, "no other client took the permit");
}
