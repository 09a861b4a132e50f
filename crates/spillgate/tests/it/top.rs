//! `top`: the subjects that use most, and those denied most.

use spillgate::metrics::{TopOfRule, TopSubject};
use spillgate::reservation::Reserve;
use spillgate::{Cost, Limit, LimitSpec, Policy, Request};
use std::time::Duration;

use crate::stores::on_each;

const POLICY: &str = r#"
    [[rule]]
    name = "api"
    key = ["tenant", "user"]
    limits = [{ quota = "30/day", unit = "tokens" }]
    [[rule]]
    name = "watched"
    key = ["user"]
    mode = "shadow"
    limits = ["1/day"]
"#;

fn of(user: &str) -> Request<'_> {
    Request::new().with("tenant", "acme").with("user", user)
}

fn read(subjects: &[TopSubject]) -> Vec<(String, u64)> {
    let name = |subject: &TopSubject| {
        let values = subject
            .attributes()
            .map(|(name, value)| format!("{name}={}", String::from_utf8_lossy(value)));
        (values.collect::<Vec<_>>().join(" "), subject.count())
    };
    subjects.iter().map(name).collect()
}

fn expected(of: &[(&str, u64)]) -> Vec<(String, u64)> {
    of.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

// On a thread of its own no decision of another test interferes with the sampling.
fn on_fresh_threads(body: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(body).join().unwrap());
}

#[test]
fn costs_are_summed_by_subject_and_denials_are_counted() {
    on_fresh_threads(|| {
        on_each(POLICY, |limiter| async move {
            for (user, tokens) in [("ann", 7), ("bob", 20), ("ann", 8), ("bob", 11)] {
                let _ =
                    limiter.check(&of(user).costing(Cost::requests(1).and("tokens", tokens))).await;
            }
            let _ = limiter.peek(&of("carol")).await;
            let top = limiter.top(Some("api"), 10);
            let [api] = top.rules() else { panic!("{top:?}") };
            assert_eq!((api.rule(), api.unit(), api.consumed()), (Some("api"), "tokens", 35));
            let consumers = expected(&[("tenant=acme user=bob", 20), ("tenant=acme user=ann", 15)]);
            assert_eq!(read(api.consumers()), consumers);
            assert_eq!(
                (read(api.most_denied()), api.denied()),
                (expected(&[("tenant=acme user=bob", 1)]), 1)
            );
            assert_eq!(read(limiter.top(Some("api"), 1).rules()[0].consumers()).len(), 1);
            // A shadow rule is charged if it has room, and otherwise counts a denial.
            let top = limiter.top(Some("watched"), 10);
            assert_eq!(read(top.rules()[0].most_denied()), expected(&[("user=ann", 1)]));
            assert_eq!(top.rules()[0].consumed(), 2);
        });
    });
}

#[test]
fn batches_combined_requests_waits_and_inline_limits_are_counted_too() {
    on_fresh_threads(|| {
        on_each(POLICY, |limiter| async move {
            let tokens = |user| of(user).costing(Cost::of_unit("tokens", 2));
            let request = tokens("ann");
            limiter.check_batch(&[request.clone(), request]).await;
            let _ = limiter.check_atomic(&[tokens("ann"), tokens("bob")]).await;
            let _ = limiter.acquire(&tokens("bob"), Duration::from_secs(10)).await;
            let _ = limiter.check(&Request::keyed("user:1", Limit::per_day(1))).await;
            let _ = limiter.check(&Request::keyed("user:1", Limit::per_day(1))).await;
            let top = limiter.top(None, 10);
            let of_rule = |name| top.rules().iter().find(|rule| rule.rule() == name).unwrap();
            let api: &TopOfRule = of_rule(Some("api"));
            let consumers = expected(&[("tenant=acme user=ann", 6), ("tenant=acme user=bob", 4)]);
            assert_eq!(read(api.consumers()), consumers);
            let inline = of_rule(None);
            let (consumers, refused) = (read(inline.consumers()), read(inline.most_denied()));
            let once = expected(&[("key=user:1", 1)]);
            assert_eq!((consumers, refused), (once.clone(), once));
        });
    });
}

/// Reservations and permits were charged, but `top` did not show them.
#[test]
fn reservations_and_permit_checks_count_and_a_repeated_reservation_counts_once() {
    let policy = format!(
        "{POLICY}\n[[rule]]\nname = \"jobs\"\nkey = [\"job\"]\n\
         limits = [{{ quota = \"2\", algorithm = \"concurrency\", max_hold = \"10m\" }}]\n"
    );
    on_fresh_threads(|| {
        on_each(&policy, |limiter| async move {
            let tokens = of("ann").costing(Cost::of_unit("tokens", 3));
            let reserve = Reserve::default().under("once");
            for _ in 0..2 {
                let _ = limiter.reserve(&tokens, &reserve).await.unwrap();
            }
            let _ = limiter.reserve(&tokens, &Reserve::default()).await.unwrap();
            let too_much = of("bob").costing(Cost::of_unit("tokens", 31));
            let _ = limiter.reserve(&too_much, &Reserve::default()).await.unwrap();
            for _ in 0..3 {
                let _ = limiter.check(&Request::new().with("job", "a")).await;
            }
            let permits = LimitSpec { max_hold: Some("10m".into()), ..LimitSpec::new("2") };
            let permits = permits.algorithm("concurrency").build().unwrap();
            let request = Request::keyed("held", permits.clone());
            let _ = limiter.check(&Request::keyed("held", &permits)).await;
            let _ = limiter.reserve(&request, &Reserve::default()).await.unwrap();
            let _ = limiter.check(&Request::keyed("held", &permits)).await;
            let top = limiter.top(None, 10);
            let seen = |name: Option<&str>| {
                let rule = top.rules().iter().find(|rule| rule.rule() == name);
                rule.map(|rule| (read(rule.consumers()), read(rule.most_denied())))
            };
            let api = (
                expected(&[("tenant=acme user=ann", 6)]),
                expected(&[("tenant=acme user=bob", 1)]),
            );
            assert_eq!(seen(Some("api")), Some(api));
            let jobs = (expected(&[("job=a", 2)]), expected(&[("job=a", 1)]));
            assert_eq!(seen(Some("jobs")), Some(jobs));
            let held = (expected(&[("key=held", 2)]), expected(&[("key=held", 1)]));
            assert_eq!(seen(None), Some(held));
        });
    });
}

#[test]
fn a_rule_with_another_key_and_unit_is_counted_anew() {
    let before = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"9/day\"]\n";
    on_fresh_threads(|| {
        on_each(before, |limiter| async move {
            let request = of("ann").costing(Cost::requests(1).and("tokens", 2));
            let _ = limiter.check(&request).await;
            let counted = || {
                let top = limiter.top(Some("api"), 10);
                let [api] = top.rules() else { panic!("{top:?}") };
                (api.unit().to_owned(), read(api.consumers()))
            };
            assert_eq!(counted(), ("requests".to_owned(), expected(&[("user=ann", 1)])));
            limiter.set_policy(Policy::from_toml(POLICY).unwrap());
            let _ = limiter.check(&request).await;
            let anew = expected(&[("tenant=acme user=ann", 2)]);
            assert_eq!(counted(), ("tokens".to_owned(), anew));
        });
    });
}

/// A sampled decision stands for several. Their costs together were above the largest number.
#[test]
fn huge_costs_are_counted_as_the_largest_number() {
    let policy = "[[rule]]\nname = \"open\"\nkey = [\"user\"]\nlimits = [\"unlimited\"]\n";
    on_fresh_threads(|| {
        on_each(policy, |limiter| async move {
            // Beyond 4,096 decisions of a minute not every one is sampled.
            for _ in 0..4_200 {
                assert!(limiter.check(&of("ann").costing(u64::MAX / 2)).await.allowed());
            }
            let top = limiter.top(Some("open"), 10);
            assert_eq!(read(top.rules()[0].consumers()), expected(&[("user=ann", u64::MAX)]));
            assert_eq!(top.rules()[0].consumed(), u64::MAX);
        });
    });
}

#[test]
fn top_is_empty_when_it_is_switched_off() {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let limiter = spillgate::Limiter::builder().top(false).build().await.unwrap();
        let _ = limiter.check(&Request::keyed("user:1", Limit::per_day(1))).await;
        assert!(limiter.top(None, 10).rules().is_empty());
    });
}
