//! Which calls are charged, how much, and what the reply reports.

use spillgate::{Algorithm, Limit, LimitSpec, Limiter, Reason, Request};
use spillgate_core::algorithm::{Intent, Reading};
use spillgate_core::limit::NamedLimit;
use spillgate_testkit::RedisServer;

use crate::support::random::Random;
use crate::support::world::{
    ME, PATIENCE, PERIOD, PERIOD_US, TODAY_US, World, each_algorithm, limit, runtime,
};

/// ACCIDENTS 8. Denied calls consumed quota: a caller that kept asking was never admitted again.
#[test]
fn a_hundred_denials_change_nothing() {
    for world in World::each() {
        for (subject, limit) in (0..).zip(each_algorithm(10, PERIOD)) {
            assert!(world.check(subject, &limit, 10).fits);
            let (stored, reply) = (world.stored(), world.peek(subject, &limit, 1));
            for _ in 0..100 {
                assert_eq!(
                    world.check(subject, &limit, 1),
                    reply,
                    "{} {}",
                    limit.algorithm(),
                    world.name()
                );
            }
            assert_eq!(world.stored(), stored, "{}", limit.algorithm());
        }
    }
}

/// ACCIDENTS 9. A denied call whose cost exceeded the quota left consumed all of it, and more.
#[test]
fn a_denied_cost_charges_nothing() {
    for world in World::each() {
        for (subject, limit) in (0..).zip(each_algorithm(10, PERIOD)) {
            assert!(world.check(subject, &limit, 6).fits);
            let (stored, reply) = (world.stored(), world.peek(subject, &limit, 1));
            for cost in [5, 9, 10] {
                assert!(!world.check(subject, &limit, cost).fits);
            }
            assert_eq!(
                world.peek(subject, &limit, 1),
                reply,
                "{} {}",
                limit.algorithm(),
                world.name()
            );
            assert_eq!(world.stored(), stored, "{}", limit.algorithm());
            assert!(world.check(subject, &limit, 4).fits);
        }
    }
}

/// ACCIDENTS 10. A cost above the capacity got a retry time, again and again.
#[test]
fn a_cost_above_the_capacity_gets_no_retry_time() {
    let server = RedisServer::start();
    let runtime = runtime();
    for builder in [Limiter::builder(), Limiter::builder().redis(server.url()).timeout(PATIENCE)] {
        let limiter = runtime.block_on(builder.build()).unwrap();
        for named in each_algorithm(10, PERIOD) {
            let decision =
                runtime.block_on(limiter.check(&Request::keyed("me", named.limit()).costing(11)));
            assert_eq!(
                (decision.reason(), decision.retry_after()),
                (Some(Reason::CostExceedsLimit), None)
            );
            let decision =
                runtime.block_on(limiter.check(&Request::keyed("me", named.limit()).costing(10)));
            assert_eq!(decision.reason(), None, "{} changed the counter", named.algorithm());
        }
    }
}

/// ACCIDENTS 11. The granted amount and the charged amount differed.
#[test]
fn the_granted_cost_is_the_charged_cost() {
    for world in World::each() {
        for (subject, limit) in (0..).zip(each_algorithm(1_000, PERIOD)) {
            let (mut random, mut granted) = (Random::new(11), 0);
            for _ in 0..100 {
                let cost = random.spread(200);
                let reply = world.check(subject, &limit, cost);
                granted += if reply.fits { cost } else { 0 };
                assert_eq!(
                    reply.reading.remaining,
                    1_000 - granted,
                    "{} {}",
                    limit.algorithm(),
                    world.name()
                );
            }
            assert!(granted > 900);
        }
    }
}

/// ACCIDENTS 12. One algorithm of several ignored the cost and charged one unit.
#[test]
fn a_call_of_cost_five_charges_as_five_of_cost_one() {
    for world in World::each() {
        for limit in each_algorithm(13, PERIOD) {
            world.check(0, &limit, 5);
            (0..5).for_each(|_| assert!(world.check(1, &limit, 1).fits));
            for cost in [1, 8, 9, 13] {
                let reply = [0, 1].map(|subject| world.peek(subject, &limit, cost));
                assert_eq!(reply[0], reply[1], "{} {}", limit.algorithm(), world.name());
            }
        }
    }
}

/// ACCIDENTS 13. Peek and check rounded differently: peek allowed a call that the check denied.
#[test]
fn a_peek_and_a_check_agree() {
    each_random_state(13, |world, limit, random, subject| {
        let cost = 1 + random.below(limit.limit().capacity().unwrap());
        let peeked = world.peek(subject, limit, cost);
        let checked = world.check(subject, limit, cost);
        assert_eq!(checked.fits, peeked.fits);
        let left = peeked.reading.remaining - if checked.fits { cost } else { 0 };
        assert_eq!(checked.reading.remaining, left);
        if !checked.fits {
            assert_eq!(checked.reading, peeked.reading);
        }
    });
}

/// ACCIDENTS 14. `remaining` was the quota used, or the quota left before this call.
#[test]
fn after_k_calls_remaining_is_capacity_minus_k() {
    for world in World::each() {
        for limit in each_algorithm(20, PERIOD) {
            assert_eq!(world.remaining(ME, &limit), 20);
            for k in 1..=20 {
                assert_eq!(
                    world.check(ME, &limit, 1).reading.remaining,
                    20 - k,
                    "{} {}",
                    limit.algorithm(),
                    world.name()
                );
                assert_eq!(world.remaining(ME, &limit), 20 - k);
            }
            assert_eq!(world.check(ME, &limit, 1).reading.remaining, 0);
        }
    }
}

/// ACCIDENTS 15. `retry_after` was computed from the wrong entry, or in the wrong unit.
#[test]
fn a_denied_call_is_admitted_at_exactly_its_retry_after() {
    each_random_state(15, |world, limit, random, subject| {
        let cost = 1 + random.below(limit.limit().capacity().unwrap());
        let reply = world.check(subject, limit, cost);
        if reply.fits {
            return;
        }
        let (now_us, retry_us) = (world.now_us(), reply.reading.retry_after_us.unwrap());
        assert!(retry_us > 0);
        world.at(now_us + retry_us - 1);
        assert!(
            !world.check(subject, limit, cost).fits,
            "admitted 1 µs before {retry_us} µs were over"
        );
        world.at(now_us + retry_us);
        assert!(world.check(subject, limit, cost).fits, "still denied after {retry_us} µs");
    });
}

/// ACCIDENTS 16. The first value of a limit stayed in force until its subjects were idle.
#[test]
fn a_changed_limit_applies_from_the_next_call() {
    for world in World::each() {
        let [hundred, five, thousand] = [100, 5, 1_000].map(|count| each_algorithm(count, PERIOD));
        for ((hundred, five), thousand) in hundred.iter().zip(&five).zip(&thousand) {
            let name = format!("{} {}", hundred.algorithm(), world.name());
            assert!(world.check(ME, hundred, 50).fits);
            assert!(!world.check(ME, five, 1).fits, "{name}: 50 of 5 are used");
            assert_eq!(world.remaining(ME, five), 0, "{name}");
            assert!(world.check(ME, thousand, 950).fits, "{name}: 50 of 1,000 are used");
            assert!(!world.check(ME, thousand, 1).fits, "{name}");
            assert!(!world.check(ME, hundred, 1).fits, "{name}");
        }
    }
}

/// ACCIDENTS 17. When one of several limits denied a call, the limits before it were still charged.
#[test]
fn random_counters_are_charged_all_or_none() {
    for world in World::each() {
        let mut random = Random::new(17);
        let limits: Vec<NamedLimit> =
            [3, 10, 40].into_iter().flat_map(|count| each_algorithm(count, PERIOD)).collect();
        // Three subjects with limits of their own, so that no counter is used with two sets of numbers.
        let counter = |random: &mut Random| {
            let place = random.below(limits.len() as u64) as usize;
            ((place / 5) as u128, &limits[place])
        };
        let (mut allowed, mut denied) = (0, 0);
        for _ in 0..300 {
            let mut costs: Vec<(u128, &NamedLimit, u64)> = Vec::new();
            for _ in 0..=random.below(6) {
                let (subject, limit) = counter(&mut random);
                if !costs
                    .iter()
                    .any(|(known, other, _)| *known == subject && other.mix() == limit.mix())
                {
                    costs.push((subject, limit, 1 + random.below(2)));
                }
            }
            let before: Vec<u64> =
                costs.iter().map(|(subject, limit, _)| world.remaining(*subject, limit)).collect();
            let reply = world.decide(&costs);
            for ((subject, limit, cost), before) in costs.iter().zip(before) {
                let charged = if reply.allowed { *cost } else { 0 };
                assert_eq!(
                    world.remaining(*subject, limit),
                    before - charged,
                    "{} {}",
                    limit.algorithm(),
                    world.name()
                );
            }
            *(if reply.allowed { &mut allowed } else { &mut denied }) += 1;
            if random.one_in(10) {
                world.after(PERIOD_US / 3);
            }
        }
        assert!(allowed > 50 && denied > 50, "{allowed} allowed, {denied} denied");
    }
}

/// ACCIDENTS 18. A refund after a later charge returned the wrong amount: units were minted or lost.
#[test]
fn settling_and_cancelling_conserves_the_quota() {
    for world in World::each() {
        for (subject, limit) in (0..).zip(each_algorithm(1_000, PERIOD)) {
            let mut random = Random::new(18);
            let (mut open, mut used) = (Vec::new(), 0);
            for _ in 0..200 {
                if random.one_in(2) {
                    let cost = 1 + random.spread(99);
                    let receipt = world.reserve(subject, &limit, cost);
                    assert_eq!(
                        receipt.is_some(),
                        used + cost <= 1_000,
                        "{} {}",
                        limit.algorithm(),
                        world.name()
                    );
                    open.extend(receipt);
                    used += receipt.map_or(0, |receipt| receipt.amount);
                } else if !open.is_empty() {
                    // Settled below the reserved amount, or cancelled.
                    let receipt = open.swap_remove(random.below(open.len() as u64) as usize);
                    let unused = if random.one_in(3) {
                        receipt.amount
                    } else {
                        random.below(receipt.amount)
                    };
                    let returned = world.refund(subject, &limit, receipt, unused);
                    assert_eq!(returned, unused, "{} {}", limit.algorithm(), world.name());
                    used -= unused;
                }
                assert_eq!(
                    world.remaining(subject, &limit),
                    1_000 - used,
                    "{} {}",
                    limit.algorithm(),
                    world.name()
                );
            }
        }
    }
}

/// ACCIDENTS 18, a variant. A late refund lowered what other calls had used since.
#[test]
fn a_refund_after_the_window_refunds_nothing() {
    for world in World::each() {
        for limit in each_algorithm(10, PERIOD) {
            let receipt = world.at(TODAY_US).reserve(ME, &limit, 10).unwrap();
            assert!(world.at(TODAY_US + 2 * PERIOD_US).check(ME, &limit, 10).fits);
            assert_eq!(
                world.refund(ME, &limit, receipt, 10),
                0,
                "{} {}",
                limit.algorithm(),
                world.name()
            );
            assert!(!world.check(ME, &limit, 1).fits);
        }
    }
}

/// ACCIDENTS 19. A rate of zero meant no limit at all.
#[test]
fn a_rate_of_zero_is_invalid_and_unlimited_and_block_are_explicit() {
    for quota in ["0/second", "0/day"] {
        for algorithm in ["token-bucket", "fixed-window", "sliding-log", "sliding-window"] {
            let error = LimitSpec::new(quota).algorithm(algorithm).build().unwrap_err();
            assert_eq!(error.field(), "quota");
            assert!(
                error.message().contains("block") && error.message().contains("unlimited"),
                "{error}"
            );
        }
    }
    let server = RedisServer::start();
    let runtime = runtime();
    for builder in [Limiter::builder(), Limiter::builder().redis(server.url()).timeout(PATIENCE)] {
        let limiter = runtime.block_on(builder.build()).unwrap();
        let check = |limit: &Limit, cost: u64| {
            runtime.block_on(limiter.check(&Request::keyed("me", limit).costing(cost)))
        };
        for cost in [1, 1_000_000_000, u64::MAX] {
            assert_eq!(check(&Limit::unlimited(), cost).reason(), None);
            assert_eq!(check(&Limit::block(), cost).reason(), Some(Reason::Blocked));
        }
        // A limit without numbers reports none.
        assert_eq!(check(&Limit::unlimited(), 1).remaining(), None);
    }
}

/// ACCIDENTS 15. The values of one reading contradicted each other.
#[test]
fn an_unused_counter_reads_as_full() {
    for world in World::each() {
        for limit in each_algorithm(10, PERIOD) {
            let full = Reading { remaining: 10, retry_after_us: Some(0), reset_after_us: 0 };
            assert_eq!(world.peek(ME, &limit, 10).reading, full);
            let reply = world.decide_one(Intent::Peek, &[(ME, &limit, 0)]);
            assert_eq!(reply.replies[0].reading, full, "{}", world.name());
        }
    }
}

/// ACCIDENTS 12, a variant. A cost in one unit was charged to a limit that counts another.
#[test]
fn a_limit_of_another_unit_is_read_and_not_charged() {
    let runtime = runtime();
    let limiter = runtime.block_on(Limiter::builder().build()).unwrap();
    let tokens = Limit::per_day(5).unit_named("tokens");
    for _ in 0..10 {
        let decision = runtime.block_on(limiter.check(&Request::keyed("me", &tokens)));
        assert_eq!((decision.allowed(), decision.remaining()), (true, Some(5)));
    }
}

/// Visits states that random histories lead to: every algorithm, costs, pauses, small steps back of the
/// clock, refunds and forced charges.
fn each_random_state(seed: u64, visit: impl Fn(&World, &NamedLimit, &mut Random, u128)) {
    for world in World::each() {
        let histories = if world.is_in_memory() { 30 } else { 3 };
        for limit in each_algorithm(10, PERIOD).into_iter().chain(each_algorithm(777, "90000s")) {
            for subject in 0..histories {
                let mut random = Random::new(seed + subject as u64);
                let period_us = limit.limit().refill().unwrap().as_micros() as u64;
                let mut receipts = Vec::new();
                world.at(TODAY_US + random.below(period_us));
                for _ in 0..20 {
                    let cost = random.spread(limit.limit().capacity().unwrap());
                    match random.below(8) {
                        0 => drop(world.force(subject, &limit, cost)),
                        1 => receipts.extend(world.reserve(subject, &limit, cost.max(1))),
                        2 if !receipts.is_empty() => {
                            let receipt =
                                receipts.swap_remove(random.below(receipts.len() as u64) as usize);
                            world.refund(
                                subject,
                                &limit,
                                receipt,
                                random.below(receipt.amount + 1),
                            );
                        }
                        3 => drop(world.at(world.now_us() - random.below(900_000))),
                        4 | 5 => drop(world.after(random.spread(period_us / 4))),
                        _ => drop(world.check(subject, &limit, cost)),
                    }
                    visit(&world, &limit, &mut random, subject);
                }
            }
        }
    }
}

/// An accident of our own: in memory, counters that a decision added made the table grow, and earlier lookups
/// of the same decision were stored at their old places.
#[test]
fn a_counter_keeps_its_charge_when_the_table_grows() {
    for world in World::each() {
        let bucket = limit(Algorithm::TokenBucket, 9, PERIOD);
        let limits: Vec<NamedLimit> =
            (0..8).map(|place| NamedLimit::new(bucket.limit().clone(), place)).collect();
        for subject in 0..40 {
            let known = &limits[7];
            assert!(world.check(subject, known, 1).fits);
            let costs: Vec<_> = limits.iter().map(|limit| (subject, limit, 1)).collect();
            assert!(world.decide(&costs).allowed);
            assert_eq!(world.remaining(subject, known), 7, "{subject} {}", world.name());
        }
    }
}
