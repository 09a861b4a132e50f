//! SIGTERM and SIGINT: no new callers, an answer for every request that was accepted, exit code 0.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use spillgate_testkit::Process;

use crate::client::Client;
use crate::server::{Server, spillgate};

const BODY: &[u8] = br#"{"key":"u1","limit":{"quota":"5/minute"}}"#;

#[test]
fn under_load_every_accepted_request_is_answered_and_the_exit_code_is_0() {
    let server = Server::start(&[]);
    let port = server.port;
    let answered = AtomicU32::new(0);
    let stopping = AtomicBool::new(false);
    let status = std::thread::scope(|scope| {
        let callers: [_; 8] = std::array::from_fn(|_| {
            scope.spawn(|| {
                while let Ok(mut client) = Client::connect(port) {
                    let new = stopping.load(Ordering::SeqCst);
                    match ask_until_connection_closes(&mut client, &answered) {
                        Ok(()) => {
                            assert!(stopping.load(Ordering::SeqCst), "closed before the signal")
                        }
                        // The system accepted the connection before the listener closed, but the server never did.
                        Err(_) if new => return,
                        Err(error) => panic!("a request was taken and not answered: {error}"),
                    }
                }
            })
        });
        // Callers that have all failed report it when they are joined.
        while answered.load(Ordering::Relaxed) < 200
            && !callers.iter().all(|caller| caller.is_finished())
        {
            std::thread::yield_now();
        }
        stopping.store(true, Ordering::SeqCst);
        server.stop()
    });
    assert_eq!(status.code(), Some(0));
}

fn ask_until_connection_closes(client: &mut Client, answered: &AtomicU32) -> io::Result<()> {
    loop {
        let reply = client.post("/v1/check", BODY)?;
        assert_eq!(reply.status, 200);
        answered.fetch_add(1, Ordering::Relaxed);
        if reply.header("connection") == Some("close") {
            return Ok(());
        }
    }
}

#[test]
fn a_waiting_caller_is_denied_and_answered_at_the_signal() {
    let server = Server::start(&[]);
    let body = |wait_ms: u32| {
        format!(r#"{{"key":"u","limit":{{"quota":"1/hour"}},"wait_ms":{wait_ms}}}"#).into_bytes()
    };
    // A wait that cannot succeed is denied at once, and one for a permit lasts as long as it may.
    assert_eq!(server.post("/v1/check", &body(60_000)).json()["allowed"], true);
    assert_eq!(server.post("/v1/check", &body(60_000)).json()["allowed"], false);
    let slot = br#"{"key":"s","limit":{"quota":"1","algorithm":"concurrency","max_hold":"1h"},"wait_ms":60000}"#;
    assert_eq!(server.post("/v1/check", slot).json()["allowed"], true);
    let mut client = server.client();
    let head =
        format!("POST /v1/check HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", slot.len());
    client.write(&[head.as_bytes(), slot].concat()).unwrap();
    server.check("{}");
    let status = server.stop();
    let reply = client.read().unwrap();
    assert_eq!((reply.status, reply.json()["allowed"].as_bool()), (200, Some(false)));
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_half_sent_request_at_the_signal_is_answered() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let head =
        format!("POST /v1/check HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", BODY.len());
    client.write(head.as_bytes()).unwrap();
    // An answer here shows that the server has accepted the connection above as well.
    server.check("{}");
    let port = server.port;
    let status = std::thread::scope(|scope| {
        let stopped = scope.spawn(|| server.stop());
        while Client::connect(port).is_ok() {
            std::thread::yield_now();
        }
        client.write(BODY).unwrap();
        let reply = client.read().unwrap();
        assert_eq!((reply.status, reply.header("connection")), (200, Some("close")));
        stopped.join().unwrap()
    });
    assert_eq!(status.code(), Some(0));
}

#[test]
fn silent_callers_do_not_prevent_the_end() {
    let server = Server::start(&[]);
    let mut silent: Vec<Client> = (0..20).map(|_| server.client()).collect();
    for client in &mut silent {
        client.post("/v1/check", b"{}").unwrap();
    }
    assert_eq!(server.stop().code(), Some(0));
    let ended = silent[0].read().unwrap_err();
    assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn sigint_ends_the_server_too() {
    let mut server = Process::start(
        spillgate(&["serve", "--http", "127.0.0.1:0"]).stderr(std::process::Stdio::piped()),
    );
    let mut ready = String::new();
    io::BufRead::read_line(&mut io::BufReader::new(server.stderr().unwrap()), &mut ready).unwrap();
    server.signal("INT");
    assert_eq!(server.wait(Duration::from_secs(15)).and_then(|status| status.code()), Some(0));
}
