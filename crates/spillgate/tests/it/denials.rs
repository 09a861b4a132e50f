//! The record of denials: which subject was denied by which limit, and in which minutes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use spillgate::denials::Denials;
use spillgate::testing::ManualClock;
use spillgate::{Limiter, LimiterBuilder, Mode, Policy, Request};
use spillgate_testkit::{RedisServer, Reply};
use tokio::runtime::Runtime;

use crate::control::until;

const POLICY: &str = r#"
    [[rule]]
    name = "api"
    key = ["tenant"]
    limits = [{ quota = "1/day", name = "daily" }]

    [[rule]]
    name = "watched"
    mode = "shadow"
    key = ["tenant"]
    limits = ["1/day"]
"#;
const MINUTE: Duration = Duration::from_secs(60);

fn builder(clock: &ManualClock) -> LimiterBuilder {
    Limiter::builder().policy(Policy::from_toml(POLICY).unwrap()).manual_clock(clock).denials(true)
}

async fn on(server: &RedisServer, clock: &ManualClock) -> Limiter {
    builder(clock).redis(server.url()).build().await.unwrap()
}

fn tenant(name: &str) -> Request<'_> {
    Request::new().with("tenant", name)
}

async fn deny(limiter: &Limiter, name: &str, times: u32) {
    for _ in 0..times {
        assert!(!limiter.check(&tenant(name).costing(2)).await.allowed());
    }
}

fn now(clock: &ManualClock) -> SystemTime {
    UNIX_EPOCH + clock.now()
}

async fn found(limiter: &Limiter, name: &str) -> Denials {
    limiter.denials_of(None, &tenant(name), UNIX_EPOCH).await.unwrap()
}

/// Returns the denials of one tenant and the minutes in which they were, counted from the beginning.
fn numbers(denials: &Denials, began: SystemTime) -> Option<(u64, Vec<u64>)> {
    let [subject] = &denials.subjects[..] else { return None };
    let minutes = subject.minutes.iter();
    let minutes = minutes.map(|at| at.duration_since(began).unwrap().as_secs() / 60);
    Some((subject.denied, minutes.collect()))
}

#[test]
fn two_instances_record_one_subject_together_and_it_survives_a_restart_of_both() {
    let server = RedisServer::start();
    Runtime::new().unwrap().block_on(async {
        let clock = ManualClock::new();
        let began = now(&clock);
        let (one, other) = (on(&server, &clock).await, on(&server, &clock).await);
        deny(&one, "acme", 3).await;
        deny(&other, "acme", 4).await;
        assert!(found(&one, "acme").await.subjects.is_empty(), "the minute is not over");
        clock.advance(40 * MINUTE);
        until("both have written", async || {
            numbers(&found(&one, "acme").await, began) == Some((7, vec![0]))
        })
        .await;
        deny(&other, "acme", 1).await;
        clock.advance(2 * MINUTE);
        until("another minute", async || {
            numbers(&found(&one, "acme").await, began) == Some((8, vec![0, 40]))
        })
        .await;
        drop((one, other));

        let restarted = on(&server, &clock).await;
        let denials = found(&restarted, "acme").await;
        assert_eq!(numbers(&denials, began), Some((8, vec![0, 40])));
        let acme = &denials.subjects[0];
        assert_eq!(
            (&*acme.rule, &*acme.limit, acme.reason.as_str()),
            ("api", "daily", "cost-exceeds-limit")
        );
        assert_eq!(acme.attributes, [("tenant".to_owned(), b"acme".to_vec())]);
        let later = began + 40 * MINUTE;
        let denials = restarted.denials_of(Some("api"), &tenant("acme"), later).await.unwrap();
        assert_eq!(denials.subjects[0].minutes, [later]);
        assert!(restarted.denials_of(Some("no"), &tenant("acme"), later).await.is_err());
        assert!(restarted.denials_of(None, &Request::new(), later).await.is_err());
        assert!(found(&restarted, "bob").await.subjects.is_empty());
    });
}

/// Few decisions are made here, so each of them is sampled and the estimates are exact.
#[test]
fn allowed_requests_of_denied_minutes_are_added_up_by_hour_over_all_instances() {
    let server = RedisServer::start();
    Runtime::new().unwrap().block_on(async {
        let policy = "[[rule]]\nname = 'api'\nkey = ['tenant']\nlimits = ['1000/day', '100/hour']";
        let policy = || Policy::from_toml(policy).unwrap();
        let clock = ManualClock::new();
        clock.set(Duration::from_secs(clock.now().as_secs() / 3_600 * 3_600 + 58 * 60));
        let began = now(&clock);
        let on = async |top| {
            let builder = builder(&clock).policy(policy()).redis(server.url()).top(top);
            builder.build().await.unwrap()
        };
        let (one, other) = (on(true).await, on(true).await);
        // The last minute is in the next hour. In the middle one nothing is denied.
        for minute in 0..3 {
            for limiter in [&one, &one, &other] {
                assert!(limiter.check(&tenant("acme")).await.allowed());
            }
            for limiter in [&one, &other] {
                let cost = if minute == 1 { 1 } else { 101 };
                let decision = limiter.check(&tenant("acme").costing(cost)).await;
                assert_eq!(decision.allowed(), minute == 1);
            }
            clock.advance(MINUTE);
        }
        clock.advance(MINUTE);
        let shown = async |limiter: &Limiter| {
            let found = found(limiter, "acme").await;
            assert!(found.subjects.iter().all(|it| it.limit == "1"), "the day's limit denied none");
            found.subjects.first().map(|it| {
                let hours = it.hours.iter().map(|hour| (hour.begin, hour.denied, hour.allowed));
                (it.denied, it.allowed, hours.collect::<Vec<_>>())
            })
        };
        let first = (began - 58 * MINUTE, 2, Some(3));
        let second = |denied, allowed| (began + 2 * MINUTE, denied, allowed);
        let expected = Some((4, Some(6), vec![first, second(2, Some(3))]));
        until("all is written", async || shown(&one).await == expected).await;

        let unsampled = on(false).await;
        assert!(!unsampled.check(&tenant("acme").costing(101)).await.allowed());
        clock.advance(2 * MINUTE);
        let expected = Some((5, None, vec![first, second(3, None)]));
        until("an unknown count", async || shown(&one).await == expected).await;
    });
}

/// While the store hangs, calls stay unanswered but are executed later, so minutes are sent more than once.
#[test]
fn the_minutes_of_an_outage_are_recorded_once() {
    let server = RedisServer::start();
    Runtime::new().unwrap().block_on(async {
        let clock = ManualClock::new();
        let began = now(&clock);
        let limiter = on(&server, &clock).await;
        deny(&limiter, "acme", 2).await;
        server.pause();
        for _ in 0..4 {
            clock.advance(MINUTE);
            // Beats and minutes are sent meanwhile, and fail after a second.
            tokio::time::sleep(Duration::from_millis(700)).await;
            deny(&limiter, "acme", 3).await;
        }
        clock.advance(2 * MINUTE);
        server.resume();
        let all = Some((14, vec![0, 1, 2, 3, 4]));
        until("all is written", async || {
            let denials = limiter.denials_of(None, &tenant("acme"), UNIX_EPOCH).await;
            denials.is_ok_and(|denials| numbers(&denials, began) == all)
        })
        .await;
        deny(&limiter, "bob", 1).await;
        clock.advance(2 * MINUTE);
        until("a later minute", async || !found(&limiter, "bob").await.subjects.is_empty()).await;
        assert_eq!(numbers(&found(&limiter, "acme").await, began), all);
        assert_eq!(limiter.stats().denial_minutes_dropped, 0);
    });
}

#[test]
fn the_script_adds_a_part_once_and_keeps_the_bound_of_an_hour() {
    let server = RedisServer::start();
    let add = |part: &str, minute: &str, subjects: &[[&str; 5]]| {
        let script = include_str!("../../../spillgate-redis/src/lua/denials.lua");
        let head = ["EVAL", script, "1", "hour", "i1", part, minute, "3", "60000", "5"];
        let arguments: Vec<&str> = head.iter().chain(subjects.iter().flatten()).copied().collect();
        server.command(&arguments).integer()
    };
    let get = |field: &str| match server.command(&["HGET", "hour", field]) {
        Reply::Bulk(value) => Some(value),
        Reply::Nil => None,
        other => panic!("{other:?}"),
    };
    let value = |denied: u32, allowed: u32, late: u32, early: u32| {
        let words = [denied, allowed, late, early].map(u32::to_be_bytes);
        Some([words.as_flattened(), &[2], b"sealed"].concat())
    };
    let first = ["aaaaaaaa", "4", "300", "2", "sealed"];
    assert_eq!(add("7", "3", &[first]), 1);
    assert_eq!(add("7", "3", &[first]), 0, "the reply was lost");
    assert_eq!(get("aaaaaaaa"), value(4, 300, 0, 1 << 3));
    assert_eq!(add("8", "59", &[["aaaaaaaa", "4294967295", "7", "2", "sealed"]]), 1);
    assert_eq!(get("aaaaaaaa"), value(u32::MAX, 307, 1 << 29, 1 << 3));
    let (unknown, beyond) = (u32::MAX.to_string(), ["bbbbbbbb", "1", "0", "2", "sealed"]);
    assert_eq!(add("9", "59", &[["aaaaaaaa", "1", &unknown, "2", "sealed"], beyond]), 1);
    assert_eq!(add("10", "59", &[["aaaaaaaa", "0", "9", "2", "sealed"]]), 1);
    assert_eq!(get("aaaaaaaa"), value(u32::MAX, u32::MAX, 1 << 29, 1 << 3), "it stays unknown");
    assert_eq!(get("bbbbbbbb"), None, "three fields are the most");
    assert_eq!(get("others"), Some(b"21".to_vec()));
    assert!((1..=60_000).contains(&server.command(&["PTTL", "hour"]).integer()));
}

#[test]
fn the_store_has_no_value_in_clear() {
    let server = RedisServer::start();
    Runtime::new().unwrap().block_on(async {
        let clock = ManualClock::new();
        let hour = clock.now().as_secs() / 3_600;
        let limiter = on(&server, &clock).await;
        deny(&limiter, "canary-4711", 1).await;
        clock.advance(2 * MINUTE);
        until("it is written", async || {
            let found = limiter.denials_like("CANARY", UNIX_EPOCH).await.unwrap();
            clock.advance(Duration::from_secs(30));
            found.unread_hours == 0 && found.subjects.len() == 1
        })
        .await;
        let key = format!("sg1:{{fleet:default}}:d:{hour}");
        let Reply::Array(values) = server.command(&["HGETALL", &key]) else { panic!("no hash") };
        assert_eq!(values.len(), 4, "the subject and the instance");
        let all = format!("{values:?}");
        let bytes: Vec<u8> = values
            .into_iter()
            .flat_map(|value| match value {
                Reply::Bulk(bytes) => bytes,
                other => panic!("{other:?}"),
            })
            .collect();
        for clear in ["canary", "tenant", "api", "daily"] {
            let is_clear = bytes.windows(clear.len()).any(|part| part == clear.as_bytes());
            assert!(!is_clear && !all.contains(clear), "{clear} in {all}");
        }
        let ms = server.command(&["PTTL", &key]).integer();
        assert!((47 * 3_600_000..=48 * 3_600_000).contains(&ms), "{ms}");
    });
}

/// More subjects than one page has.
#[test]
fn a_part_of_a_value_finds_one_of_many_subjects() {
    let server = RedisServer::start();
    Runtime::new().unwrap().block_on(async {
        let rules: String = (0..40)
            .map(|rule| {
                format!("[[rule]]\nname = 'r{rule}'\ndomain = 'd{rule}'\nkey = ['tenant']\nlimits = ['1/day']\n")
            })
            .collect();
        let clock = ManualClock::new();
        let builder = builder(&clock).policy(Policy::from_toml(&rules).unwrap());
        let limiter = builder.redis(server.url()).build().await.unwrap();
        for rule in 0..40 {
            for user in 0..20 {
                let (domain, name) = (format!("d{rule}"), format!("user-{rule}-{user}."));
                let request = tenant(&name).in_domain(&domain).costing(2);
                assert!(!limiter.check(&request).await.allowed());
            }
        }
        clock.advance(2 * MINUTE);
        until("all are written", async || {
            let all = limiter.denials_like("", UNIX_EPOCH).await.unwrap();
            clock.advance(Duration::from_secs(30));
            all.unread_hours == 0 && all.subjects.len() + all.left_out == 800
        })
        .await;
        let found = limiter.denials_like("user-39-7.", UNIX_EPOCH).await.unwrap();
        assert_eq!((found.subjects.len(), found.left_out, found.others), (1, 0, 0));
        assert_eq!(found.subjects[0].rule, "r39");
    });
}

#[test]
fn memory_answers_for_this_process_and_only_enforced_rules_are_recorded() {
    Runtime::new().unwrap().block_on(async {
        let clock = ManualClock::new();
        let began = now(&clock);
        let limiter = builder(&clock).build().await.unwrap();
        assert!(limiter.check(&tenant("acme")).await.allowed());
        assert!(!limiter.check(&tenant("acme")).await.allowed());
        deny(&limiter, "acme", 2).await;
        let _ = limiter.set_mode("api", Mode::Shadow, None).await.unwrap();
        assert!(limiter.check(&tenant("acme")).await.allowed());
        clock.advance(MINUTE);
        let denials = found(&limiter, "acme").await;
        assert_eq!(numbers(&denials, began), Some((3, vec![0])));
        assert_eq!(denials.subjects[0].allowed, Some(1), "a limit in shadow allows nothing");
        assert!(denials.is_recording && denials.unread_hours == 0);
        let like = limiter.denials_like("CM", UNIX_EPOCH).await.unwrap();
        assert_eq!(numbers(&like, began), Some((3, vec![0])));
        // A reset of the rule gives its counters new keys.
        let _ = limiter.reset_rule("api").await.unwrap();
        assert_eq!(numbers(&found(&limiter, "acme").await, began), Some((3, vec![0])));

        let off = builder(&clock).denials(false).build().await.unwrap();
        deny(&off, "acme", 1).await;
        clock.advance(MINUTE);
        let denials = found(&off, "acme").await;
        assert!(!denials.is_recording && denials.subjects.is_empty());
    });
}
