//! The answer to each reservation call, on every engine.

use std::time::Duration;

use spillgate::reservation::{EndResult, Ended, Receipt, ReservationError, Reserve, Usage};
use spillgate::{Cost, Decision, Limit, Limiter, Reason, Request};

use crate::stores::pair_on_each;
use crate::support::world::TODAY_US;

pub(super) fn of(user: &str) -> Request<'_> {
    Request::new().with("user", user)
}

pub(super) fn remaining(decision: &Decision) -> Vec<u64> {
    decision.limits().map(|counter| counter.remaining().unwrap()).collect()
}

pub(super) fn for_a_minute(name: &str) -> Reserve<'_> {
    Reserve::default().under(name)
}

/// Serialised and parsed, as by a process that did not make it.
pub(super) fn read(decision: &Decision) -> Receipt {
    decision.receipt().unwrap().as_str().parse().unwrap()
}

/// One of each algorithm, for one subject. All refill far later than the tests run.
pub(super) const MIXED: &str = r#"
    [[rule]]
    name = "mixed"
    key = ["user"]
    limits = [
        { quota = "90/366d", name = "bucket" },
        { quota = "80/366d", name = "window", algorithm = "fixed-window" },
        { quota = "70/366d", name = "log", algorithm = "sliding-log" },
        { quota = "60/366d", name = "sliding", algorithm = "sliding-window" },
        { quota = "50", name = "permits", algorithm = "concurrency", max_hold = "1h" },
        { quota = "1000/366d", name = "tokens", unit = "tokens" },
    ]
"#;
const FULL: [u64; 6] = [90, 80, 70, 60, 50, 1_000];

fn ten_and_hundred_tokens(user: &str) -> Request<'_> {
    of(user).costing(Cost::requests(10).and("tokens", 100))
}

#[test]
fn settling_refunds_unused_quota_and_ends_permits() {
    pair_on_each(MIXED, |one, other, clock| async move {
        for (place, limiter) in [&one, &other].into_iter().enumerate() {
            let user = format!("user-{place}");
            let request = ten_and_hundred_tokens(&user);
            let decision = one.reserve(&request, &Reserve::default()).await.unwrap();
            assert_eq!(remaining(&decision), [80, 70, 60, 50, 40, 900]);
            clock.set(clock.now_us() + 1_000_000);
            let receipt =
                if place == 0 { decision.receipt().unwrap().clone() } else { read(&decision) };
            let usage = Usage::from(4).and("tokens", 30);
            assert_eq!(limiter.settle(&receipt, &usage).await, Ok(EndResult::Done));
            assert_eq!(remaining(&one.peek(&request).await), [86, 76, 66, 56, 50, 970]);
            for again in [&one, &other] {
                assert_eq!(again.settle(&receipt, &usage).await, Ok(EndResult::Repeated));
            }
            let otherwise = one.settle(&receipt, &Usage::from(5)).await;
            assert_eq!(otherwise, Err(ReservationError::EndedOtherwise));
            assert_eq!(other.cancel(&receipt).await, Err(ReservationError::EndedOtherwise));
            let renewed = other.renew(&receipt, Duration::from_secs(1)).await;
            assert_eq!(renewed, Ok(EndResult::Expired));
            assert_eq!(remaining(&one.peek(&request).await), [86, 76, 66, 56, 50, 970]);
        }
    });
}

#[test]
fn a_unit_that_is_not_named_settles_at_its_estimate() {
    pair_on_each(MIXED, |one, _, _| async move {
        let request = ten_and_hundred_tokens("a");
        let decision = one.reserve(&request, &Reserve::default()).await.unwrap();
        let settled = one.settle(&read(&decision), &Usage::of_unit("tokens", 1)).await;
        assert_eq!(settled, Ok(EndResult::Done));
        assert_eq!(remaining(&one.peek(&request).await), [80, 70, 60, 50, 50, 999]);
    });
}

#[test]
fn usage_above_the_estimate_is_charged_even_beyond_the_limit() {
    pair_on_each(MIXED, |one, other, _| async move {
        let request = ten_and_hundred_tokens("a");
        let decision = one.reserve(&request, &Reserve::default()).await.unwrap();
        let usage = Usage::from(65).and("tokens", u64::MAX);
        assert_eq!(other.settle(&read(&decision), &usage).await, Ok(EndResult::Done));
        assert_eq!(remaining(&one.peek(&request).await), [25, 15, 5, 0, 50, 0]);
        // A counter that was only read is charged its actual usage in the end.
        let reads = of("b").costing(Cost::requests(1));
        let decision = one.reserve(&reads, &Reserve::default()).await.unwrap();
        let usage = Usage::of_unit("tokens", 300);
        assert_eq!(other.settle(&read(&decision), &usage).await, Ok(EndResult::Done));
        assert_eq!(remaining(&one.peek(&reads).await), [89, 79, 69, 59, 50, 700]);
    });
}

#[test]
fn cancelling_refunds_everything_and_releasing_keeps_the_estimate() {
    pair_on_each(MIXED, |one, other, _| async move {
        let request = ten_and_hundred_tokens("a");
        let cancelled = one.reserve(&request, &Reserve::default()).await.unwrap();
        let released = one.reserve(&request, &Reserve::default()).await.unwrap();
        assert_eq!(other.cancel(&read(&cancelled)).await, Ok(EndResult::Done));
        assert_eq!(one.cancel(&read(&cancelled)).await, Ok(EndResult::Repeated));
        assert_eq!(other.release(&read(&released)).await, Ok(EndResult::Done));
        assert_eq!(one.release(&read(&released)).await, Ok(EndResult::Repeated));
        assert_eq!(remaining(&one.peek(&request).await), [80, 70, 60, 50, 50, 900]);
    });
}

#[test]
fn reserving_twice_charges_once_and_another_reservation_of_that_id_is_a_conflict() {
    pair_on_each(MIXED, |one, other, _| async move {
        let request = ten_and_hundred_tokens("a");
        let first = one.reserve(&request, &for_a_minute("job")).await.unwrap();
        let again = other.reserve(&request, &for_a_minute("job")).await.unwrap();
        assert!(again.allowed());
        assert_eq!(first.receipt(), again.receipt());
        assert_eq!(remaining(&again), [80, 70, 60, 50, 40, 900]);
        let dearer = ten_and_hundred_tokens("a").costing(11);
        let longer = Reserve::lasting(Duration::from_secs(61)).under("job");
        let narrowed = request.clone().limited_to(Limit::per_hour(1));
        for conflict in [
            other.reserve(&dearer, &for_a_minute("job")).await,
            other.reserve(&narrowed, &for_a_minute("job")).await,
            other.reserve(&request, &longer).await,
        ] {
            assert_eq!(conflict.err(), Some(ReservationError::Conflict));
        }
        // The id is remembered beyond its end.
        assert_eq!(one.cancel(&read(&first)).await, Ok(EndResult::Done));
        let late = one.reserve(&request, &for_a_minute("job")).await;
        assert_eq!(late.err(), Some(ReservationError::Ended(Ended::Cancelled)));
        let dearer = one.reserve(&dearer, &for_a_minute("job")).await;
        assert_eq!(dearer.err(), Some(ReservationError::Conflict));
        assert_eq!(remaining(&one.peek(&request).await), FULL);
    });
}

#[test]
fn a_denied_reservation_leaves_no_record() {
    pair_on_each(MIXED, |one, _, _| async move {
        let held = one.reserve(&of("a").costing(45), &for_a_minute("held")).await.unwrap();
        let before = remaining(&one.peek(&of("a")).await);
        let denied = one.reserve(&of("a").costing(10), &for_a_minute("late")).await.unwrap();
        assert_eq!((denied.reason(), denied.receipt()), (Some(Reason::LimitExceeded), None));
        let never = one.reserve(&of("a").costing(51), &for_a_minute("huge")).await.unwrap();
        assert_eq!((never.reason(), never.receipt()), (Some(Reason::CostExceedsLimit), None));
        assert_eq!(remaining(&one.peek(&of("a")).await), before);
        assert_eq!(one.cancel(held.receipt().unwrap()).await, Ok(EndResult::Done));
        // The id of a denied reservation is free.
        let now = one.reserve(&of("a").costing(9), &for_a_minute("late")).await.unwrap();
        assert!(now.allowed());
    });
}

#[test]
fn an_expired_reservation_stays_charged_and_is_forgotten_an_hour_later() {
    pair_on_each(MIXED, |one, other, clock| async move {
        let request = ten_and_hundred_tokens("a");
        let decision = one.reserve(&request, &for_a_minute("job")).await.unwrap();
        clock.set(TODAY_US + 60_000_000);
        for limiter in [&one, &other] {
            let late = limiter.settle(&read(&decision), &Usage::from(0)).await;
            assert_eq!(late, Ok(EndResult::Expired));
            assert_eq!(limiter.cancel(&read(&decision)).await, Ok(EndResult::Expired));
            let renewed = limiter.renew(&read(&decision), Duration::from_secs(60)).await;
            assert_eq!(renewed, Ok(EndResult::Expired));
        }
        assert_eq!(remaining(&one.peek(&request).await), [80, 70, 60, 50, 40, 900]);
        // A clock that steps back makes it settleable again, and mints nothing.
        clock.set(TODAY_US + 59_000_000);
        let settled = other.settle(&read(&decision), &Usage::from(0)).await;
        assert_eq!(settled, Ok(EndResult::Done));
        assert!(remaining(&one.peek(&request).await).iter().zip(FULL).all(|(a, b)| *a <= b));
    });
}

#[test]
fn a_forged_or_foreign_receipt_does_nothing() {
    pair_on_each(MIXED, |one, other, _| async move {
        let request = ten_and_hundred_tokens("a");
        let decision = one.reserve(&request, &Reserve::default()).await.unwrap();
        let text = decision.receipt().unwrap().as_str();
        let forged = (0..text.len()).filter_map(|place| {
            let mut forged = text.as_bytes().to_vec();
            forged[place] = if forged[place] == b'A' { b'B' } else { b'A' };
            String::from_utf8(forged).unwrap().parse::<Receipt>().ok()
        });
        for forged in forged {
            assert_eq!(other.cancel(&forged).await, Ok(EndResult::Unknown), "{forged}");
        }
        let foreign = Limiter::builder().key_secret([7; 16]).build().await.unwrap();
        assert_eq!(foreign.cancel(&read(&decision)).await, Ok(EndResult::Unknown));
        let empty = Limiter::builder().build().await.unwrap();
        assert_eq!(empty.cancel(&read(&decision)).await, Ok(EndResult::Unknown));
        assert_eq!(remaining(&one.peek(&request).await), [80, 70, 60, 50, 40, 900]);
    });
}

const PERMITS: &str = r#"
    [[rule]]
    name = "streams"
    key = ["user"]
    limits = [{ quota = "2", algorithm = "concurrency", max_hold = "30s" }]
"#;

#[test]
fn a_check_of_permits_has_a_receipt_that_releases_only_its_own() {
    pair_on_each(PERMITS, |one, other, clock| async move {
        let first = one.check(&of("a")).await;
        let second = one.check(&of("a")).await;
        assert_eq!(one.check(&of("a")).await.reason(), Some(Reason::LimitExceeded));
        assert_eq!(other.release(&read(&first)).await, Ok(EndResult::Done));
        assert_eq!(other.release(&read(&first)).await, Ok(EndResult::Repeated));
        let third = one.check(&of("a")).await;
        assert!(third.allowed());
        assert_eq!(other.release(&read(&first)).await, Ok(EndResult::Repeated));
        assert_eq!(
            one.check(&of("a")).await.reason(),
            Some(Reason::LimitExceeded),
            "no permit is free"
        );

        // Two are renewed for another hold; one of them has ended, so its renewal fails.
        clock.set(TODAY_US + 20_000_000);
        let for_an_hour = Duration::from_secs(3_600);
        assert_eq!(other.renew(&read(&second), for_an_hour).await, Ok(EndResult::Done));
        clock.set(TODAY_US + 30_000_000);
        let fourth = one.check(&of("a")).await;
        assert!(fourth.allowed(), "the third has ended by itself");
        assert_eq!(one.check(&of("a")).await.reason(), Some(Reason::LimitExceeded));
        assert_eq!(other.renew(&read(&third), for_an_hour).await, Ok(EndResult::Expired));
        assert_eq!(other.release(&read(&third)).await, Ok(EndResult::Expired));
        assert_eq!(one.check(&of("a")).await.reason(), Some(Reason::LimitExceeded));
        clock.set(TODAY_US + 50_000_000);
        assert!(one.check(&of("a")).await.allowed(), "an hour is more than its hold");
    });
}

#[test]
fn permits_come_with_receipts_in_batches_and_for_inline_limits_too() {
    pair_on_each(PERMITS, |one, other, _| async move {
        let limit = Limit::concurrent(1, Duration::from_secs(30));
        let key = |key| Request::keyed(key, limit.clone());
        let requests = [of("a"), key("k"), key("k"), Request::keyed("l", Limit::per_hour(1))];
        let decisions = one.check_batch(&requests).await;
        let allowed: Vec<bool> = decisions.iter().map(Decision::allowed).collect();
        assert_eq!(allowed, [true, true, false, true]);
        let receipts: Vec<bool> =
            decisions.iter().map(|decision| decision.receipt().is_some()).collect();
        assert_eq!(receipts, [true, true, false, false]);
        assert_eq!(other.release(&read(&decisions[1])).await, Ok(EndResult::Done));
        let decision = one.check(&Request::keyed("k", &limit)).await;
        assert!(decision.allowed());
        assert_eq!(other.release(&read(&decision)).await, Ok(EndResult::Done));
        let reserved = one.reserve(&key("k"), &for_a_minute("n")).await.unwrap();
        let again = other.reserve(&key("k"), &for_a_minute("n")).await.unwrap();
        assert_eq!((again.allowed(), again.receipt()), (true, reserved.receipt()));
    });
}

pub(super) const SPREAD: &str = r#"
    [[rule]]
    name = "by-user"
    key = ["tenant", "user"]
    limits = ["10/366d"]
    [[rule]]
    name = "by-tenant"
    key = ["tenant"]
    limits = [{ quota = "100/366d", name = "calls" }, { quota = "3", algorithm = "concurrency", max_hold = "1h" }]
    [[rule]]
    name = "all"
    key = []
    limits = ["1000/366d"]
"#;

#[test]
fn counters_on_several_shards_are_reserved_and_settled_together() {
    pair_on_each(SPREAD, |one, other, _| async move {
        for user in 0..24 {
            let tenant = format!("t{user}");
            let request = Request::new().with("tenant", &tenant).with("user", user.to_string());
            let before = remaining(&one.peek(&request).await);
            let decision = one.reserve(&request.clone().costing(3), &for_a_minute(&tenant)).await;
            let decision = decision.unwrap();
            assert!(decision.allowed());
            let again = other.reserve(&request.clone().costing(3), &for_a_minute(&tenant)).await;
            assert_eq!(again.unwrap().receipt(), decision.receipt());
            let denied = one.reserve(&request.clone().costing(3), &Reserve::default()).await;
            assert_eq!(denied.unwrap().reason(), Some(Reason::LimitExceeded));
            let settled = other.settle(&read(&decision), &Usage::from(1)).await;
            assert_eq!(settled, Ok(EndResult::Done));
            let settled = one.settle(&read(&decision), &Usage::from(1)).await;
            assert_eq!(settled, Ok(EndResult::Repeated));
            let after = remaining(&one.peek(&request).await);
            let lowered: Vec<u64> = before.iter().zip(after).map(|(a, b)| a - b).collect();
            assert_eq!(lowered, [1, 1, 0, 1], "{user}");
        }
    });
}

#[test]
fn concurrent_reservations_equal_sequential_ones() {
    pair_on_each(MIXED, |one, other, _| async move {
        let mut reserving = tokio::task::JoinSet::new();
        for number in 0..300 {
            let limiter = if number % 2 == 0 { one.clone() } else { other.clone() };
            reserving.spawn(async move {
                let name = format!("job {}", number / 2);
                let decision = limiter.reserve(&of("a"), &for_a_minute(&name)).await.unwrap();
                decision.receipt().cloned()
            });
        }
        let receipts: Vec<Receipt> = reserving.join_all().await.into_iter().flatten().collect();
        // Each id twice, fifty permits.
        assert!((50..=100).contains(&receipts.len()), "{}", receipts.len());
        assert_eq!(remaining(&one.peek(&of("a")).await), [40, 30, 20, 10, 0, 1_000]);
        let mut settling = tokio::task::JoinSet::new();
        for (number, receipt) in receipts.into_iter().enumerate() {
            let limiter = if number % 3 == 0 { one.clone() } else { other.clone() };
            settling.spawn(async move { limiter.settle(&receipt, &Usage::from(0)).await.unwrap() });
        }
        let outcomes = settling.join_all().await;
        let done = outcomes.iter().filter(|outcome| **outcome == EndResult::Done).count();
        assert_eq!(done, 50);
        assert!(outcomes.iter().all(|outcome| *outcome >= EndResult::Repeated), "{outcomes:?}");
        assert_eq!(remaining(&one.peek(&of("a")).await), FULL);
    });
}

#[test]
fn a_reservation_lasts_from_a_millisecond_to_a_day() {
    pair_on_each(PERMITS, |one, _, _| async move {
        let day = Duration::from_secs(86_400);
        for (lasting, fits) in [
            (Duration::ZERO, false),
            (Duration::from_micros(999), false),
            (Duration::from_millis(1), true),
            (day, true),
            (day + Duration::from_micros(1), false),
            (Duration::MAX, false),
        ] {
            let reserved = one.reserve(&of("a").costing(0), &Reserve::lasting(lasting)).await;
            assert_eq!(reserved.is_ok(), fits, "{lasting:?}");
        }
        let held = one.check(&of("a")).await;
        let renewed = one.renew(held.receipt().unwrap(), day + Duration::from_micros(1)).await;
        assert!(matches!(renewed, Err(ReservationError::Lasting(_))), "{renewed:?}");
    });
}
