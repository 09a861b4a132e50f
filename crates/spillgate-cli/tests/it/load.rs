//! Slow and silent clients do not delay the others.

use crate::server::Server;

#[test]
fn stalled_callers_do_not_delay_others() {
    let server = Server::start(&[]);
    let stalled: Vec<_> = [
        b"".as_slice(),
        b"POST /v1/check HT",
        b"POST /v1/check HTTP/1.1\r\nHost: h\r\n",
        b"POST /v1/check HTTP/1.1\r\nHost: h\r\nContent-Length: 50\r\n\r\n{\"key\"",
    ]
    .iter()
    .cycle()
    .take(200)
    .map(|bytes| {
        let mut client = server.client();
        client.write(bytes).unwrap();
        client
    })
    .collect();
    assert_eq!(server.check(r#"{"key":"u1","limit":{"quota":"5/minute"}}"#)["remaining"], 4);
    drop(stalled);
}

#[test]
fn a_pipeline_of_requests_is_answered_in_order() {
    let server = Server::start(&[]);
    let body = r#"{"key":"u1","limit":{"quota":"5/minute"}}"#;
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut client = server.client();
    client.write(request.repeat(7).as_bytes()).unwrap();
    let remaining = (0..7).map(|_| client.read().unwrap().json()["remaining"].as_u64().unwrap());
    assert_eq!(remaining.collect::<Vec<_>>(), [4, 3, 2, 1, 0, 0, 0]);
}

#[test]
fn bytes_that_are_not_http_end_only_their_own_connection() {
    let server = Server::start(&[]);
    let mut client = server.client();
    client.write(b"\x16\x03\x01 this is not HTTP\r\n\r\n").unwrap();
    assert_eq!(client.read().map_or(400, |reply| reply.status), 400);
    assert_eq!(server.check("{}")["allowed"], true);
}

#[test]
fn concurrent_callers_never_get_more_than_the_limit() {
    let server = Server::start(&[]);
    let allowed: usize = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..16)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = server.client();
                    let mut ask = || {
                        client
                            .post("/v1/check", br#"{"key":"hot","limit":{"quota":"100/day"}}"#)
                            .unwrap()
                    };
                    (0..20).filter(|_| ask().json()["allowed"] == true).count()
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    assert_eq!(allowed, 100);
}
