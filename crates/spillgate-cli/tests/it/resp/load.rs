//! Many at once, and the end: silent and slow callers cost the others nothing, and whoever was
//! charged has an answer.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spillgate_testkit::{Connection, RedisServer, Reply};

use super::{numbers, raw};
use crate::server::Server;

#[test]
fn callers_that_stall_do_not_hold_up_others() {
    let server = Server::start(&[]);
    let stalled: Vec<_> = [b"".as_slice(), b"*5\r\n$11\r\nCL.THR", b"CL.THROTTLE u1"]
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
fn callers_at_once_never_get_more_than_the_limit() {
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

/// The store outlives the server, so it tells what was charged.
#[test]
fn stopped_under_load_it_has_charged_what_it_answered_and_nothing_else() {
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
        // Callers that have all failed say so when they are joined.
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

/// So many for so long that nothing comes back meanwhile.
const ASK: [&str; 5] = ["CL.THROTTLE", "hot", "999999", "1", "2000"];

#[test]
fn silent_callers_do_not_keep_it_from_ending() {
    let server = Server::start(&[]);
    let mut silent: Vec<Connection> = (0..20).map(|_| server.resp()).collect();
    for client in &mut silent {
        assert_eq!(client.command(&["PING"]).unwrap(), Reply::Status("PONG".into()));
    }
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn a_pipeline_that_is_half_sent_at_the_signal_is_answered() {
    let server = Server::start(&[]);
    let mut stream = raw(&server);
    stream.write_all(b"PING\r\n*1\r\n$4\r\nPI").unwrap();
    let mut said = [0; 7];
    stream.read_exact(&mut said).unwrap();
    let port = server.resp_port.unwrap();
    let status = std::thread::scope(|scope| {
        let stopped = scope.spawn(|| server.stop());
        while Connection::open(port).is_ok() {
            std::thread::yield_now();
        }
        stream.write_all(b"NG\r\n").unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        assert_eq!(said, "+PONG\r\n");
        stopped.join().unwrap()
    });
    assert_eq!(status.code(), Some(0));
}
