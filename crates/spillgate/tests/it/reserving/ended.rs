//! A reservation that has ended admits nothing under its id, and a reservation of nothing can be settled, on
//! every engine.

use std::time::Duration;

use spillgate::reservation::{EndResult, Ended, ReservationError, Reserve, Usage};
use spillgate::{Limiter, Policy, Reason, Request};
use spillgate_testkit::RedisServer;

use super::contract::{MIXED, SPREAD, for_a_minute, of, read, remaining};
use crate::stores::pair_on_each;
use crate::support::world::{TODAY_US, ring_of};

#[test]
fn an_ended_reservation_is_rejected_under_its_id_and_reports_how_it_ended() {
    pair_on_each(MIXED, |one, other, clock| async move {
        for how in [Ended::Settled, Ended::Cancelled, Ended::Released, Ended::Expired] {
            clock.set(TODAY_US);
            let request = of(how.name()).costing(10);
            let first = one.reserve(&request, &for_a_minute(how.name())).await.unwrap();
            let receipt = read(&first);
            let done = match how {
                Ended::Settled => other.settle(&receipt, &Usage::from(3)).await,
                Ended::Cancelled => other.cancel(&receipt).await,
                Ended::Released => other.release(&receipt).await,
                _ => {
                    clock.set(TODAY_US + 60_000_000);
                    Ok(EndResult::Done)
                }
            };
            assert_eq!(done, Ok(EndResult::Done), "{how}");
            let before = remaining(&one.peek(&request).await);
            for limiter in [&one, &other] {
                let again = limiter.reserve(&request, &for_a_minute(how.name())).await;
                assert_eq!(again.err(), Some(ReservationError::Ended(how)));
            }
            assert_eq!(remaining(&one.peek(&request).await), before, "{how}: nothing is charged");
            let new_id = format!("{how} again");
            assert!(one.reserve(&request, &for_a_minute(&new_id)).await.unwrap().allowed());
        }
    });
}

/// Once, the state was rewritten under the reservation's numbers, and use above twice its burst was erased.
#[test]
fn a_settlement_above_the_estimate_erases_no_use_under_a_raised_limit() {
    let policy = "[[rule]]\nname = \"model\"\nkey = [\"user\"]\nlimits = [\"100/366d\"]";
    pair_on_each(policy, |one, other, clock| async move {
        let first = one.reserve(&of("a"), &for_a_minute("job")).await.unwrap();
        let _ = one.set_override("model", &of("a"), ["1000/366d"], None).await.unwrap();
        clock.set(TODAY_US + 1_000_000);
        assert!(one.check(&of("a").costing(800)).await.allowed());
        let before = remaining(&one.peek(&of("a")).await);
        let settled = other.settle(&read(&first), &Usage::from(2)).await;
        assert_eq!(settled, Ok(EndResult::Done));
        assert_eq!(remaining(&one.peek(&of("a")).await), before);
    });
}

/// Earlier, each call under an ended id gave one more permit for one receipt.
#[test]
fn eleven_jobs_under_an_ended_id_hold_no_more_permits_than_the_limit() {
    pair_on_each(ONE_PERMIT, |one, other, _| async move {
        let first = one.reserve(&of("a"), &for_a_minute("job")).await.unwrap();
        assert_eq!(other.cancel(&read(&first)).await, Ok(EndResult::Done));
        let mut jobs = tokio::task::JoinSet::new();
        for number in 0..11 {
            let limiter = if number % 2 == 0 { one.clone() } else { other.clone() };
            jobs.spawn(async move { limiter.reserve(&of("a"), &for_a_minute("job")).await });
        }
        for job in jobs.join_all().await {
            assert_eq!(job.err(), Some(ReservationError::Ended(Ended::Cancelled)));
        }
        let held = one.reserve(&of("a"), &for_a_minute("new")).await.unwrap();
        assert_eq!((held.allowed(), held.receipt() == first.receipt()), (true, false));
    });
}

#[test]
fn a_reservation_ends_with_its_permit_so_that_no_two_hold_it() {
    pair_on_each(ONE_PERMIT, |one, other, clock| async move {
        let ten_minutes = || Reserve::lasting(Duration::from_secs(600)).under("job");
        let first = one.reserve(&of("a"), &ten_minutes()).await.unwrap();
        clock.set(TODAY_US + 29_000_000);
        let again = other.reserve(&of("a"), &ten_minutes()).await.unwrap();
        assert_eq!((again.allowed(), again.receipt()), (true, first.receipt()));
        clock.set(TODAY_US + 30_000_000);
        for limiter in [&one, &other] {
            let late = limiter.reserve(&of("a"), &ten_minutes()).await;
            assert_eq!(late.err(), Some(ReservationError::Ended(Ended::PermitEnded)));
        }
        let next = other.reserve(&of("a"), &for_a_minute("next")).await.unwrap();
        assert!(next.allowed());
        let late = one.reserve(&of("a"), &ten_minutes()).await;
        assert_eq!(late.err(), Some(ReservationError::Ended(Ended::PermitEnded)));
        assert_eq!(one.check(&of("a")).await.reason(), Some(Reason::LimitExceeded));
    });
}

/// The shards without the permit renew their part, which hid the lost permit.
#[test]
fn a_renewal_reports_a_lost_permit_although_other_shards_have_none() {
    pair_on_each(SPREAD, |one, other, clock| async move {
        let mut made = Vec::new();
        for number in 0..8 {
            let two_hours = Reserve::lasting(Duration::from_secs(7_200));
            let tenant = format!("t{number}");
            let first = one.reserve(&of_both(&tenant), &two_hours).await.unwrap();
            made.push(read(&first));
        }
        let minute = Duration::from_secs(60);
        clock.set(TODAY_US + 3_599_000_000);
        assert_eq!(other.renew(&made[0], minute).await, Ok(EndResult::Done));
        clock.set(TODAY_US + 3_600_000_000);
        for (number, receipt) in made.iter().enumerate() {
            let expected = if number == 0 { EndResult::Done } else { EndResult::Expired };
            for limiter in [&one, &other] {
                assert_eq!(limiter.renew(receipt, minute).await, Ok(expected), "t{number}");
            }
        }
    });
}

fn of_both(user: &str) -> Request<'_> {
    Request::new().with("tenant", user).with("user", user).costing(2)
}

#[test]
fn an_id_that_is_in_use_for_another_subject_is_a_conflict() {
    pair_on_each(SPREAD, |one, other, _| async move {
        for number in 0..8 {
            let (mine, theirs, id) =
                (format!("a{number}"), format!("b{number}"), format!("id{number}"));
            let first = one.reserve(&of_both(&mine), &for_a_minute(&id)).await.unwrap();
            let before = remaining(&one.peek(&of_both(&theirs)).await);
            for limiter in [&one, &other] {
                let counted = || (limiter.stats().allowed, limiter.stats().denied);
                let known = counted();
                let taken = limiter.reserve(&of_both(&theirs), &for_a_minute(&id)).await;
                assert_eq!(taken.err(), Some(ReservationError::Conflict), "{id}");
                assert_eq!(counted(), known, "{id}: a conflict is not a decision");
            }
            assert_eq!(remaining(&one.peek(&of_both(&theirs)).await), before, "{id}");
            let again = other.reserve(&of_both(&mine), &for_a_minute(&id)).await.unwrap();
            assert_eq!((again.allowed(), again.receipt()), (true, first.receipt()));
            // A denial reports the conflict too, and leaves an id free.
            let held = one.reserve(&of_both(&theirs), &Reserve::default()).await.unwrap();
            let taken = one.reserve(&of_both(&theirs), &for_a_minute(&id)).await;
            assert_eq!(taken.err(), Some(ReservationError::Conflict), "{id}");
            let free = format!("free{number}");
            let denied = one.reserve(&of_both(&theirs), &for_a_minute(&free)).await.unwrap();
            assert_eq!((denied.reason(), denied.receipt()), (Some(Reason::LimitExceeded), None));
            assert_eq!(one.cancel(held.receipt().unwrap()).await, Ok(EndResult::Done));
            assert!(
                other.reserve(&of_both(&theirs), &for_a_minute(&free)).await.unwrap().allowed()
            );
            let settled = other.settle(&read(&first), &Usage::from(0)).await;
            assert_eq!(settled, Ok(EndResult::Done));
        }
    });
}

#[test]
fn a_request_without_a_matching_rule_gets_an_empty_receipt() {
    pair_on_each(MIXED, |one, other, _| async move {
        let request = || Request::new().with("path", "/");
        let decision = one.reserve(&request(), &for_a_minute("job")).await.unwrap();
        assert_eq!((decision.allowed(), decision.limits().len()), (true, 0));
        let again = other.reserve(&request(), &for_a_minute("job")).await.unwrap();
        assert_eq!(again.receipt(), decision.receipt());
        let receipt = read(&decision);
        let minute = Duration::from_secs(60);
        assert_eq!(other.renew(&receipt, minute).await, Ok(EndResult::Done));
        assert_eq!(other.settle(&receipt, &Usage::from(3)).await, Ok(EndResult::Done));
        assert_eq!(other.cancel(&receipt).await, Ok(EndResult::Done));
        assert_eq!(one.release(&receipt).await, Ok(EndResult::Done));
        assert!(one.check(&request()).await.receipt().is_none(), "a check reserves nothing");
    });
}

#[test]
fn an_empty_receipt_is_sealed_too() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let built =
            |secret| Limiter::builder().key_secret(secret).policy(Policy::default()).build();
        let (one, stranger) = (built([1; 16]).await.unwrap(), built([2; 16]).await.unwrap());
        let decision = one.reserve(&of("a"), &Reserve::default()).await.unwrap();
        assert_eq!(stranger.cancel(&read(&decision)).await, Ok(EndResult::Unknown));
        assert_eq!(one.cancel(&read(&decision)).await, Ok(EndResult::Done));
    });
}

#[test]
fn a_repeated_reservation_charges_no_shadow_and_no_post_paid_rule_again() {
    pair_on_each(BESIDE, |one, other, _| async move {
        for number in 0..6 {
            let (user, tenant) = (format!("u{number}"), format!("t{number}"));
            let request = Request::new().with("user", &*user).with("tenant", &*tenant).costing(4);
            let first = one.reserve(&request, &for_a_minute(&user)).await.unwrap();
            assert!(first.allowed());
            let after = remaining(&one.peek(&request).await);
            assert_eq!(after, [96, 6, 6]);
            for limiter in [&one, &other] {
                let again = limiter.reserve(&request, &for_a_minute(&user)).await.unwrap();
                assert_eq!(again.receipt(), first.receipt());
            }
            assert_eq!(one.cancel(first.receipt().unwrap()).await, Ok(EndResult::Done));
            let ended = remaining(&one.peek(&request).await);
            let late = other.reserve(&request, &for_a_minute(&user)).await;
            assert_eq!(late.err(), Some(ReservationError::Ended(Ended::Cancelled)));
            assert_eq!(remaining(&one.peek(&request).await), ended, "{user}");
        }
    });
}

#[test]
fn a_lost_permit_of_a_shadow_rule_changes_no_answer() {
    pair_on_each(PERMITS_BESIDE, |one, other, clock| async move {
        let ten_minutes = || Reserve::lasting(Duration::from_secs(600)).under("job");
        let first = one.reserve(&of("a"), &ten_minutes()).await.unwrap();
        clock.set(TODAY_US + 11_000_000);
        for limiter in [&one, &other] {
            let again = limiter.reserve(&of("a"), &ten_minutes()).await.unwrap();
            assert_eq!((again.allowed(), again.receipt()), (true, first.receipt()));
            let renewed = limiter.renew(&read(&first), Duration::from_secs(60)).await;
            assert_eq!(renewed, Ok(EndResult::Done));
        }
        clock.set(TODAY_US + 70_000_000);
        let again = other.reserve(&of("a"), &ten_minutes()).await.unwrap();
        assert_eq!(again.receipt(), first.receipt(), "the enforced permit was extended");
        clock.set(TODAY_US + 71_000_000);
        let late = other.reserve(&of("a"), &ten_minutes()).await;
        assert_eq!(late.err(), Some(ReservationError::Ended(Ended::PermitEnded)));
    });
}

const PERMITS_BESIDE: &str = r#"
    [[rule]]
    name = "jobs"
    key = ["user"]
    limits = [{ quota = "2", algorithm = "concurrency", max_hold = "60s" }]
    [[rule]]
    name = "trial"
    key = ["user"]
    mode = "shadow"
    limits = [{ quota = "2", algorithm = "concurrency", max_hold = "10s" }]
"#;
/// One shard is down. A caller that was denied by another one has room there after the cancellation.
#[test]
fn a_cancellation_in_part_ends_remembered_denials() {
    let mut nodes: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let builder = || {
            let policy = Policy::from_toml(ONE_EACH).unwrap();
            Limiter::builder().ring(ring_of(&nodes)).policy(policy)
        };
        let patient = builder().timeout(Duration::from_secs(10)).build().await.unwrap();
        // A denial is remembered for a second, and a call to the shard that is down must end before.
        let limiter = builder().timeout(Duration::from_millis(400)).build().await.unwrap();
        let users: Vec<String> = (0..40).map(|number| format!("u{number}")).collect();
        let mut made = Vec::new();
        for user in &users {
            let both = Request::new().with("user", user).with("tenant", user);
            let reserved = patient.reserve(&both, &Reserve::default()).await.unwrap();
            assert_eq!((reserved.allowed(), reserved.degraded()), (true, false), "{user}");
            made.push(read(&reserved));
        }
        nodes[2].kill();
        for (user, receipt) in users.iter().zip(&made) {
            let is_remembered = async || limiter.explain(&of(user)).await.remembered().is_some();
            let _ = limiter.check(&of(user)).await;
            if !is_remembered().await {
                // Its counter is on the shard that is down, or the cache has forgotten it.
                continue;
            }
            let ended = limiter.cancel(receipt).await;
            assert!(!is_remembered().await, "{user}: {ended:?}");
            if matches!(ended, Err(ReservationError::Retryable { .. })) {
                return;
            }
        }
        panic!("no reservation was cancelled in part");
    });
}

const ONE_EACH: &str = r#"
    [[rule]]
    name = "by-user"
    key = ["user"]
    limits = ["1/366d"]
    [[rule]]
    name = "by-tenant"
    key = ["tenant"]
    limits = ["1/366d"]
"#;
const ONE_PERMIT: &str = r#"
    [[rule]]
    name = "jobs"
    key = ["user"]
    limits = [{ quota = "1", algorithm = "concurrency", max_hold = "30s" }]
"#;
const BESIDE: &str = r#"
    [[rule]]
    name = "by-user"
    key = ["user"]
    limits = ["100/366d"]
    [[rule]]
    name = "watched"
    key = ["tenant"]
    mode = "shadow"
    limits = ["10/366d"]
    [[rule]]
    name = "afterwards"
    key = ["tenant"]
    postpaid = true
    limits = ["10/366d"]
"#;
