//! Servers that send no byte to a process, and the time that decisions may wait for them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use spillgate::Algorithm;

use super::super::rules::{RULES, Subject};
use super::Ledger;

/// The silent servers, and when each server last sent a byte.
#[derive(Debug, Default)]
pub(crate) struct Silences {
    /// The start of each silence, by process and server. Without a process, a server is silent to all.
    since_ms: RefCell<BTreeMap<(Option<u32>, String), u64>>,
    last_byte_ms: RefCell<BTreeMap<(u32, String), u64>>,
    /// When a call of the process to the server last timed out. A decision that waited in the queue meanwhile
    /// is sent then.
    timed_out_ms: RefCell<BTreeMap<(u32, String), u64>>,
    /// When a caller of the process last left a call to the server while it was not silent.
    left_ms: RefCell<BTreeMap<(u32, String), u64>>,
}

impl Silences {
    pub(crate) fn begin(&self, process: Option<u32>, server: &str, now_ms: u64) {
        self.since_ms.borrow_mut().entry((process, server.to_owned())).or_insert(now_ms);
        // A call that was left just before may have no reply yet. It times out like one that was left in the silence.
        let left_ms = self.left_ms.borrow();
        let just_left = left_ms.iter().filter(|((of, at), left_ms)| {
            at == server
                && process.is_none_or(|process| process == *of)
                && now_ms - *left_ms <= SILENT_MS
        });
        just_left.for_each(|((of, _), _)| self.time_out(*of, server, now_ms + SILENT_MS));
    }

    fn leave(&self, process: u32, server: &str, now_ms: u64) {
        self.left_ms.borrow_mut().insert((process, server.to_owned()), now_ms);
    }

    pub(crate) fn end(&self, process: Option<u32>, server: &str) {
        self.since_ms.borrow_mut().remove(&(process, server.to_owned()));
    }

    /// Bytes of a server arrived at a process. Some were in flight when the silence began.
    pub(crate) fn bytes_arrived(&self, process: u32, server: &str, now_ms: u64) {
        self.last_byte_ms.borrow_mut().insert((process, server.to_owned()), now_ms);
    }

    fn time_out(&self, process: u32, server: &str, at_ms: u64) {
        let mut timed_out_ms = self.timed_out_ms.borrow_mut();
        let last = timed_out_ms.entry((process, server.to_owned())).or_default();
        *last = at_ms.max(*last);
    }

    fn timed_out_ms(&self, process: u32, server: &str) -> u64 {
        self.timed_out_ms.borrow().get(&(process, server.to_owned())).copied().unwrap_or(0)
    }

    /// Returns since when a server is silent, if it is silent now.
    fn since_ms(&self, process: u32, server: &str) -> Option<u64> {
        let since = self.since_ms.borrow();
        let of = |process| since.get(&(process, server.to_owned())).copied();
        let began_ms = of(None).max(of(Some(process)))?;
        let last_byte_ms = self.last_byte_ms.borrow().get(&(process, server.to_owned())).copied();
        Some(began_ms.max(last_byte_ms.unwrap_or(0)))
    }
}

impl Ledger {
    /// A decision that only silent servers can make ends at the timeout, once for each of its legs. A permit
    /// is requested once more, by its id.
    pub(super) fn releases_when_all_are_silent(
        &self,
        process: u32,
        costs: &[(Subject, u64)],
        began_ms: u64,
    ) {
        let servers = self.servers_of(costs);
        let Some(since_ms) = self.all_silent_since_ms(process, &servers) else { return };
        let legs = servers.len().min(costs.len()) as u64;
        let is_permit =
            |(subject, _): &(Subject, u64)| RULES[subject.rule].algorithm == Algorithm::Concurrency;
        let attempts = if costs.iter().any(is_permit) { 2 } else { 1 };

        let timed_out_ms = servers.iter().map(|server| self.silences.timed_out_ms(process, server));
        let timed_out_ms = timed_out_ms.max().unwrap_or(0);
        let all_ms = self.now_ms() - began_ms.max(since_ms);
        let waited_ms = self.now_ms().saturating_sub(began_ms.max(since_ms).max(timed_out_ms));
        self.always(waited_ms <= SILENT_MS * legs * attempts && all_ms <= RELEASED_MS, || {
            format!(
                "{costs:?}: a decision waited {all_ms} ms for {servers:?}, which are silent, \
                 {waited_ms} of them since others were given up"
            )
        });
        if waited_ms >= TIMEOUT_MS {
            self.sometimes("a silent server timed out");
            servers.iter().for_each(|it| self.silences.time_out(process, it, self.now_ms()));
        }
    }

    /// The call of a cancelled caller times out in its turn.
    pub(super) fn left_to_silence(&self, process: u32, costs: &[(Subject, u64)], began_ms: u64) {
        let servers = self.servers_of(costs);
        if let Some(since_ms) = self.all_silent_since_ms(process, &servers) {
            let at_ms = began_ms.max(since_ms) + SILENT_MS;
            servers.iter().for_each(|it| self.silences.time_out(process, it, at_ms));
        } else {
            servers.iter().for_each(|it| self.silences.leave(process, it, self.now_ms()));
        }
    }

    fn servers_of(&self, costs: &[(Subject, u64)]) -> BTreeSet<String> {
        let places = self.places.borrow();
        costs.iter().filter_map(|(subject, _)| places.get(subject)).flatten().cloned().collect()
    }

    fn all_silent_since_ms(&self, process: u32, servers: &BTreeSet<String>) -> Option<u64> {
        let since_ms: Option<Vec<u64>> =
            servers.iter().map(|server| self.silences.since_ms(process, server)).collect();
        since_ms?.into_iter().max()
    }
}

pub(super) const TIMEOUT_MS: u64 = 25;
/// The timeout, the second check after 2 ms, and a tick of the simulated clock.
const SILENT_MS: u64 = TIMEOUT_MS + 3;
/// A stopped server releases all callers within this time, however many of them wait in the queue.
const RELEASED_MS: u64 = 100;
