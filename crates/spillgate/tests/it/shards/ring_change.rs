//! A ring with other nodes replaces a ring in use, while processes on both are active.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use spillgate::reservation::{ReservationError, Reserve};
use spillgate::store::Ring;
use spillgate::{Limit, Limiter, Policy, Request, Rule, Source};
use spillgate_testkit::{RedisServer, Reply, eventually, poll};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::failure::YEAR;
use crate::support::storm;
use crate::support::world::{PATIENCE, keys, ring_of};

/// F27. Subjects that moved to a fourth node began with fresh quota there, and processes on either ring
/// counted them separately.
#[test]
fn a_fourth_node_joins_under_load_and_no_subject_is_admitted_more_than_its_limit() {
    let change = Change::new();
    let (old, new) = ([change.on_old(), change.on_old()], [change.on_new(), change.on_new()]);
    let admitted: Arc<Vec<AtomicU64>> =
        Arc::new((0..SUBJECTS).map(|_| AtomicU64::new(0)).collect());
    let first = change.runtime.block_on(offer(&[old[0].clone()], &admitted, 1));
    assert_eq!(first, SUBJECTS as u64, "every subject has room");
    let all = [old, new].concat();
    change.runtime.block_on(offer(&all, &admitted, 2));
    let most = admitted.iter().map(|count| count.load(Ordering::Relaxed)).max().unwrap();
    assert!(most <= EACH, "{most} of {EACH} admitted");
    // A charge that is refunded may have denied another call for a moment; no subject stays denied.
    for _ in 0..EACH {
        change.runtime.block_on(offer(&all[2..3], &admitted, 1));
    }
    let counts: Vec<u64> = admitted.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    assert!(counts.iter().all(|count| *count == EACH), "{counts:?}");

    let (before, limit) = (subjects_on(&change.servers[3]), Limit::per(EACH, YEAR));
    for other in 0..SUBJECTS {
        let key = format!("other {other}");
        let _ = change.runtime.block_on(all[2].check(&Request::keyed(&key, &limit)));
    }
    let moved = subjects_on(&change.servers[3]) - before;
    println!("{moved} of {SUBJECTS} subjects moved, at most {most} of {EACH} admitted");
    assert!((SUBJECTS / 5..=SUBJECTS * 3 / 10).contains(&moved), "{moved} of {SUBJECTS} moved");
}

/// Once no process is on the old ring, late processes on it are rejected, and subjects stop using their old
/// owners.
#[test]
fn the_old_ring_ends_when_no_process_is_on_it() {
    let change = Change::new();
    let (old, new) = (change.on_old(), change.on_new());
    let limit = Limit::per(1_000_000, Duration::from_millis(100));
    let users: Vec<String> = (0..40).map(|user| format!("user {user}")).collect();
    let calls = || change.servers.iter().map(|server| server.calls_of("evalsha")).sum::<u64>();
    let double_calls = |limiter: &Limiter| {
        let before = calls();
        for user in &users {
            let decision = change.runtime.block_on(limiter.check(&Request::keyed(user, &limit)));
            assert!(decision.allowed());
        }
        calls().saturating_sub(before + users.len() as u64)
    };
    double_calls(&old);
    eventually(|| double_calls(&new) > 0);
    drop(old);
    // A process counts as gone five seconds after its last heartbeat.
    let ended = poll(6 * PATIENCE, || (double_calls(&new) == 0).then_some(()));
    assert!(ended.is_some(), "{:?}", change.servers.iter().map(guard).collect::<Vec<_>>());
    assert!(change.servers.iter().all(|server| guard(server)[2] == "2"));

    let late = change.on_old();
    for user in &users {
        let decision = change.runtime.block_on(late.check(&Request::keyed(user, &limit)));
        assert_eq!(decision.source(), Source::Fallback);
    }
    eventually(|| late.shards()[0].trouble.is_some());
    let trouble = late.shards()[0].trouble.clone().unwrap();
    assert_eq!(
        trouble,
        "ring 2 is in force there, and this instance has ring 1; give it the new ring and restart it"
    );
}

/// The id of a reservation was looked up at its new location only, and taken there only. Another
/// subject could use it too.
#[test]
fn an_id_in_use_on_one_ring_is_a_conflict_on_the_other() {
    let change = Change::new();
    let (old, new) = (change.on_old(), change.on_new());
    let limit = Limit::per(EACH, YEAR);
    let reserve = |limiter: &Limiter, subject: &str, id: &str| {
        let (request, reserve) = (Request::keyed(subject, &limit), Reserve::default().under(id));
        change.runtime.block_on(limiter.reserve(&request, &reserve))
    };
    for (first, second, rings) in [(&old, &new, "old then new"), (&new, &old, "new then old")] {
        for number in 0..40 {
            let id = format!("{rings} {number}");
            let (mine, theirs) = (format!("a {id}"), format!("b {id}"));
            let reserved = reserve(first, &mine, &id).unwrap();
            assert_eq!((reserved.allowed(), reserved.source()), (true, Source::Store), "{id}");
            let taken = reserve(second, &theirs, &id);
            assert_eq!(taken.err(), Some(ReservationError::Conflict), "{id}");
            assert!(reserve(second, &mine, &id).unwrap().allowed(), "{id}");
        }
    }
}

/// A bucket in constant use is never empty. Its new owner has seen only the charges since the ring change, so
/// on its own it would admit the whole capacity at once.
#[test]
fn a_bucket_in_constant_use_is_not_refilled_by_moving() {
    let change = Change::new();
    let (old, new) = (change.on_old(), change.on_new());
    let limit = Limit::per(HELD, HELD_PERIOD);
    let mut admitted = vec![0; USERS];
    let mut check_all_users = |limiter: &Limiter| {
        let checks =
            (0..USERS).map(|user| {
                let (limiter, limit) = (limiter.clone(), &limit);
                async move {
                    limiter.check(&Request::keyed(format!("user {user}"), limit)).await.allowed()
                }
            });
        let reply = change.runtime.block_on(join_all(checks));
        admitted.iter_mut().zip(reply).for_each(|(count, allowed)| *count += u64::from(allowed));
    };
    let begun = Instant::now();
    (0..2 * HELD).for_each(|_| check_all_users(&old));
    (0..HELD).for_each(|_| check_all_users(&new));
    drop(old);
    let mut over_since = None;
    let ended = poll(6 * PATIENCE, || {
        check_all_users(&new);
        let is_over = change.servers.iter().all(|server| guard(server)[2] == "2");
        let since = *over_since.get_or_insert_with(Instant::now);
        over_since = is_over.then_some(since);
        // Subjects use their old owner for twice as long as a bucket takes to fill.
        (is_over && since.elapsed() > 4 * HELD_PERIOD).then_some(())
    });
    assert!(ended.is_some(), "{:?}", change.servers.iter().map(guard).collect::<Vec<_>>());
    let refilled = begun.elapsed().as_millis() as u64 * HELD / HELD_PERIOD.as_millis() as u64;
    let most = HELD + refilled + 1;
    println!("{admitted:?} admitted, {most} allowed");
    assert!(admitted.iter().all(|count| *count <= most), "{admitted:?} of {most}");
}

/// F27. Two processes with different rings counted the same subjects on different nodes.
#[test]
fn a_process_whose_ring_differs_is_rejected_with_a_fix() {
    let change = Change::new();
    let first = change.on_old();
    eventually(|| change.servers[..3].iter().all(|server| guard(server)[2] == "1"));
    let limit = Limit::per(10, YEAR);
    let rejected = |ring: Ring, why: &str| {
        let other = change.limiter(ring);
        for cost in 0..2 {
            let request = Request::keyed("me", &limit).costing(cost);
            let check = other.check(&request);
            assert_eq!(change.runtime.block_on(check).source(), Source::Fallback, "{why}");
        }
        let errors: u64 =
            other.counts().shards.iter().map(|shard| shard.failed + shard.unsent).sum();
        assert!(errors >= 2, "{errors} errors counted of two refused calls: {why}");
        let reply =
            || other.shards()[0].trouble.as_ref().is_some_and(|trouble| trouble.contains(why));
        eventually(reply);
    };
    rejected(ring_of(&change.servers[..2]), "ring 1 has other nodes or weights there");
    rejected(numbered(2, &change.servers), "ring 2 does not name it as the one it replaces");
    let wrong = ring_of(&change.servers[1..3]);
    rejected(
        numbered(2, &change.servers).replacing(wrong),
        "ring 2 does not name it as the one it replaces",
    );
    let request = Request::keyed("me", &limit);
    let check = first.check(&request);
    assert_eq!(change.runtime.block_on(check).source(), Source::Store);
}

/// F27. A node is lost during the ring change: its subjects continue at their new owners, and the loss is
/// counted.
#[test]
fn subjects_continue_at_new_owners_when_an_old_owner_dies() {
    let mut change = Change::new();
    let _old = change.on_old();
    let two = numbered(2, &change.servers[..2]).replacing(ring_of(&change.servers[..3]));
    let builder = Limiter::builder().ring(two).timeout(PATIENCE / 20);
    let new = change.runtime.block_on(builder.build()).unwrap();
    let limit = Limit::per(1_000_000, YEAR);
    let check =
        |user: u32| change.runtime.block_on(new.check(&Request::keyed(user.to_string(), &limit)));
    eventually(|| (0..30).all(|user| check(user).source() == Source::Store));
    change.servers[2].kill();
    let check =
        |user: u32| change.runtime.block_on(new.check(&Request::keyed(user.to_string(), &limit)));
    eventually(|| (0..30).all(|user| check(user).source() == Source::Store));
    assert!(new.stats().state_losses >= 1, "{:?}", new.stats());
    // The new owners know the charges made at both.
    let known = |user| check(user).remaining().unwrap() <= 1_000_000 - 3;
    assert!((0..30).all(known));
}

/// The reset of a moved subject failed for as long as its old owner was away.
#[test]
fn moved_subjects_are_reset_although_their_old_owner_is_dead() {
    let mut change = Change::new();
    let _old = change.on_old();
    let new = change.on_two();
    change.servers[2].kill();
    let reset = |name| change.runtime.block_on(new.reset("user", &user(name)));
    eventually(|| (0..30).all(|name| reset(name).is_ok()));
    for name in 0..30 {
        let state = change.runtime.block_on(new.state("user", &user(name))).unwrap();
        assert_eq!(state.remaining(), Some(EACH), "{name}");
    }
}

/// The failure was ignored, and the old owner continued to deny the subject.
#[test]
fn a_refund_that_an_old_owner_does_not_execute_is_an_error() {
    let change = Change::new();
    let _old = change.on_old();
    let new = change.on_two();
    change.servers[2].demand_replicas(1);
    let refund = |name| change.runtime.block_on(new.refund("user", &user(name), 1));
    let failed = (0..30).find_map(|name| refund(name).err()).unwrap();
    // The new owner has executed it.
    assert!(failed.to_string().contains("may have executed"), "{failed}");
}

/// A ring of three servers, a fourth server, and the limiters that use them.
struct Change {
    servers: Vec<RedisServer>,
    runtime: Runtime,
}

impl Change {
    fn new() -> Change {
        Change {
            servers: (0..4).map(|_| RedisServer::start()).collect(),
            runtime: storm::threads(),
        }
    }

    fn on_old(&self) -> Limiter {
        self.limiter(ring_of(&self.servers[..3]))
    }

    fn on_new(&self) -> Limiter {
        self.limiter(numbered(2, &self.servers).replacing(ring_of(&self.servers[..3])))
    }

    /// Returns a limiter with the rule "user", on a ring that lacks the third server. It has checked 30 users.
    fn on_two(&self) -> Limiter {
        let ring = numbered(2, &self.servers[..2]).replacing(ring_of(&self.servers[..3]));
        let rule = Rule::new("user").key(["user"]).limit(Limit::per(EACH, YEAR));
        let policy = Policy::builder().rule(rule).build().unwrap();
        let builder = Limiter::builder().policy(policy).ring(ring).timeout(PATIENCE / 20);
        let limiter = self.runtime.block_on(builder.build()).unwrap();
        let check = |name| self.runtime.block_on(limiter.check(&user(name)));
        eventually(|| (0..30).all(|name| check(name).source() == Source::Store));
        limiter
    }

    fn limiter(&self, ring: Ring) -> Limiter {
        let builder = Limiter::builder().ring(ring).timeout(PATIENCE).expected_instances(4);
        // These tests examine the nodes' decisions, which the denial cache would hide.
        let builder = builder.denial_cache(false);
        self.runtime.block_on(builder.build()).unwrap()
    }
}

fn user(name: u32) -> Request<'static> {
    Request::new().with("user", name.to_string())
}

fn numbered(number: u32, servers: &[RedisServer]) -> Ring {
    let named = servers.iter().zip('a'..);
    named.fold(Ring::numbered(number), |ring, (server, name)| ring.node(name, server.url()))
}

/// Runs `times` checks of each subject by each limiter, all limiters at once. Returns how many were admitted.
async fn offer(limiters: &[Limiter], admitted: &Arc<Vec<AtomicU64>>, times: usize) -> u64 {
    let callers: Vec<_> = limiters
        .iter()
        .flat_map(|limiter| (0..CALLERS).map(move |caller| (limiter.clone(), caller)))
        .map(|(limiter, caller)| {
            let admitted = Arc::clone(admitted);
            tokio::spawn(async move {
                let limit = Limit::per(EACH, YEAR);
                let mut allowed = 0;
                for subject in (caller..SUBJECTS).step_by(CALLERS) {
                    for _ in 0..times {
                        let key = format!("subject {subject}");
                        let decision = limiter.check(&Request::keyed(&key, &limit)).await;
                        assert_eq!(decision.source(), Source::Store);
                        if decision.allowed() {
                            admitted[subject].fetch_add(1, Ordering::Relaxed);
                            allowed += 1;
                        }
                    }
                }
                allowed
            })
        })
        .collect();
    let mut all = 0;
    for caller in callers {
        all += caller.await.unwrap();
    }
    all
}

fn subjects_on(server: &RedisServer) -> usize {
    // Keys of subjects have a tag and a name; entries of operators have shorter names.
    keys(server).iter().filter(|key| key.len() > 40).count()
}

fn guard(server: &RedisServer) -> Vec<String> {
    match server.command(&["GET", "sg1:{control}:epoch"]) {
        Reply::Bulk(text) => {
            String::from_utf8(text).unwrap().split('.').map(str::to_owned).collect()
        }
        _ => vec![String::new(); 5],
    }
}

/// Some of them move.
const USERS: usize = 24;
const HELD: u64 = 20;
const HELD_PERIOD: Duration = Duration::from_secs(1);
const SUBJECTS: usize = 400;
const EACH: u64 = 4;
const CALLERS: usize = 8;
