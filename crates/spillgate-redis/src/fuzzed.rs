//! Checks that any reply of a store is safe to parse: it may be foreign, of another version, or damaged.
//!
//! An input is one byte that selects the request, and then the reply as bytes of the wire protocol.

use std::sync::LazyLock;

use redis::{Value, parse_redis_value};

use super::control::Exchanged;
use super::fingerprint::Fingerprint;
use super::heartbeat::Living;
use super::program::{self, Reply};
use super::wire::{WireReply, first_reply};
use super::{cluster, heartbeat, probing, slot::SLOTS};
use crate::algorithm::{Intent, Refund};
use crate::counter::{Change, PlannedCharge};
use crate::limit::{LimitSpec, NamedLimit};
use crate::plan::{RecordAction, Transaction};
use crate::subject::{SHARED_SECRET, Secret, SubjectKey};
use crate::time::us_of;

/// A fuzzed parser: the name of its corpus, and the check of every input.
pub type Target = (&'static str, fn(&[u8]));

/// The parsers, by the names of their corpora.
pub const TARGETS: [Target; 1] = [("replies", holds)];

/// Panics if a reply yields more than was requested.
pub fn holds(input: &[u8]) {
    let Some((kind, wire)) = input.split_first() else { return };
    let Ok(answer) = parse_redis_value(wire) else { return };
    let cut = first_reply(wire);
    if let Some(cut) = cut.clone() {
        // Compared as text, because NaN does not equal itself.
        assert_eq!(format!("{:?}", cut.map(WireReply::value)), format!("Ok({answer:?})"));
    }
    let script_reply = || Reply::of(cut?.ok()?.integers().ok()?).ok();
    match kind % 6 {
        0 => {
            let Some(reply) = script_reply() else { return };
            for intent in [Intent::Charge, Intent::Peek, Intent::Reserve { nonce: 7 }] {
                let transaction = Transaction {
                    intent,
                    record: RecordAction::None,
                    charges: counters().collect(),
                };
                // A single decision, and the second of a coalesced batch.
                for times in [1, 3] {
                    let range = program::reply_ranges(&[(&transaction, times)])[0].at(times / 2);
                    let transactions = std::slice::from_ref(&transaction);
                    let Ok(reply) = reply.read(transactions, &[range]) else { continue };
                    assert_eq!(reply.len(), 1);
                    let reply = reply.into_iter().flatten();
                    assert!(reply.into_iter().all(|reply| reply.replies.len() == LIMITS.len()));
                }
            }
        }
        1 => {
            let Some(reply) = script_reply() else { return };
            let changes = [Change::Force(1), Change::Refund(Refund::Amount(1))];
            let asked = || counters().zip(changes.into_iter().cycle()).collect::<Vec<_>>();
            let asked = asked();
            if let Ok(changed) =
                reply.changed(asked.iter().map(|(counter, change)| (counter, *change)))
            {
                assert_eq!(changed.len(), LIMITS.len());
            }
        }
        2 => {
            let Ok(exchanged) = Exchanged::of(answer) else { return };
            let sealed: usize = exchanged.unseen.iter().map(|entry| entry.sealed.len()).sum();
            assert!(sealed <= wire.len());
        }
        3 => {
            let own = Fingerprint::new(&Secret::new(&SHARED_SECRET), 0);
            let reply = heartbeat::read(answer, "key".to_owned(), &own);
            let Some((_, Living { mismatch, .. })) = reply else { return };
            assert!(mismatch.parts().iter().all(|(_, instances)| *instances <= mismatch.live));
        }
        4 => {
            let Some(ranges) = cluster::ranges(answer, None) else { return };
            let in_order = |range: &cluster::Range| range.first <= range.last;
            assert!(ranges.iter().all(|range| in_order(range) && range.last < SLOTS));
        }
        _ => {
            let is_list = matches!(answer, Value::Array(_));
            assert!(us_of(&answer).is_none() || is_list);
            assert!(probing::fields(&answer).len() <= wire.len());
        }
    }
}

fn counters() -> impl Iterator<Item = PlannedCharge> {
    LIMITS.iter().map(|limit| PlannedCharge {
        cost: 2,
        attributes: 1,
        ..PlannedCharge::new(SubjectKey { tag: 1, id: 2, rule: 3 }, limit.clone())
    })
}

/// One limit of each algorithm.
static LIMITS: LazyLock<Vec<NamedLimit>> = LazyLock::new(|| {
    let limit = |(position, (quota, algorithm)): (usize, (&str, &str))| {
        let max_hold = (algorithm == "concurrency").then(|| "30s".to_owned());
        let spec = LimitSpec { max_hold, ..LimitSpec::new(quota).algorithm(algorithm) };
        NamedLimit::new(spec.build().expect("a valid limit"), position)
    };
    let limits = [
        ("1000000000/second", "token-bucket"),
        ("7/month", "fixed-window"),
        ("10000/366d", "sliding-log"),
        ("1000000000/ms", "sliding-window"),
        ("20", "concurrency"),
    ];
    limits.into_iter().enumerate().map(limit).collect()
});

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_passes_every_check() {
        super::replay::all(&super::TARGETS);
    }
}
