//! The audit of the fleet, on a real store: every change of every instance, after a restart of all.

use std::time::Duration;

use spillgate::control::{AuditRecord, AuditedAction, ChangeNote};
use spillgate::{Cost, LimitSpec, Limiter, LimiterBuilder, Mode, Policy};
use spillgate_testkit::RedisServer;

use super::{API, acme, ann, until};
use crate::support::world::PATIENCE;

fn on(server: &RedisServer) -> LimiterBuilder {
    let policy = Policy::from_toml(API).unwrap();
    Limiter::builder().policy(policy).redis(server.url()).timeout(Duration::from_millis(100))
}

async fn start(server: &RedisServer) -> Limiter {
    on(server).timeout(PATIENCE).build().await.unwrap()
}

fn run(body: impl Future<Output = ()>) {
    tokio::runtime::Runtime::new().unwrap().block_on(body);
}

/// Returns the action, actor, reason and values of the subject of each change, the oldest first.
fn shown(records: &[AuditRecord]) -> Vec<(AuditedAction, String, String, String)> {
    let text = |part: Option<&str>| part.unwrap_or_default().to_owned();
    let shown = records.iter().rev().map(|record| {
        let values = record.subject().map(|(_, value)| String::from_utf8_lossy(value).into_owned());
        let values: Vec<String> = values.collect();
        let (actor, reason) = (text(record.actor()), text(record.reason()));
        (record.action().clone(), actor, reason, values.join(" "))
    });
    shown.collect()
}

async fn log(limiter: &Limiter) -> Vec<(AuditedAction, String, String, String)> {
    let log = limiter.audit_log(None, 10_000).await;
    assert_eq!((log.incomplete, log.sealed_with_another_secret), (None, 0));
    assert!(log.records.is_sorted_by(|newer, older| newer.at() >= older.at()));
    shown(&log.records)
}

/// Returns the number of changes that the store has.
fn saved(server: &RedisServer) -> i64 {
    server.command(&["XLEN", "sg1:{fleet:default}:a"]).integer()
}

#[test]
fn all_changes_of_two_instances_are_listed_at_both_and_after_a_restart_of_both() {
    let server = RedisServer::start();
    run(async {
        let (one, other) = (start(&server).await, start(&server).await);
        let by = |limiter: &Limiter, name: &str, reason: &str| {
            limiter.with_note(ChangeNote::by(name).because(reason))
        };
        let mut expected = Vec::new();
        let mut expect = |action, actor: &str, reason: &str, subject: &str| {
            expected.push((action, actor.to_owned(), reason.to_owned(), subject.to_owned()));
        };
        let _ = by(&one, "ann", "1").charge("api", &ann(), 3).await.unwrap();
        expect(AuditedAction::Charge(Cost::requests(3)), "ann", "1", "acme ann");
        let _ =
            by(&other, "bob", "2").refund("api", &ann(), Cost::of_unit("tokens", 2)).await.unwrap();
        expect(AuditedAction::Refund(Cost::of_unit("tokens", 2)), "bob", "2", "acme ann");
        by(&one, "ann", "3").reset("api", &ann()).await.unwrap();
        expect(AuditedAction::ResetSubject, "ann", "3", "acme ann");
        let _ = by(&one, "ann", "4").set_mode("api", Mode::Off, None).await.unwrap();
        expect(AuditedAction::SetMode(Mode::Off), "ann", "4", "");
        let _ = by(&other, "bob", "5").clear_mode("api").await.unwrap();
        expect(AuditedAction::ClearMode, "bob", "5", "");
        let limits = [LimitSpec::new("20/day").burst(9)];
        let _ = by(&other, "bob", "6").set_override("api", &acme(), limits.clone(), None).await;
        expect(AuditedAction::SetOverride(limits.into()), "bob", "6", "acme");
        let _ = by(&one, "ann", "7").remove_override("api", &acme()).await.unwrap();
        expect(AuditedAction::RemoveOverride, "ann", "7", "acme");
        let _ = by(&one, "ann", "8").reset_rule("api").await.unwrap();
        expect(AuditedAction::ResetRule, "ann", "8", "");

        // A change that is made while a heartbeat appends another one is appended by the next.
        until("both list all changes", async || {
            log(&one).await.len() == expected.len() && log(&other).await.len() == expected.len()
        })
        .await;
        // Two instances know the store's time to within a call's latency, which may be longer than two changes are apart.
        let by_reason = async |limiter: &Limiter| {
            let mut log = log(limiter).await;
            log.sort_by_key(|(_, _, reason, _)| reason.clone());
            log
        };
        assert_eq!(by_reason(&one).await, expected);
        assert_eq!(by_reason(&other).await, expected);
        drop((one, other));
        let late = start(&server).await;
        assert_eq!(by_reason(&late).await, expected);
        let newest = late.audit_log(None, 2).await.records;
        assert_eq!(shown(&newest), expected[6..]);
    });
}

#[test]
fn more_changes_than_one_call_returns_are_listed_once_each_in_order() {
    let server = RedisServer::start();
    run(async {
        let limiter = start(&server).await;
        for number in 0..600 {
            let note = ChangeNote::by("ann").because(format!("{number}"));
            let mode = if number % 2 == 0 { Mode::Off } else { Mode::Enforce };
            limiter.with_note(note).set_mode("api", mode, None).await.unwrap();
        }
        until("the store has all changes", async || saved(&server) == 600).await;
        drop(limiter);
        let late = start(&server).await;
        for n in [600, 10_000, 513, 256, 255] {
            let reasons: Vec<String> =
                shown(&late.audit_log(None, n).await.records).into_iter().map(|it| it.2).collect();
            let first = 600 - n.min(600);
            let expected: Vec<String> = (first..600).map(|number| number.to_string()).collect();
            assert_eq!(reasons, expected, "the newest {n}");
        }
    });
}

#[test]
fn a_change_made_while_the_store_is_down_is_listed_where_it_was_made_and_everywhere_afterwards() {
    let server = RedisServer::start();
    run(async {
        let (one, other) = (on(&server).build().await.unwrap(), start(&server).await);
        let _ = one.charge("api", &ann(), 3).await.unwrap();
        server.pause();
        let ann = one.with_note(ChangeNote::by("ann").because("incident"));
        let report = ann.set_mode("api", Mode::Off, None).await.unwrap();
        assert!(!report.is_saved());
        let down = one.audit_log(None, 10).await;
        assert!(down.incomplete.is_some());
        let actions: Vec<_> = down.records.iter().map(AuditRecord::action).collect();
        let (off, charge) = (AuditedAction::SetMode(Mode::Off), Cost::requests(3));
        assert_eq!(actions, [&off, &AuditedAction::Charge(charge)]);
        server.resume();
        until("the store has it", async || saved(&server) == 2).await;
        drop((one, ann, other));
        let late = log(&start(&server).await).await;
        assert_eq!(late.len(), 2, "{late:?}");
        assert_eq!((&late[1].0, &*late[1].1, &*late[1].2), (&off, "ann", "incident"));
    });
}

#[test]
fn changes_that_another_secret_sealed_are_counted_and_not_shown() {
    let server = RedisServer::start();
    run(async {
        let ours = start(&server).await;
        let theirs = on(&server).key_secret(*b"a secret of ours").build().await.unwrap();
        let _ = ours.charge("api", &ann(), 1).await.unwrap();
        let _ = theirs.charge("api", &ann(), 2).await.unwrap();
        let _ = theirs.charge("api", &ann(), 3).await.unwrap();
        until("the store has all three", async || saved(&server) == 3).await;
        for (limiter, own, sealed) in [(&ours, 1, 2), (&theirs, 2, 1)] {
            let log = limiter.audit_log(None, 10).await;
            assert_eq!((log.records.len(), log.sealed_with_another_secret), (own, sealed));
            assert_eq!(log.incomplete, None);
        }
    });
}

#[test]
fn a_search_for_a_rule_stops_when_it_has_enough_and_says_how_far_back_it_looked() {
    let server = RedisServer::start();
    run(async {
        let limiter = start(&server).await;
        let acme = acme();
        let _ = limiter.charge("watched", &acme, 1).await.unwrap();
        let began = limiter.audit()[0].at();
        for _ in 0..2_100 {
            limiter.reset("api", &ann()).await.unwrap();
        }
        let _ = limiter.charge("watched", &acme, 1).await.unwrap();
        until("the store has all changes", async || saved(&server) == 2_102).await;
        drop(limiter);
        let late = start(&server).await;
        let search = async |rule, n| {
            let log = late.audit_log(Some(rule), n).await;
            (log.records.len(), log.searched_until)
        };
        assert_eq!(search("watched", 1).await, (1, None));
        assert_eq!(search("api", 2_050).await, (2_050, None));
        let (found, searched_until) = search("watched", 2).await;
        assert_eq!(found, 1);
        let hour = Duration::from_secs(3_600);
        assert!(searched_until.is_some_and(|until| until + hour > began && until < began + hour));
        assert_eq!(search("watched", 3_000).await, (2, None), "a larger number searches further");
        assert_eq!(late.audit_log(None, 0).await.records.len(), 0);
    });
}

#[test]
fn a_change_that_was_appended_twice_takes_one_place_in_a_list() {
    let server = RedisServer::start();
    run(async {
        let limiter = start(&server).await;
        for cost in 1..=3 {
            let _ = limiter.charge("api", &ann(), cost).await.unwrap();
        }
        until("the store has all changes", async || saved(&server) == 3).await;
        drop(limiter);
        // As if the reply to the last one had been lost.
        let key = "sg1:{fleet:default}:a";
        let copy = "local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1][2] \
                    return redis.call('XADD', KEYS[1], '*', unpack(last))";
        server.command(&["EVAL", copy, "1", key]);
        assert_eq!(saved(&server), 4);
        let newest = start(&server).await.audit_log(None, 2).await.records;
        let charges = [3, 2].map(|cost| AuditedAction::Charge(Cost::requests(cost)));
        assert!(newest.iter().map(AuditRecord::action).eq(&charges), "{newest:?}");
    });
}
