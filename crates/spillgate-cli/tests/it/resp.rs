//! The RESP door: as Redis clients see it, and as strangers try it.

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

/// All that the door says to these bytes before it closes.
fn exchange(server: &Server, bytes: &[u8]) -> String {
    let mut stream = raw(server);
    stream.write_all(bytes).unwrap();
    // The end of what we send: all is answered, then the door closes.
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said
}

fn raw(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", server.resp_port.unwrap())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The numbers of an answer.
#[track_caller]
fn numbers(reply: Reply) -> Vec<i64> {
    match reply {
        Reply::Array(items) => items.iter().map(Reply::integer).collect(),
        other => panic!("expected numbers, the server answered {other:?}"),
    }
}

/// The first three as they are; the seconds of the others may have gone down a little by now.
#[track_caller]
fn assert_answer(found: &[i64], expected: [i64; 5]) {
    assert_eq!(found[..3], expected[..3], "{found:?}");
    for (found, expected) in found[3..].iter().zip(&expected[3..]) {
        let late = if *expected > SLOWEST { SLOWEST } else { 0 };
        assert!((expected - late..=*expected).contains(found), "{found}, not {expected}");
    }
}

/// Seconds between two steps of a story on a machine busy with something else.
const SLOWEST: i64 = 30;

/// Far longer than any answer takes, short enough to see which test hangs.
const PATIENCE: Duration = Duration::from_secs(20);
