//! A limit of another period, beside a configured one or in its place, has a counter of its own. The
//! configured counter keeps its usage.

use std::time::Duration;

use spillgate::{Limit, LimitSpec, Limiter, Policy, Request};

use crate::stores::pair_on_each;
use crate::support::world::TODAY_US;

fn ada() -> Request<'static> {
    Request::new().with("user", "ada")
}

async fn admitted(limiter: &Limiter, calls: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..calls {
        admitted += usize::from(limiter.check(&ada()).await.allowed());
    }
    admitted
}

#[test]
fn a_request_limit_of_a_shorter_period_keeps_the_configured_log() {
    let policy = r#"
        [[rule]]
        name = "api"
        key = ["user"]
        limits = [{ quota = "20/minute", algorithm = "sliding-log" }]
        request_limit = "lower"
    "#;
    pair_on_each(policy, |limiter, _, clock| async move {
        let mut all = admitted(&limiter, 25).await;
        for second in 1..=13 {
            clock.set(TODAY_US + second * 1_000_000);
            let request_limit = Limit::per(1, Duration::from_secs(10));
            let narrowed = ada().limited_to(request_limit);
            all += usize::from(limiter.check(&narrowed).await.allowed());
            all += admitted(&limiter, 5).await;
        }
        assert_eq!(all, 20, "in 13 seconds of a minute");
    });
}

#[test]
fn a_request_limit_has_a_counter_for_each_period() {
    let policy = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"100/minute\"]\nrequest_limit = \"lower\"\n";
    pair_on_each(policy, |limiter, _, clock| async move {
        let of = |count, seconds| {
            let request_limit = Limit::per(count, Duration::from_secs(seconds));
            ada().limited_to(request_limit)
        };
        assert!(limiter.check(&of(1, 60)).await.allowed());
        assert!(!limiter.check(&of(1, 60)).await.allowed());
        let slower = limiter.check(&of(1, 3_600)).await;
        assert!(slower.allowed(), "{slower:?}");
        clock.set(TODAY_US + 61_000_000);
        assert!(limiter.check(&of(1, 60)).await.allowed());
        assert!(!limiter.check(&of(1, 3_600)).await.allowed());
    });
}

#[test]
fn an_override_of_a_shorter_period_keeps_the_exhausted_counter() {
    let policy = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"5/day\"]\n";
    pair_on_each(policy, |limiter, _, clock| async move {
        assert_eq!(admitted(&limiter, 6).await, 5);
        assert!(limiter.set_override("api", &ada(), ["100/second"], None).await.is_ok());
        assert_eq!(admitted(&limiter, 10).await, 10, "the override has a counter of its own");
        clock.set(TODAY_US + 3_000_000);
        assert!(limiter.remove_override("api", &ada()).await.is_ok());
        assert_eq!(admitted(&limiter, 10).await, 0, "the five of the day are used");
    });
}

/// All were one counter, so a limit by the second ended what a limit by the day had counted.
#[test]
fn request_limits_of_two_periods_in_place_of_unlimited_count_apart() {
    let policy = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"unlimited\"]\nrequest_limit = \"replace\"\n";
    pair_on_each(policy, |limiter, other, clock| async move {
        let by_day = || ada().limited_to(Limit::per_day(1_000));
        assert!(limiter.check(&by_day().costing(1_000)).await.allowed());
        clock.set(TODAY_US + 2_000_000);
        let by_second = ada().limited_to(Limit::per_second(10));
        assert!(other.check(&by_second).await.allowed());
        clock.set(TODAY_US + 2_200_000);
        let denied = limiter.check(&by_day()).await;
        assert!(!denied.allowed(), "{denied:?}");
    });
}

#[test]
fn overrides_of_two_periods_count_apart_where_the_rule_has_no_period() {
    for configured in [
        r#""unlimited""#,
        r#""block""#,
        r#"{ quota = "5", algorithm = "concurrency", max_hold = "1h" }"#,
    ] {
        println!("in place of {configured}");
        let policy =
            format!("[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [{configured}]\n");
        pair_on_each(&policy, |limiter, _, clock| async move {
            for (second, quota, expected) in
                [(0, "3/day", 3), (2, "10/second", 10), (3, "3/day", 0), (3, "4/day", 1)]
            {
                clock.set(TODAY_US + second * 1_000_000);
                let bucket = LimitSpec::new(quota).algorithm("token-bucket");
                assert!(limiter.set_override("api", &ada(), [bucket], None).await.is_ok());
                let admitted = admitted(&limiter, 12).await;
                assert_eq!(admitted, expected, "{quota} after {second} s");
            }
        });
    }
}

#[test]
fn an_override_of_the_same_period_counts_earlier_usage() {
    let policy = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"5/day\"]\n";
    pair_on_each(policy, |limiter, _, _| async move {
        assert_eq!(admitted(&limiter, 6).await, 5);
        assert!(limiter.set_override("api", &ada(), ["8/day"], None).await.is_ok());
        assert_eq!(admitted(&limiter, 10).await, 3);
        assert!(limiter.remove_override("api", &ada()).await.is_ok());
        assert_eq!(admitted(&limiter, 10).await, 0);
    });
}

#[test]
fn a_reset_of_a_subject_ends_the_counters_of_its_override_too() {
    let policy = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"5/day\"]\n";
    pair_on_each(policy, |limiter, _, _| async move {
        assert!(limiter.set_override("api", &ada(), ["2/hour"], None).await.is_ok());
        assert_eq!(admitted(&limiter, 3).await, 2);
        limiter.reset("api", &ada()).await.unwrap();
        assert_eq!(admitted(&limiter, 3).await, 2);
    });
}

#[test]
fn an_override_of_another_algorithm_keeps_the_exhausted_counter() {
    for [configured, other] in [
        ["token-bucket", "fixed-window"],
        ["fixed-window", "sliding-log"],
        ["sliding-log", "sliding-window"],
        ["sliding-window", "token-bucket"],
    ] {
        let policy = format!(
            "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [{{ quota = \"5/day\", algorithm = \"{configured}\" }}]\n[[override]]\nrule = \"api\"\nsubject = {{ user = \"bob\" }}\nlimits = [{{ quota = \"7/day\", algorithm = \"{other}\" }}]\n"
        );
        pair_on_each(&policy, |limiter, _, clock| {
            let (policy, configured, other) = (policy.clone(), configured, other);
            async move {
                assert_eq!(admitted(&limiter, 6).await, 5);
                let over = policy.replace("\"bob\"", "\"ada\"");
                limiter.set_policy(Policy::from_toml(&over).unwrap());
                let own = admitted(&limiter, 10).await;
                clock.set(TODAY_US + 3_000_000);
                limiter.set_policy(Policy::from_toml(&policy).unwrap());
                let after = admitted(&limiter, 10).await;
                println!("{configured} -> {other}: {own} own, {after} after");
                assert_eq!((own, after), (7, 0), "{configured} {other}");
            }
        });
    }
}

/// Both were one counter, so the shorter period ended what the longer one had counted.
#[test]
fn inline_limits_of_two_periods_count_apart_under_one_key() {
    pair_on_each("rules = []", |limiter, other, clock| async move {
        let algorithms = ["token-bucket", "fixed-window", "sliding-log", "sliding-window"];
        for (turn, algorithm) in (1..).zip(algorithms) {
            let limit = |quota| LimitSpec::new(quota).algorithm(algorithm).build().unwrap();
            let (day, second) = (limit("2/day"), limit("10/second"));
            for _ in 0..2 {
                assert!(limiter.check(&Request::keyed(algorithm, &day)).await.allowed());
            }
            assert!(other.check(&Request::keyed(algorithm, &second)).await.allowed());
            clock.set(TODAY_US + turn * 10_000_000);
            assert!(!other.check(&Request::keyed(algorithm, &day)).await.allowed(), "{algorithm}");
        }
    });
}
