//! Reservations while the store fails.
//!
//! Longer than 450 lines because its tests share the ways to lose a reply and to count what the store has charged.

use std::time::Duration;

use spillgate::reservation::{EndResult, Ended, Receipt, ReservationError, Reserve, Usage};
use spillgate::{Cost, Decision, Limit, Limiter, LimiterBuilder, Policy, Reason, Request, Source};
use spillgate_testkit::{Direction, Fault, FaultProxy, RedisServer, eventually, free_port};

use crate::failure::{Patient, counted_by};
use crate::support::world::{AGES, ring_of};

fn limit() -> Limit {
    Limit::parse(&format!("1600/{AGES}")).unwrap()
}

fn mine() -> Request<'static> {
    let cost = Cost::requests(10);
    Request::keyed("me", limit()).costing(cost)
}

async fn reserved(limiter: &Limiter, name: &str) -> Decision {
    limiter.reserve(&mine(), &Reserve::default().under(name)).await.unwrap()
}

async fn left(limiter: &Limiter) -> u64 {
    limiter.check(&Request::keyed("me", limit()).costing(0)).await.remaining().unwrap()
}

/// A limiter whose network loses replies on demand.
struct Lossy {
    server: RedisServer,
    proxy: FaultProxy,
    patient: Patient,
}

impl Lossy {
    fn new() -> Lossy {
        let server = RedisServer::start();
        let proxy = FaultProxy::before(server.port());
        let patient = Patient::on(&proxy.url());
        Lossy { server, proxy, patient }
    }

    /// Makes a call that the store executes and whose reply is lost. Returns its subject and result. If a
    /// heartbeat's reply is lost instead, the call does not arrive, and is made for the next subject.
    fn in_doubt<T>(&self, limit: &Limit, call: impl Fn(&str) -> T) -> (String, T) {
        let in_doubt = (0..20).find_map(|attempt| {
            let subject = format!("subject {attempt}");
            self.patient.heals();
            self.proxy.set(Fault::CutAfter(Direction::ToClient, 0));
            let result = call(&subject);
            // Counted before the network works again, so no deferred charge is among it.
            let counted = counted_by(&self.server, &subject, limit);
            self.proxy.set(Fault::None);
            (counted > 0).then_some((subject, result))
        });
        self.patient.heals();
        in_doubt.expect("a call loses its own reply")
    }

    /// Reserves ten that the store and the local share charge.
    fn reserved_in_doubt(&self) -> (String, Receipt) {
        let (subject, decision) = self.in_doubt(&limit(), |subject| {
            let request = Request::keyed(subject, limit()).costing(10);
            self.patient.run(self.patient.limiter.reserve(&request, &Reserve::default())).unwrap()
        });
        assert_eq!((decision.allowed(), decision.source()), (true, Source::Fallback));
        (subject, decision.receipt().unwrap().clone())
    }

    fn check(&self, subject: &str, cost: u64) -> Decision {
        let request = Request::keyed(subject, limit()).costing(cost);
        self.patient.run(self.patient.limiter.check(&request))
    }
}

/// Waits for a server that is merely slow.
fn patient() -> LimiterBuilder {
    Limiter::builder().timeout(Duration::from_secs(10))
}

#[test]
fn without_a_store_a_reservation_is_local_to_its_process() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let one = Patient::on(&url);
    let other = Patient::on(&url);
    one.run(async {
        let decision = reserved(&one.limiter, "job").await;
        assert_eq!((decision.allowed(), decision.source()), (true, Source::Fallback));
        let receipt = decision.receipt().unwrap();
        assert!(receipt.is_local());
        // A sixteenth of the limit is this process's local share.
        assert_eq!(left(&one.limiter).await, 90);
        let again = reserved(&one.limiter, "job").await;
        assert_eq!((again.allowed(), again.receipt()), (true, Some(receipt)));
        assert_eq!(left(&one.limiter).await, 90);
        let otherwise = Reserve::lasting(Duration::from_secs(9)).under("job");
        let conflict = one.limiter.reserve(&mine(), &otherwise).await;
        assert_eq!(conflict.err(), Some(ReservationError::Conflict));

        let read: Receipt = receipt.as_str().parse().unwrap();
        assert_eq!(other.limiter.settle(&read, &Usage::from(3)).await, Ok(EndResult::Unknown));
        assert_eq!(one.limiter.settle(&read, &Usage::from(3)).await, Ok(EndResult::Done));
        assert_eq!(one.limiter.settle(receipt, &Usage::from(3)).await, Ok(EndResult::Repeated));
        assert_eq!(left(&one.limiter).await, 97);
        let late = one.limiter.reserve(&mine(), &Reserve::default().under("job")).await;
        assert_eq!(late.err(), Some(ReservationError::Ended(Ended::Settled)));
        assert_eq!(left(&one.limiter).await, 97);
    });
}

/// Both calls were charged before either had a record. The second was allowed, with the receipt of
/// the first.
#[test]
fn of_two_concurrent_requests_under_one_id_without_a_store_one_is_a_conflict() {
    let server = RedisServer::start();
    let patient = Patient::on(&server.url());
    patient.heals();
    // Both calls wait for the silent server, and are then charged here.
    server.pause();
    let longer = Reserve::lasting(Duration::from_secs(90)).under("job");
    let (request, shorter) = (mine(), Reserve::default().under("job"));
    let both = patient.run(async {
        let [one, other] =
            [&shorter, &longer].map(|reserve| patient.limiter.reserve(&request, reserve));
        futures_util::future::join(one, other).await
    });
    let (decision, conflict) = match both {
        (Ok(decision), Err(conflict)) | (Err(conflict), Ok(decision)) => (decision, conflict),
        both => panic!("{both:?}"),
    };
    assert_eq!(conflict, ReservationError::Conflict);
    assert_eq!((decision.allowed(), decision.source()), (true, Source::Fallback));
    assert!(decision.receipt().is_some_and(Receipt::is_local));
}

/// An instance without its store knows only its local charges. The id of a reservation on the store or at
/// another instance is new there and charged within the local share.
#[test]
fn the_same_id_during_an_outage_is_charged_once_to_each_instances_local_share() {
    let mut server = RedisServer::start();
    let [one, other] = [Patient::on(&server.url()), Patient::on(&server.url())];
    one.run(async { assert!(reserved(&one.limiter, "job").await.allowed()) });
    let before = one.run(left(&one.limiter));
    server.kill();
    for patient in [&one, &other] {
        patient.run(async {
            let decision = reserved(&patient.limiter, "job").await;
            assert_eq!((decision.allowed(), decision.source()), (true, Source::Fallback));
            let local = left(&patient.limiter).await;
            assert!(local < before);
            let again = reserved(&patient.limiter, "job").await;
            assert_eq!(again.receipt(), decision.receipt());
            assert_eq!(left(&patient.limiter).await, local, "once at each");
            let cancelled = patient.limiter.cancel(decision.receipt().unwrap()).await;
            // The store may have charged calls that an instance sent before it saw the outage.
            let is_done = matches!(cancelled, Ok(EndResult::Done));
            let is_in_doubt = matches!(cancelled, Err(ReservationError::Retryable { .. }));
            assert!(is_done || is_in_doubt, "{cancelled:?}");
            let late = patient.limiter.reserve(&mine(), &Reserve::default().under("job")).await;
            assert_eq!(late.err(), Some(ReservationError::Ended(Ended::Cancelled)));
        });
    }
}

#[test]
fn at_the_bound_no_permit_is_granted_locally_that_could_not_be_released() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let patient = Patient::on(&url);
    patient.run(async {
        let limit = Limit::concurrent(1_000_000, Duration::from_secs(3_600));
        let mut held = 0;
        let denied = loop {
            let decision = patient.limiter.check(&Request::keyed("eve", &limit)).await;
            if !decision.allowed() {
                break decision;
            }
            assert!(decision.receipt().is_some_and(Receipt::is_local), "{held}");
            held += 1;
        };
        println!("{held} permits of one subject");
        assert!(held > 1_000);
        assert_eq!(denied.reason(), Some(Reason::Overloaded));
        assert!(patient.limiter.check(&Request::keyed("bob", &limit)).await.receipt().is_some());
        let eve = |cost| Request::keyed("eve", limit.clone()).costing(cost);
        for cost in [0, 1] {
            let reserved = patient.limiter.reserve(&eve(cost), &Reserve::default()).await;
            assert_eq!(reserved.unwrap().reason(), Some(Reason::Overloaded), "{cost}");
        }
        let waited = patient.limiter.acquire(&eve(1), Duration::ZERO).await;
        assert_eq!(waited.reason(), Some(Reason::Overloaded));
    });
}

#[test]
fn a_permit_acquired_by_waiting_without_a_store_can_be_released() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let patient = Patient::on(&url);
    patient.run(async {
        let share =
            Request::keyed("me", Limit::concurrent(ALL_PERMITS, Duration::from_secs(3_600)));
        let mut held = Vec::new();
        loop {
            let decision = patient.limiter.acquire(&share, Duration::ZERO).await;
            let Some(receipt) = decision.receipt() else { break };
            held.push(receipt.clone());
        }
        assert!(!held.is_empty());
        for receipt in held {
            assert_eq!(patient.limiter.release(&receipt).await, Ok(EndResult::Done));
        }
        assert!(patient.limiter.acquire(&share, Duration::ZERO).await.allowed());
    });
}

#[test]
fn a_reservation_with_one_ended_leg_has_ended() {
    let nodes: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let policy = spillgate::Policy::from_toml(super::contract::SPREAD).unwrap();
    let patient = Patient::built(Limiter::builder().ring(ring_of(&nodes)).policy(policy));
    let limiter = &patient.limiter;
    let request = |user: usize| {
        let user = user.to_string();
        spillgate::Request::new().with("tenant", user.clone()).with("user", user).costing(2)
    };
    let minute = |user: usize| Reserve::default().under(format!("job{user}"));
    let made: Vec<Receipt> = (0..12)
        .map(|user| {
            eventually(|| {
                patient
                    .run(limiter.reserve(&request(user), &minute(user)))
                    .is_ok_and(|made| !made.degraded())
            });
            patient
                .run(limiter.reserve(&request(user), &minute(user)))
                .unwrap()
                .receipt()
                .unwrap()
                .clone()
        })
        .collect();
    nodes[2].pause();
    let ended: Vec<_> = made.iter().map(|receipt| patient.run(limiter.cancel(receipt))).collect();
    nodes[2].resume();
    let is_torn =
        |reply: &Result<EndResult, _>| matches!(reply, Err(ReservationError::Retryable { .. }));
    let torn = ended.iter().filter(|reply| is_torn(reply)).count();
    println!("{torn} of 12 ended in part");
    assert!(torn > 0, "{ended:?}");
    for (user, receipt) in made.iter().enumerate() {
        let mut again = None;
        eventually(|| {
            again = patient.run(limiter.reserve(&request(user), &minute(user))).err();
            !matches!(again, None | Some(ReservationError::Retryable { .. }))
        });
        assert_eq!(again, Some(ReservationError::Ended(Ended::Cancelled)), "{user}");
        let mut reply = None;
        eventually(|| {
            reply = patient.run(limiter.cancel(receipt)).ok();
            reply.is_some()
        });
        assert!(reply >= Some(EndResult::Repeated), "{user}: {reply:?}");
        let look = patient.run(limiter.peek(&request(user)));
        let left: Vec<u64> = look.limits().filter_map(|counter| counter.remaining()).collect();
        assert_eq!(left[..3], [10, 100, 3], "{user}: everything is refunded");
    }
}

#[test]
fn local_refunds_reduce_the_deferred_charge() {
    let mut server = RedisServer::start();
    server.kill();
    let patient = Patient::on(&server.url());
    patient.run(async {
        let decision = reserved(&patient.limiter, "job").await;
        let receipt = decision.receipt().unwrap();
        assert_eq!(patient.limiter.settle(receipt, &Usage::from(3)).await, Ok(EndResult::Done));
    });
    server.restart();
    patient.heals();
    patient.run(async {
        assert!(patient.limiter.check(&Request::keyed("me", limit())).await.allowed());
        assert_eq!(left(&patient.limiter).await, 1_596, "three were used locally, and one since");
    });
}

/// The store was charged for a reservation of the outage, and kept the charge although the reservation was cancelled,
/// or the permit released.
#[test]
fn what_an_outage_charged_is_given_back_after_the_catch_up() {
    let mut server = RedisServer::start();
    server.kill();
    let patient = Patient::on(&server.url());
    let permits = Limit::concurrent(ALL_PERMITS, Duration::from_secs(3_600));
    let held = Request::keyed("held", &permits);
    let (reserved, permit) = patient.run(async {
        let decision = patient.limiter.check(&held).await;
        assert_eq!((decision.allowed(), decision.source()), (true, Source::Fallback));
        (reserved(&patient.limiter, "job").await, decision)
    });
    server.restart();
    patient.heals();
    let counted = |subject: &str, limit: &Limit| counted_by(&server, subject, limit);
    eventually(|| counted("me", &limit()) == 10);
    eventually(|| counted("held", &permits) == 1);
    patient.run(async {
        // What others use in the meantime stays charged.
        assert!(patient.limiter.check(&Request::keyed("me", limit()).costing(5)).await.allowed());
        let settled = patient.limiter.settle(reserved.receipt().unwrap(), &Usage::from(3)).await;
        assert_eq!(settled, Ok(EndResult::Done));
        // The store's own hold of the permit cannot be named: it is neither renewed nor released.
        let (permit, hour) = (permit.receipt().unwrap(), Duration::from_secs(3_600));
        assert_eq!(patient.limiter.renew(permit, hour).await, Ok(EndResult::Expired));
        assert_eq!(patient.limiter.release(permit).await, Ok(EndResult::Done));
    });
    eventually(|| counted("me", &limit()) == 8);
    assert_eq!(counted("held", &permits), 1);
}

/// The excess of one reservation, once charged, ended the local count by which the other was refunded.
#[test]
fn a_reservation_is_given_back_after_another_one_used_more_than_its_estimate() {
    let mut server = RedisServer::start();
    server.kill();
    let patient = Patient::on(&server.url());
    let (more, none) = patient.run(async {
        (reserved(&patient.limiter, "more").await, reserved(&patient.limiter, "none").await)
    });
    server.restart();
    patient.heals();
    let counted = || counted_by(&server, "me", &limit());
    eventually(|| counted() == 20);
    let (more, none) = (more.receipt().unwrap(), none.receipt().unwrap());
    let settled = patient.run(patient.limiter.settle(more, &Usage::from(12)));
    assert_eq!(settled, Ok(EndResult::Done));
    eventually(|| counted() == 22);
    assert_eq!(patient.run(patient.limiter.cancel(none)), Ok(EndResult::Done));
    // All but what may have drained.
    eventually(|| counted() <= 13);
}

/// A server that was silent for a moment took the permit after its caller had been denied, and kept it for an hour.
#[test]
fn a_permit_that_was_taken_after_its_caller_was_denied_is_released() {
    let server = RedisServer::start();
    let policy = r#"
        [[rule]]
        name = "jobs"
        key = ["user"]
        limits = [{ quota = "3", algorithm = "concurrency", max_hold = "1h" }]
        on_outage = "deny"
    "#;
    let policy = Policy::from_toml(policy).unwrap();
    let builder = Limiter::builder().redis(server.url()).policy(policy);
    let patient = Patient::built(builder.timeout(Duration::from_millis(50)));
    let ann = Request::new().with("user", "ann");
    assert!(patient.run(patient.limiter.check(&ann)).allowed());
    server.pause();
    let denied = patient.run(patient.limiter.check(&ann));
    assert_eq!(denied.reason(), Some(Reason::StoreUnavailable));
    server.resume();
    patient.heals();
    eventually(|| patient.run(patient.limiter.peek(&ann)).remaining() == Some(2));
}

/// The store has the charge of the reservation. Its local refund once lowered the deferred charge of another
/// caller.
#[test]
fn cancelling_a_reservation_in_doubt_keeps_the_deferred_charges_of_others() {
    let lossy = Lossy::new();
    let (subject, receipt) = lossy.reserved_in_doubt();
    lossy.server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let other = lossy.check(&subject, 20);
    lossy.server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!((other.allowed(), other.source()), (true, Source::Fallback));
    let cancelled = lossy.patient.run(lossy.patient.limiter.cancel(&receipt));
    assert_eq!(cancelled, Ok(EndResult::Done));
    assert!(lossy.check(&subject, 1).allowed());
    assert_eq!(counted_by(&lossy.server, &subject, &limit()), 21);
}

/// The store forces the usage beyond the estimate. Once, this was deferred too, and charged twice.
#[test]
fn usage_beyond_the_estimate_of_a_reservation_in_doubt_is_charged_once() {
    let lossy = Lossy::new();
    let (subject, receipt) = lossy.reserved_in_doubt();
    let settled = lossy.patient.run(lossy.patient.limiter.settle(&receipt, &Usage::from(30)));
    assert_eq!(settled, Ok(EndResult::Done));
    assert!(lossy.check(&subject, 1).allowed());
    assert_eq!(counted_by(&lossy.server, &subject, &limit()), 31);
}

/// The receipts of a batch did not list the location of their records, so the store held the permits until
/// `max_hold`.
#[test]
fn permits_of_a_batch_with_a_lost_reply_can_be_released() {
    let lossy = Lossy::new();
    let limiter = &lossy.patient.limiter;
    let permits = Limit::concurrent(ALL_PERMITS, Duration::from_secs(3_600));
    let (subject, decisions) = lossy.in_doubt(&permits, |subject| {
        let batch = [Request::keyed(subject, &permits), Request::keyed(subject, &permits)];
        lossy.patient.run(limiter.check_batch(&batch))
    });
    assert_eq!(counted_by(&lossy.server, &subject, &permits), 2);
    for decision in &decisions {
        assert_eq!((decision.allowed(), decision.source()), (true, Source::Fallback));
        let released = lossy.patient.run(limiter.release(decision.receipt().unwrap()));
        assert_eq!(released, Ok(EndResult::Done));
    }
    assert_eq!(counted_by(&lossy.server, &subject, &permits), 0);
}

#[test]
fn settling_again_after_a_lost_reply_settles_once() {
    let server = RedisServer::start();
    let patient = Patient::on(&server.url());
    let receipt = patient.run(async { reserved(&patient.limiter, "job").await.receipt().cloned() });
    let receipt = receipt.unwrap();
    server.pause();
    let reply = patient.run(patient.limiter.settle(&receipt, &Usage::from(3)));
    assert!(matches!(reply, Err(ReservationError::Retryable { .. })), "{reply:?}");
    server.resume();
    patient.heals();
    let again = patient.run(patient.limiter.settle(&receipt, &Usage::from(3)));
    // The first one may have arrived after all.
    assert!(matches!(again, Ok(EndResult::Done | EndResult::Repeated)), "{again:?}");
    let again = patient.run(patient.limiter.settle(&receipt, &Usage::from(3)));
    assert_eq!(again, Ok(EndResult::Repeated));
    assert_eq!(patient.run(left(&patient.limiter)), 1_597);
}

#[test]
fn a_reservation_with_a_lost_reply_is_charged_once() {
    let server = RedisServer::start();
    let proxy = FaultProxy::before(server.port());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let through = patient().redis(proxy.url()).connections(1).build().await.unwrap();
        let direct = patient().redis(server.url()).build().await.unwrap();
        proxy.set(Fault::LoseNextReply);
        let decision = reserved(&through, "job").await;
        assert!(decision.allowed());
        let again = reserved(&direct, "job").await;
        assert!(again.allowed());
        assert_eq!(left(&direct).await, 1_590);
        let read: Receipt = decision.receipt().unwrap().as_str().parse().unwrap();
        assert_eq!(direct.settle(&read, &Usage::from(0)).await, Ok(EndResult::Done));
        assert_eq!(left(&direct).await, 1_600);
    });
}

/// A reservation is sent again by its id, but the deferred charge that it carries has no id: it was charged
/// twice.
#[test]
fn a_deferred_charge_is_sent_once_although_its_reservation_is_sent_twice() {
    let server = RedisServer::start();
    let proxy = FaultProxy::before(server.port());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let through = patient().redis(proxy.url()).connections(1).build().await.unwrap();
        let direct = patient().redis(server.url()).build().await.unwrap();
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        let local = through.check(&Request::keyed("me", limit()).costing(20)).await;
        assert_eq!((local.allowed(), local.source()), (true, Source::Fallback));
        server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        proxy.set(Fault::LoseNextReply);
        assert!(reserved(&through, "job").await.allowed());
        assert_eq!(left(&direct).await, 1_570);
    });
}

#[test]
fn after_state_loss_reservations_are_unknown_and_mint_nothing() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let limiter = patient().redis(server.url()).build().await.unwrap();
        let decision = reserved(&limiter, "job").await;
        server.command(&["FLUSHALL"]);
        assert!(limiter.check(&Request::keyed("me", limit()).costing(50)).await.allowed());
        let receipt = decision.receipt().unwrap();
        assert_eq!(limiter.cancel(receipt).await, Ok(EndResult::Unknown));
        assert_eq!(left(&limiter).await, 1_550);
    });
}

#[test]
fn a_record_grows_with_its_counters_and_expires_by_itself() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let limiter = patient().redis(server.url()).build().await.unwrap();
        let of_record = |command: &str| {
            let keys = crate::support::world::keys(&server);
            let record = keys.iter().find(|key| key.contains("}:r:")).unwrap();
            server.command(&[command, record]).integer()
        };
        let mut lengths = Vec::new();
        for number in 0..50 {
            let decision = reserved(&limiter, &number.to_string()).await;
            lengths.push(of_record("STRLEN"));
            let receipt = decision.receipt().unwrap();
            assert_eq!(limiter.cancel(receipt).await, Ok(EndResult::Done));
        }
        assert!(lengths.iter().all(|length| *length <= 160), "{lengths:?}");
        assert_eq!(of_record("STRLEN"), 40, "once it has ended");
        let life_ms = of_record("PTTL");
        assert!((3_600_000..=3_960_000).contains(&life_ms), "{life_ms}");
    });
}

const ALL_PERMITS: u64 = 32;
