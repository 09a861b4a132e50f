//! The RESP API, with Redis clients and with arbitrary bytes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use spillgate_testkit::Reply;

use crate::server::Server;

mod clients;
mod commands;
mod guard;
mod load;
mod password;

/// Sends the commands of some lines, and returns everything that the server answers before it closes the connection.
fn exchange(server: &Server, lines: &str) -> String {
    exchange_bytes(server, &encoded(lines))
}

/// Returns each line as a command, whose words a space divides.
fn encoded(lines: &str) -> Vec<u8> {
    let string = |word: &str| format!("${}\r\n{word}\r\n", word.len());
    let command = |line: &str| {
        let strings: String = line.split(' ').map(string).collect();
        format!("*{}\r\n{strings}", line.split(' ').count())
    };
    lines.lines().map(command).collect::<String>().into_bytes()
}

fn exchange_bytes(server: &Server, bytes: &[u8]) -> String {
    let mut stream = raw(server);
    stream.write_all(bytes).unwrap();
    // The input ends: the server answers everything and closes.
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    answers
}

fn raw(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", server.resp_port.unwrap())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Returns the numbers of an answer.
#[track_caller]
fn numbers(reply: Reply) -> Vec<i64> {
    match reply {
        Reply::Array(items) => items.iter().map(Reply::integer).collect(),
        other => panic!("expected numbers, the server answered {other:?}"),
    }
}

/// Compares the first three numbers; the seconds of the others may have decreased a little.
#[track_caller]
fn assert_answer(found: &[i64], expected: [i64; 5]) {
    assert_eq!(found[..3], expected[..3], "{found:?}");
    for (found, expected) in found[3..].iter().zip(&expected[3..]) {
        let late = if *expected > SLOWEST { SLOWEST } else { 0 };
        assert!((expected - late..=*expected).contains(found), "{found}, not {expected}");
    }
}

/// The most seconds between two steps on a machine busy with something else.
const SLOWEST: i64 = 30;

/// Far longer than any answer takes, and short enough to see which test hangs.
const PATIENCE: Duration = Duration::from_secs(20);
