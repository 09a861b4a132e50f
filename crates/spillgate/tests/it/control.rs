//! Changes that an operator makes while the limiter runs, on both engines; [`shared`]: in a fleet;
//! [`outage`]: while the store is down.

mod audit_log;
mod namespaces;
mod outage;
mod shared;
mod topologies;

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use spillgate::control::ControlError;
use spillgate::policy::InvalidChange;
use spillgate::testing::ManualClock;
use spillgate::{Decision, LimitSpec, Limiter, Mode, Policy, Reason, Request};
use spillgate_core::time::Clock;

use crate::stores::on_each;

pub(crate) const API: &str = r#"
    [[rule]]
    name = "api"
    key = ["tenant", "user"]
    limits = [{ quota = "10/day" }, { quota = "1000/day", name = "tokens", unit = "tokens" }]

    [[rule]]
    name = "watched"
    mode = "shadow"
    key = ["tenant"]
    limits = ["1/day"]
"#;

pub(crate) fn acme() -> Request<'static> {
    Request::new().with("tenant", "acme")
}

pub(crate) fn ann() -> Request<'static> {
    acme().with("user", "ann")
}

/// Returns the capacity of the rule `api`'s first limit for a subject.
pub(crate) async fn capacity(limiter: &Limiter, request: &Request<'_>) -> Option<u64> {
    counter(&limiter.peek(request).await, "api").and_then(|(capacity, _)| capacity)
}

/// Returns capacity and remaining of a rule's first limit, if the rule matched.
fn counter(decision: &Decision, rule: &str) -> Option<(Option<u64>, Option<u64>)> {
    let mut counters = decision.limits();
    let counter = counters.find(|counter| counter.rule() == Some(rule))?;
    Some((counter.capacity(), counter.remaining()))
}

#[test]
fn an_override_changes_the_limit_of_live_state_until_it_is_removed() {
    on_each(API, |limiter| async move {
        assert!(limiter.check(&ann().costing(8)).await.allowed());
        assert!(!limiter.check(&ann().costing(8)).await.allowed());
        assert!(limiter.set_override("api", &acme(), ["20/day"], None).await.unwrap().is_saved());
        assert_eq!(counter(&limiter.peek(&ann()).await, "api"), Some((Some(20), Some(12))));
        assert!(limiter.check(&ann().costing(8)).await.allowed());
        limiter
            .set_override("api", &ann(), [LimitSpec::new("30/day").burst(30)], None)
            .await
            .unwrap();
        assert_eq!(counter(&limiter.peek(&ann()).await, "api"), Some((Some(30), Some(14))));
        assert_eq!(capacity(&limiter, &acme().with("user", "bob")).await, Some(20));
        assert_eq!(capacity(&limiter, &ann().with("tenant", "other")).await, Some(10));

        let listed = limiter.overrides();
        let subjects: Vec<Vec<_>> = listed.iter().map(|set| set.subject().collect()).collect();
        let (tenant, user) = (("tenant", &b"acme"[..]), ("user", &b"ann"[..]));
        assert_eq!(subjects, [vec![tenant], vec![tenant, user]]);
        assert_eq!(listed[0].limits(), [LimitSpec::new("20/day")]);
        assert_eq!((listed[0].rule(), listed[0].expires_at()), ("api", None));
        assert!(listed.iter().all(|set| set.not_in_force().is_none()));

        limiter.remove_override("api", &ann()).await.unwrap();
        assert_eq!(capacity(&limiter, &ann()).await, Some(20));
        limiter.remove_override("api", &acme()).await.unwrap();
        assert_eq!(counter(&limiter.peek(&ann()).await, "api"), Some((Some(10), Some(0))));
        assert!(limiter.overrides().is_empty());
    });
}

#[test]
fn a_block_denies_until_it_is_removed() {
    on_each(API, |limiter| async move {
        limiter.set_override("api", &acme(), ["block"], None).await.unwrap();
        let blocked = limiter.check(&ann()).await;
        assert_eq!((blocked.reason(), blocked.retry_after()), (Some(Reason::Blocked), None));
        limiter.remove_override("api", &acme()).await.unwrap();
        assert_eq!(limiter.check(&ann()).await.remaining(), Some(9), "the block charged nothing");
    });
}

#[test]
fn a_mode_is_a_kill_switch_that_survives_a_new_policy() {
    on_each(API, |limiter| async move {
        let all = ann().costing(11);
        assert_eq!(limiter.check(&all).await.reason(), Some(Reason::CostExceedsLimit));
        limiter.set_mode("api", Mode::Off, None).await.unwrap();
        assert!(limiter.check(&all).await.allowed());
        limiter.set_policy(Policy::from_toml(API).unwrap());
        assert!(counter(&limiter.check(&all).await, "api").is_none());
        limiter.set_mode("api", Mode::Shadow, None).await.unwrap();
        let watched = limiter.check(&all).await;
        assert!(watched.allowed() && counter(&watched, "api").is_some());
        limiter.set_mode("watched", Mode::Enforce, None).await.unwrap();
        let name = |mode: &spillgate::control::RuleMode| {
            (mode.rule().to_owned(), mode.in_force(), mode.written(), mode.runtime())
        };
        let modes: Vec<_> = limiter.modes().iter().map(name).collect();
        let (enforce, shadow) = (Mode::Enforce, Mode::Shadow);
        assert_eq!(
            modes,
            [
                ("api".into(), shadow, Some(enforce), Some(shadow)),
                ("watched".into(), enforce, Some(shadow), Some(enforce)),
            ]
        );
        limiter.clear_mode("api").await.unwrap();
        assert_eq!(limiter.check(&all).await.reason(), Some(Reason::CostExceedsLimit));
        assert_eq!(limiter.modes()[0].runtime(), None);
    });
}

#[test]
fn a_reset_of_a_rule_resets_all_its_subjects_and_no_other_rule() {
    on_each(API, |limiter| async move {
        limiter.set_mode("watched", Mode::Enforce, None).await.unwrap();
        let users: Vec<String> = (0..50).map(|user| format!("u{user}")).collect();
        let of = |user: &str| Request::new().with("tenant", "one").with("user", user.to_owned());
        assert!(limiter.check(&of("u0")).await.allowed());
        limiter.set_mode("watched", Mode::Shadow, None).await.unwrap();
        for user in &users {
            let _ = limiter.check(&of(user).costing(9)).await;
        }
        limiter.reset_rule("api").await.unwrap();
        for user in &users {
            let decision = limiter.peek(&of(user)).await;
            assert_eq!(counter(&decision, "api"), Some((Some(10), Some(10))));
            assert_eq!(counter(&decision, "watched"), Some((Some(1), Some(0))));
        }
        assert!(limiter.check(&of("u0").costing(10)).await.allowed());
        limiter.reset_rule("api").await.unwrap();
        assert!(limiter.check(&of("u0").costing(10)).await.allowed(), "and once more");
    });
}

#[test]
fn an_operator_reads_charges_and_refunds_one_subject() {
    on_each(API, |limiter| async move {
        let state = limiter.state("api", &ann()).await.unwrap();
        let tokens = state.limits().nth(1).unwrap();
        assert_eq!(counter(&state, "api"), Some((Some(10), Some(10))));
        assert_eq!((tokens.limit(), tokens.remaining()), ("tokens", Some(1000)));
        let cost = spillgate::Cost::requests(4).and("tokens", 900);
        let charged = limiter.charge("api", &ann(), cost).await.unwrap();
        assert_eq!(counter(&charged, "api"), Some((Some(10), Some(6))));
        assert_eq!(charged.limits().nth(1).unwrap().remaining(), Some(100));
        assert_eq!(counter(&limiter.peek(&ann()).await, "api"), Some((Some(10), Some(6))));
        let beyond = limiter.charge("api", &ann(), 100).await.unwrap();
        assert_eq!((beyond.reason(), beyond.remaining()), (Some(Reason::LimitExceeded), Some(0)));
        let freed = limiter.refund("api", &ann(), 15).await.unwrap();
        assert_eq!(
            counter(&freed, "api"),
            Some((Some(10), Some(5))),
            "a forced charge stops at 20"
        );
        let freed = limiter.refund("api", &ann(), u64::MAX).await.unwrap();
        assert_eq!(counter(&freed, "api"), Some((Some(10), Some(10))), "never beyond the capacity");
        // The token that had begun to drain is not refunded in full.
        assert!((19..=20).contains(&limiter.stats().refunded), "{:?}", limiter.stats());
        limiter.set_mode("api", Mode::Off, None).await.unwrap();
        assert_eq!(limiter.state("api", &ann()).await.unwrap().remaining(), Some(100));
    });
}

#[test]
fn an_invalid_change_is_rejected_and_changes_nothing() {
    on_each(API, |limiter| async move {
        let long = "x".repeat(9_000);
        let (stranger, too_long) = (acme().with("ip", "1"), acme().with("user", long));
        let past = Some(UNIX_EPOCH + Duration::from_secs(1));
        for (rule, subject, quota, end, message) in [
            (
                "apis",
                &acme(),
                "9/day",
                None,
                r#"rule: there is no rule "apis"; did you mean "api"?"#,
            ),
            ("api", &stranger, "9/day", None, r#"subject: "ip" is not in the rule's key"#),
            (
                "api",
                &acme(),
                "9/fortnight",
                None,
                r#"limit "0": quota: "9/fortnight" is not a quota: "fortnight""#,
            ),
            ("api", &acme(), "0/day", None, r#"limit "0": quota: a count of 0"#),
            ("api", &too_long, "9/day", None, "subject: it and the limits take more than"),
            ("api", &acme(), "9/day", past, "expires_at: this instant is past"),
        ] {
            let rejected = limiter.set_override(rule, subject, [quota], end).await.unwrap_err();
            assert!(rejected.to_string().starts_with(message), "{rejected}");
        }
        for (limits, message) in
            [(vec![], "limits: 0 limits; write 1 to 64"), (vec!["9/day"; 3], r#"limit "2": "#)]
        {
            let rejected = limiter.set_override("api", &acme(), limits, None).await.unwrap_err();
            assert!(rejected.to_string().starts_with(message), "{rejected}");
        }
        let unknown =
            |error| matches!(error, ControlError::Refused(InvalidChange::UnknownRule { .. }));
        assert!(unknown(limiter.set_mode("apis", Mode::Off, None).await.unwrap_err()));
        assert!(unknown(limiter.reset_rule("apis").await.unwrap_err()));
        assert!(unknown(limiter.reset("apis", &ann()).await.unwrap_err()));
        assert!(unknown(limiter.state("apis", &ann()).await.unwrap_err()));
        let missing =
            |error| matches!(error, ControlError::MissingAttribute(name) if name == "user");
        assert!(missing(limiter.state("api", &acme()).await.unwrap_err()));
        assert!(missing(limiter.reset("api", &acme()).await.unwrap_err()));
        assert!(missing(limiter.charge("api", &acme(), 1).await.unwrap_err()));
        assert!(missing(limiter.refund("api", &acme(), 1).await.unwrap_err()));
        let uncounted = |error: ControlError| {
            let units = r#"no limit of the rule counts "bytes"; name one of its units, ["requests", "tokens"]"#;
            assert_eq!(error.to_string(), units);
        };
        let bytes = || spillgate::Cost::requests(1).and("bytes", 5);
        uncounted(limiter.charge("api", &ann(), bytes()).await.unwrap_err());
        uncounted(limiter.refund("api", &ann(), bytes()).await.unwrap_err());
        let not_set = |error| matches!(error, ControlError::NotSet { .. });
        assert!(not_set(limiter.remove_override("api", &acme()).await.unwrap_err()));
        assert!(not_set(limiter.clear_mode("api").await.unwrap_err()));
        assert!(unknown(limiter.remove_override("apis", &acme()).await.unwrap_err()));
        assert!(unknown(limiter.clear_mode("apis").await.unwrap_err()));
        assert!(limiter.overrides().is_empty());
        assert_eq!(capacity(&limiter, &ann()).await, Some(10));
    });
}

#[test]
fn a_value_that_names_no_single_subject_changes_none() {
    let login = "[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"5/day\"]";
    on_each(login, |limiter| async move {
        let unknown = Request::new().with("ip", "unknown");
        assert_eq!(limiter.check(&unknown).await.remaining(), Some(4));
        for value in ["203.0.113.0/24", "bad", ""] {
            let subject = Request::new().with("ip", value);
            let refused = |error: ControlError| {
                assert!(
                    matches!(error, ControlError::Refused(InvalidChange::NoSubject { .. })),
                    "{value}: {error}"
                );
            };
            refused(limiter.reset("login", &subject).await.unwrap_err());
            refused(limiter.state("login", &subject).await.unwrap_err());
            refused(limiter.charge("login", &subject, 1).await.unwrap_err());
            refused(limiter.refund("login", &subject, 1).await.unwrap_err());
        }
        assert!(limiter.audit().is_empty());
        assert_eq!(limiter.state("login", &unknown).await.unwrap().remaining(), Some(4));
        let address = Request::new().with("ip", "[2001:db8::7]:443");
        limiter.reset("login", &address).await.unwrap();
    });
}

#[test]
fn a_removal_that_finds_nothing_says_why() {
    let login = "[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"5/day\"]";
    on_each(login, |limiter| async move {
        let of = |address: &'static str| Request::new().with("ip", address);
        let (network, client) = (of("203.0.113.0/24"), of("203.0.113.10"));
        let removed = async |subject: &Request<'static>| {
            limiter.remove_override("login", subject).await.unwrap_err().to_string()
        };
        let none = removed(&client).await;
        assert!(
            none.starts_with("there is no such runtime override; list the overrides"),
            "{none}"
        );
        limiter.set_override("login", &network, ["block"], None).await.unwrap();
        let covered = removed(&client).await;
        assert!(
            covered.contains(r#"covers it: ip="203.0.113.0/24"; remove that one"#),
            "{covered}"
        );
        let other = removed(&of("198.51.100.7")).await;
        assert!(other.starts_with("there is no such runtime override"), "{other}");
        let stranger = removed(&Request::new().with("user", "ann")).await;
        assert!(stranger.contains(r#""user" is not in the rule's key"#), "{stranger}");
        limiter.remove_override("login", &network).await.unwrap();
        limiter.set_override("login", &Request::new(), ["block"], None).await.unwrap();
        let covered = removed(&client).await;
        assert!(covered.contains("covers it: the one without attributes"), "{covered}");
        let mode = limiter.clear_mode("login").await.unwrap_err().to_string();
        assert!(
            mode.contains("has no runtime mode; the policy file's, enforce, is in force"),
            "{mode}"
        );
    });
}

#[test]
fn a_change_that_no_longer_fits_the_policy_is_kept_and_reported() {
    on_each(API, |limiter| async move {
        limiter.set_override("api", &acme(), ["20/day"], None).await.unwrap();
        limiter.set_mode("api", Mode::Shadow, None).await.unwrap();
        let other = "[[rule]]\nname = \"apis\"\nkey = [\"tenant\"]\nlimits = [\"5/day\"]";
        limiter.set_policy(Policy::from_toml(other).unwrap());
        let why = limiter.overrides()[0].not_in_force().cloned();
        assert!(matches!(why, Some(InvalidChange::UnknownRule { .. })), "{why:?}");
        let gone = limiter.modes().pop().unwrap();
        assert_eq!(
            (gone.rule(), gone.written(), gone.runtime()),
            ("api", None, Some(Mode::Shadow))
        );
        limiter.clear_mode("api").await.unwrap();

        let other = "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"5/day\"]";
        limiter.set_policy(Policy::from_toml(other).unwrap());
        let why = limiter.overrides()[0].not_in_force().unwrap().to_string();
        assert!(why.starts_with(r#"subject: "tenant" is not in the rule's key"#), "{why}");
        assert_eq!(capacity(&limiter, &ann()).await, Some(5));

        limiter.set_policy(Policy::from_toml(API).unwrap());
        assert_eq!(limiter.overrides()[0].not_in_force(), None);
        assert_eq!(capacity(&limiter, &ann()).await, Some(20));
    });
}

#[test]
fn overrides_and_modes_end_when_they_expire() {
    on_each(API, |limiter| async move {
        let soon = SystemTime::UNIX_EPOCH + Duration::from_micros(Clock::System.now_us() + 400_000);
        limiter.set_override("api", &acme(), ["20/day"], Some(soon)).await.unwrap();
        limiter.set_mode("watched", Mode::Off, Some(soon)).await.unwrap();
        assert_eq!(limiter.overrides()[0].expires_at(), Some(soon));
        assert_eq!(capacity(&limiter, &ann()).await, Some(20));
        until("the override has ended", async || capacity(&limiter, &ann()).await == Some(10))
            .await;
        until("the mode has ended", async || limiter.modes()[1].in_force() == Mode::Shadow).await;
        assert!(limiter.overrides().is_empty());
    });
}

#[test]
fn in_memory_a_mode_expires_without_a_runtime_too() {
    let (clock, minute) = (ManualClock::new(), Duration::from_secs(60));
    let in_a_minute = || Some(UNIX_EPOCH + clock.now() + minute);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let policy = Policy::from_toml(API).unwrap();
    let builder = Limiter::builder().policy(policy).manual_clock(&clock);
    let limiter = runtime.block_on(builder.build()).unwrap();
    runtime.block_on(limiter.set_mode("api", Mode::Off, in_a_minute())).unwrap();
    drop(runtime);
    let all = ann().costing(11);
    let is_off = || limiter.check_now(&all).expect("the state is in memory").allowed();
    assert!(is_off());
    clock.advance(minute);
    assert!(!is_off(), "the runtime that set it has ended");

    let mut call = pin!(limiter.set_mode("api", Mode::Off, in_a_minute()));
    let Poll::Ready(set) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("in memory it waits for nothing");
    };
    set.unwrap();
    assert!(is_off());
    clock.advance(minute);
    assert!(!is_off(), "it was set without a runtime");
}

/// Waits until `holds` returns true.
pub(crate) async fn until(condition: &str, holds: impl AsyncFn() -> bool) {
    for _ in 0..1_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("still false after ten seconds: {condition}");
}
