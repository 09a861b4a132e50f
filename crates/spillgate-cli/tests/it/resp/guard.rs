//! Arbitrary bytes: each connection ends at most itself, and takes hardly any memory.

use std::io::{Read, Write};

use super::{encoded, exchange, exchange_bytes, raw};
use crate::server::{Server, resident_kib};

const CHECK: &str = "CL.THROTTLE u1 1000000 1 1";

#[test]
fn invalid_bytes_get_an_error_and_end_their_connection() {
    let server = Server::start(&[]);
    let mut other = server.resp();
    for (bytes, why) in [
        (b"*1025\r\n".to_vec(), "invalid multibulk length"),
        (b"*2147483647\r\n".to_vec(), "invalid length"),
        (b"*1\r\n$65537\r\n".to_vec(), "invalid bulk length"),
        (b"*1\r\n$-1\r\n".to_vec(), "invalid bulk length"),
        (b"*2\r\n$4\r\nPING\r\n*1\r\n".to_vec(), "expected '$'"),
        (b"*1\r\n$3\r\nPING\r\n".to_vec(), "expected CR LF after a string"),
        (b"PING\r\n".to_vec(), "expected '*'"),
        (long_request(), "too big request"),
    ] {
        let bytes = [encoded(CHECK), bytes, encoded(CHECK)].concat();
        let mut stream = raw(&server);
        // The server may close before it has read everything.
        let _ = stream.write_all(&bytes);
        let mut answers = Vec::new();
        let _ = stream.read_to_end(&mut answers);
        let answers = String::from_utf8_lossy(&answers).into_owned();
        assert!(answers.starts_with("*5\r\n:0\r\n"), "{why}: {answers}");
        assert!(answers.contains(&format!("-ERR Protocol error: {why}")), "{why}: {answers}");
        assert_eq!(other.command(&["PING"]).unwrap().text(), "PONG");
    }
}

/// Every string of it is within bounds, but not all of them together.
fn long_request() -> Vec<u8> {
    let string = [b"$1024\r\n".as_slice(), &[0; 1024], b"\r\n"].concat();
    [b"*200\r\n".as_slice(), &string.repeat(200)].concat()
}

#[test]
fn a_bad_argument_does_not_end_the_connection() {
    let server = Server::start(&[]);
    let bytes = [
        encoded(&format!("CL.THROTTLE u1 x 1 1\n{CHECK}")),
        b"*0\r\n*-1\r\n".to_vec(),
        encoded(&format!("NONSENSE\n{CHECK}")),
    ];
    let answers = exchange_bytes(&server, &bytes.concat());
    assert_eq!(answers.matches("*5\r\n").count(), 2, "{answers}");
    assert_eq!(answers.matches("-ERR ").count(), 2, "{answers}");
}

#[test]
fn a_request_in_single_bytes_is_the_same_request() {
    let server = Server::start(&[]);
    let mut stream = raw(&server);
    stream.set_nodelay(true).unwrap();
    for byte in
        b"*5\r\n$11\r\nCL.THROTTLE\r\n$2\r\nu1\r\n$1\r\n4\r\n$1\r\n5\r\n$2\r\n60\r\n*1\r\n$4\r\nPING\r\n"
    {
        stream.write_all(&[*byte]).unwrap();
    }
    let mut answers = [0; 33];
    stream.read_exact(&mut answers).unwrap();
    assert_eq!(&answers[..], b"*5\r\n:0\r\n:5\r\n:4\r\n:-1\r\n:12\r\n+PONG\r\n".as_slice());
}

#[test]
#[cfg(target_os = "linux")]
fn a_thousand_declared_lengths_take_no_memory() {
    let server = Server::start(&[]);
    let before = resident_kib(server.pid());
    let bombs: Vec<_> = (0..1_000)
        .map(|_| {
            let mut stream = raw(&server);
            stream.write_all(b"*1024\r\n$65536\r\n").unwrap();
            stream
        })
        .collect();
    // The answer shows that the bytes above have been read.
    assert!(exchange(&server, CHECK).starts_with("*5\r\n"));
    let grown = resident_kib(server.pid()).saturating_sub(before);
    assert!(grown < 24 * 1024, "{grown} KiB for a thousand connections");
    drop(bombs);
}

#[test]
#[cfg(target_os = "linux")]
fn a_client_that_reads_no_answers_is_read_no_more() {
    let server = Server::start(&[]);
    let before = resident_kib(server.pid());
    let mut stream = raw(&server);
    stream.set_nonblocking(true).unwrap();
    let flood = encoded("INFO").repeat(10_000);
    let mut taken = 0;
    // The buffers of the system on both sides fill, and then no more bytes are taken.
    for _ in 0..2_000 {
        match stream.write(&flood) {
            Ok(bytes) => taken += bytes,
            Err(_) => std::thread::yield_now(),
        }
    }
    let mut other = server.resp();
    assert_eq!(other.command(&["PING"]).unwrap().text(), "PONG");
    let grown = resident_kib(server.pid()).saturating_sub(before);
    assert!(grown < 16 * 1024, "{grown} KiB for one connection that sent {taken} bytes");
}

/// A page can make a browser send a form anywhere, with a body of commands.
#[test]
fn a_browsers_request_ends_its_connection_before_its_body() {
    let server = Server::start(&[]);
    let spend = "CL.THROTTLE victim 0 1 86400\r\n";
    for method in ["POST", "GET", "PUT", "OPTIONS"] {
        let request = format!(
            "{method} / HTTP/1.1\r\nHost: 127.0.0.1:6380\r\nOrigin: http://evil.example\r\n\
             Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n{spend}",
            spend.len()
        );
        let answers = exchange_bytes(&server, request.as_bytes());
        assert!(answers.contains("send HTTP requests to the HTTP listener"), "{method}: {answers}");
        assert!(!answers.contains("*5"), "{method}: {answers}");
    }
    let first = server.resp().command(&["CL.THROTTLE", "victim", "0", "1", "86400"]).unwrap();
    assert_eq!(super::numbers(first)[0], 0, "nothing was charged before");
}
