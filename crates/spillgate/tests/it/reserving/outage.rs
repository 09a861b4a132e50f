//! Reservations while something becomes of the store.

use std::time::Duration;

use spillgate::{
    Cost, Decision, Limit, Limiter, LimiterBuilder, Outcome, Question, Receipt, ReservationError,
    Reserve, Source, Usage,
};
use spillgate_testkit::{Fault, FaultProxy, RedisServer, free_port};

use crate::failure::Patient;
use crate::support::world::AGES;

fn limit() -> Limit {
    Limit::parse(&format!("1600/{AGES}")).unwrap()
}

fn mine() -> Question<'static> {
    let cost = Cost::requests(10);
    Question::AdHoc { domain: "default", key: "me", limit: limit(), cost }
}

async fn reserved(limiter: &Limiter, name: &str) -> Decision {
    limiter.reserve_for(&mine(), &Reserve::default().under(name)).await.unwrap()
}

async fn left(limiter: &Limiter) -> u64 {
    limiter.check_limit("me", &limit(), 0).await.remaining().unwrap()
}

/// Who waits for a server that is merely slow.
fn patient() -> LimiterBuilder {
    Limiter::builder().timeout(Duration::from_secs(10))
}

#[test]
fn without_a_store_a_reservation_is_this_processs_own() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let one = Patient::on(&url);
    let other = Patient::on(&url);
    one.run(async {
        let decision = reserved(&one.limiter, "job").await;
        assert_eq!((decision.allowed(), decision.source()), (true, Source::Fallback));
        let receipt = decision.receipt().unwrap();
        assert!(receipt.is_local());
        // A sixteenth of the limit is this process's share.
        assert_eq!(left(&one.limiter).await, 90);
        let again = reserved(&one.limiter, "job").await;
        assert_eq!((again.allowed(), again.receipt()), (true, Some(receipt)));
        assert_eq!(left(&one.limiter).await, 90);
        let otherwise = Reserve::lasting(Duration::from_secs(9)).under("job");
        let conflict = one.limiter.reserve_for(&mine(), &otherwise).await;
        assert_eq!(conflict.err(), Some(ReservationError::Conflict));

        let read: Receipt = receipt.as_str().parse().unwrap();
        assert_eq!(other.limiter.settle(&read, &Usage::from(3)).await, Ok(Outcome::Unknown));
        assert_eq!(one.limiter.settle(&read, &Usage::from(3)).await, Ok(Outcome::Done));
        assert_eq!(one.limiter.settle(receipt, &Usage::from(3)).await, Ok(Outcome::Repeated));
        assert_eq!(left(&one.limiter).await, 97);
    });
}

#[test]
fn what_came_back_alone_is_not_charged_to_the_store_later() {
    let mut server = RedisServer::start();
    server.kill();
    let patient = Patient::on(&server.url());
    patient.run(async {
        let decision = reserved(&patient.limiter, "job").await;
        let receipt = decision.receipt().unwrap();
        assert_eq!(patient.limiter.settle(receipt, &Usage::from(3)).await, Ok(Outcome::Done));
    });
    server.restart();
    patient.heals();
    patient.run(async {
        assert!(patient.limiter.check_limit("me", &limit(), 1).await.allowed());
        assert_eq!(left(&patient.limiter).await, 1_596, "three were used alone, and one since");
    });
}

#[test]
fn a_settlement_that_does_not_arrive_can_be_sent_again_and_is_done_once() {
    let server = RedisServer::start();
    let patient = Patient::on(&server.url());
    let receipt = patient.run(async { reserved(&patient.limiter, "job").await.receipt().cloned() });
    let receipt = receipt.unwrap();
    server.pause();
    let told = patient.run(patient.limiter.settle(&receipt, &Usage::from(3)));
    assert!(matches!(told, Err(ReservationError::Retryable { .. })), "{told:?}");
    server.resume();
    patient.heals();
    let again = patient.run(patient.limiter.settle(&receipt, &Usage::from(3)));
    // It may have arrived in the end.
    assert!(matches!(again, Ok(Outcome::Done | Outcome::Repeated)), "{again:?}");
    let again = patient.run(patient.limiter.settle(&receipt, &Usage::from(3)));
    assert_eq!(again, Ok(Outcome::Repeated));
    assert_eq!(patient.run(left(&patient.limiter)), 1_597);
}

#[test]
fn a_reservation_whose_answer_is_lost_is_charged_once() {
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
        assert_eq!(direct.settle(&read, &Usage::from(0)).await, Ok(Outcome::Done));
        assert_eq!(left(&direct).await, 1_600);
    });
}

/// A reservation is sent again by its name, and what it pays besides has none: it was paid twice.
#[test]
fn what_is_owed_is_paid_once_though_the_reservation_that_pays_it_is_sent_twice() {
    let server = RedisServer::start();
    let proxy = FaultProxy::before(server.port());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let through = patient().redis(proxy.url()).connections(1).build().await.unwrap();
        let direct = patient().redis(server.url()).build().await.unwrap();
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        let alone = through.check_limit("me", &limit(), 20).await;
        assert_eq!((alone.allowed(), alone.source()), (true, Source::Fallback));
        server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        proxy.set(Fault::LoseNextReply);
        assert!(reserved(&through, "job").await.allowed());
        assert_eq!(left(&direct).await, 1_570);
    });
}

#[test]
fn a_store_that_lost_all_knows_of_no_reservation_and_mints_nothing() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let limiter = patient().redis(server.url()).build().await.unwrap();
        let decision = reserved(&limiter, "job").await;
        server.command(&["FLUSHALL"]);
        assert!(limiter.check_limit("me", &limit(), 50).await.allowed());
        let receipt = decision.receipt().unwrap();
        assert_eq!(limiter.cancel(receipt).await, Ok(Outcome::Unknown));
        assert_eq!(left(&limiter).await, 1_550);
    });
}

#[test]
fn a_record_is_as_long_as_its_tiers_and_ends_by_itself() {
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
            assert_eq!(limiter.cancel(receipt).await, Ok(Outcome::Done));
        }
        assert!(lengths.iter().all(|length| *length <= 160), "{lengths:?}");
        assert_eq!(of_record("STRLEN"), 40, "once it has ended");
        let life_ms = of_record("PTTL");
        assert!((3_600_000..=3_660_001).contains(&life_ms), "{life_ms}");
    });
}
