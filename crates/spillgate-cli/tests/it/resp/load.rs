//! Many clients at once, and shutdown: silent and slow clients do not delay the others, and every charged caller has
//! an answer.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spillgate_testkit::{Connection, RedisServer, Reply};

use super::{numbers, raw};
use crate::server::Server;

#[test]
fn stalled_callers_do_not_delay_others() {
    let server = Server::start(&[]);
    let stalled: Vec<_> = [b"".as_slice(), b"*5\r\n$11\r\nCL.THR", b"*5\r\n$11\r\n"]
        .iter()
        .cycle()
        .take(300)
        .map(|bytes| {
            let mut stream = raw(&server);
            stream.write_all(bytes).unwrap();
            stream
        })
        .collect();
    let mut client = server.resp();
    for call in 1..=100 {
        let reply = client.command(&["CL.THROTTLE", "u1", "999", "1", "86400"]).unwrap();
        assert_eq!(numbers(reply)[2], 1_000 - call);
    }
    drop(stalled);
}

#[test]
fn concurrent_callers_never_get_more_than_the_limit() {
    let server = Server::start(&[]);
    let allowed: usize = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..16)
            .map(|_| {
                scope.spawn(|| {
                    let ask = ["CL.THROTTLE", "hot", "99", "1", "86400"];
                    let ask: Vec<Vec<u8>> =
                        ask.iter().map(|word| word.as_bytes().to_vec()).collect();
                    let replies = server.resp().pipeline(&vec![ask; 20]).unwrap();
                    replies.into_iter().filter(|reply| numbers(reply.clone())[0] == 0).count()
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    assert_eq!(allowed, 100);
}

/// The store outlives the server, so it shows the charges.
#[test]
fn a_stop_under_load_has_charged_exactly_the_answered_calls() {
    let store = RedisServer::start();
    let server = Server::start_on(&store, &[]);
    let port = server.resp_port.unwrap();
    let (answered, stopping) = (AtomicU64::new(0), AtomicBool::new(false));
    let status = std::thread::scope(|scope| {
        let callers: [_; 8] = std::array::from_fn(|_| {
            scope.spawn(|| {
                let mut client = Connection::open(port).unwrap();
                while let Ok(reply) = client.command(&ASK) {
                    assert_eq!(numbers(reply)[0], 0);
                    answered.fetch_add(1, Ordering::SeqCst);
                }
                assert!(stopping.load(Ordering::SeqCst), "it ended before the signal");
            })
        });
        // Callers that have all failed report it when they are joined.
        while answered.load(Ordering::SeqCst) < 200
            && !callers.iter().all(|caller| caller.is_finished())
        {
            std::thread::yield_now();
        }
        stopping.store(true, Ordering::SeqCst);
        server.stop()
    });
    assert_eq!(status.code(), Some(0));
    let again = Server::start_on(&store, &[]);
    let remaining = numbers(again.resp().command(&ASK).unwrap())[2] as u64;
    assert_eq!(remaining + 1 + answered.load(Ordering::SeqCst), 1_000_000);
}

/// A period so long that no quota returns meanwhile.
const ASK: [&str; 5] = ["CL.THROTTLE", "hot", "999999", "1", "2000"];

#[test]
fn silent_callers_do_not_prevent_the_end() {
    let server = Server::start(&[]);
    let mut silent: Vec<Connection> = (0..20).map(|_| server.resp()).collect();
    for client in &mut silent {
        assert_eq!(client.command(&["PING"]).unwrap(), Reply::Status("PONG".into()));
    }
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn a_half_sent_pipeline_at_the_signal_is_answered() {
    let server = Server::start(&[]);
    let mut stream = raw(&server);
    stream.write_all(b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPI").unwrap();
    let mut answers = [0; 7];
    stream.read_exact(&mut answers).unwrap();
    let port = server.resp_port.unwrap();
    let status = std::thread::scope(|scope| {
        let stopped = scope.spawn(|| server.stop());
        while Connection::open(port).is_ok() {
            std::thread::yield_now();
        }
        stream.write_all(b"NG\r\n").unwrap();
        let mut answers = String::new();
        stream.read_to_string(&mut answers).unwrap();
        assert_eq!(answers, "+PONG\r\n");
        stopped.join().unwrap()
    });
    assert_eq!(status.code(), Some(0));
}
