//! Finds free ports.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Returns a port of 127.0.0.1 on which nothing listens, each only once in a process.
///
/// Another process may take it between this call and the listener's bind. A caller that starts a server then tries
/// again, as [`RedisServer`](crate::RedisServer) does.
#[must_use]
pub fn free_port() -> u16 {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let width = RANGE.end - RANGE.start;
    let random = RandomState::new().hash_one(std::process::id());
    let first = (random % u64::from(width)) as u16;
    (0..width)
        .map(|step| RANGE.start + (first + step) % width)
        .find(|port| {
            !given.contains(port) && TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()
        })
        .inspect(|port| {
            given.insert(*port);
        })
        .unwrap_or_else(|| {
            panic!(
                "no free port on 127.0.0.1 in {RANGE:?}: end some of the servers listening there"
            )
        })
}

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Below the range that the system gives to outgoing connections (from 32768 on Linux): a client that keeps dialling
/// a stopped server from that range can connect to itself, and its own source port can block the server's restart. A
/// cluster node opens its bus 10,000 ports above its own, which stays below that range too.
const RANGE: Range<u16> = 10_000..22_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once_and_can_be_bound() {
        let ports: BTreeSet<u16> = (0..50).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 50);
        assert!(ports.iter().all(|port| RANGE.contains(port)));
        TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).unwrap();
    }
}
