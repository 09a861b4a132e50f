//! The history of a fleet: what all instances decided, minute by minute.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use spillgate::history::FleetHistory;
use spillgate::testing::ManualClock;
use spillgate::{Limiter, LimiterBuilder, Policy, Request};
use spillgate_testkit::RedisServer;
use tokio::runtime::Runtime;

use crate::control::until;

const POLICY: &str = r#"
    [[rule]]
    name = "api"
    key = ["tenant"]
    limits = ["2/day"]

    [[rule]]
    name = "watched"
    mode = "shadow"
    match = { path = "/watched" }
    key = ["tenant"]
    limits = ["1/day"]
"#;
const MINUTE: Duration = Duration::from_secs(60);

fn builder(policy: &str, clock: &ManualClock, server: &RedisServer) -> LimiterBuilder {
    let policy = Policy::from_toml(policy).unwrap();
    Limiter::builder().policy(policy).manual_clock(clock).redis(server.url())
}

async fn on(server: &RedisServer, clock: &ManualClock) -> Limiter {
    builder(POLICY, clock, server).build().await.unwrap()
}

async fn ask(limiter: &Limiter, tenant: &str, times: usize) {
    for _ in 0..times {
        let request = Request::new().with("tenant", tenant.to_owned()).with("path", "/watched");
        let _ = limiter.check(&request).await;
    }
}

fn now(clock: &ManualClock) -> SystemTime {
    UNIX_EPOCH + clock.now()
}

fn forever() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1 << 40)
}

async fn history(limiter: &Limiter, rule: Option<&str>) -> FleetHistory {
    limiter.fleet_history(UNIX_EPOCH, forever(), rule).await.unwrap().unwrap()
}

/// Returns each minute, counted from the beginning, with its instances, and allowed and denied requests.
fn numbers(history: &FleetHistory, began: SystemTime) -> Vec<(u64, u32, u32, u32)> {
    let minutes = history.minutes.iter();
    let at = |begin: SystemTime| begin.duration_since(began).unwrap().as_secs() / 60;
    minutes.map(|it| (at(it.begin), it.instances, it.allowed, it.denied)).collect()
}

/// Moves the clock on by minutes that nothing is decided in, and waits until the history has them.
async fn go_on(
    minutes: u32,
    clock: &ManualClock,
    limiter: &Limiter,
    last: (u64, u32, u32, u32),
    began: SystemTime,
) {
    clock.advance(minutes * MINUTE);
    until("the minute is written", async || {
        // What was read is used again for a few seconds.
        clock.advance(Duration::from_secs(6));
        numbers(&history(limiter, None).await, began).contains(&last)
    })
    .await;
}

#[test]
fn two_instances_record_their_minutes_together_and_they_survive_a_restart_of_both() {
    let server = RedisServer::start();
    Runtime::new().unwrap().block_on(async {
        let clock = ManualClock::new();
        let began = now(&clock);
        let (one, other) = (on(&server, &clock).await, on(&server, &clock).await);
        ask(&one, "acme", 3).await;
        ask(&other, "acme", 4).await;
        ask(&other, "bob", 1).await;
        assert!(history(&one, None).await.minutes.is_empty(), "the minute is not over");
        one.note_event("reload", "policy file reloaded");
        go_on(2, &clock, &one, (0, 2, 3, 5), began).await;
        ask(&other, "carl", 1).await;
        drop((one, other));

        let restarted = on(&server, &clock).await;
        let whole = history(&restarted, None).await;
        assert_eq!(numbers(&whole, began)[0], (0, 2, 3, 5));
        let rules: Vec<_> = whole
            .rules
            .iter()
            .map(|it| (it.rule.as_deref().unwrap(), it.allowed, it.denied, it.would_deny))
            .collect();
        // A denied request is no decision of a shadow rule.
        assert_eq!(rules, [("api", 3, 5, 0), ("watched", 2, 0, 1)]);
        let first = &whole.minutes[0];
        assert_eq!((first.sources.iter().sum::<u32>(), first.times.count()), (11, 8));
        let api = history(&restarted, Some("api")).await;
        assert_eq!((api.minutes[0].decisions.allowed(), api.minutes[0].decisions.denied()), (3, 5));
        let [event] = &whole.events[..] else { panic!("{:?}", whole.events) };
        let name = restarted.fleet().await.unwrap()[0].report.name.clone();
        assert_eq!((&event.instance, &*event.kind), (&name, "reload"));
        assert_eq!(event.text, "policy file reloaded");
        let unknown = history(&restarted, Some("no")).await;
        assert_eq!(unknown.minutes[0].decisions.all(), 0);
        let none = restarted.fleet_history(UNIX_EPOCH, began, None).await.unwrap().unwrap();
        assert!(none.minutes.is_empty());
    });
}

#[test]
fn the_minutes_of_an_outage_are_added_when_the_store_is_back() {
    let server = RedisServer::start();
    Runtime::new().unwrap().block_on(async {
        let clock = ManualClock::new();
        let began = now(&clock);
        let limiter = on(&server, &clock).await;
        ask(&limiter, "acme", 2).await;
        server.pause();
        for _ in 0..3 {
            clock.advance(MINUTE);
            tokio::time::sleep(Duration::from_millis(700)).await;
            ask(&limiter, "acme", 3).await;
        }
        clock.advance(2 * MINUTE);
        server.resume();
        let sum = async || {
            clock.advance(Duration::from_secs(6));
            // While the connection is made anew there is no answer.
            let read = limiter.fleet_history(UNIX_EPOCH, forever(), None).await.ok().flatten();
            let minutes = numbers(&read.unwrap_or_default(), began);
            minutes.iter().map(|it| it.2 + it.3).sum::<u32>()
        };
        until("all minutes are there", async || sum().await == 11).await;
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert_eq!(sum().await, 11);
        }
    });
}

#[test]
fn rules_beyond_64_of_an_hour_are_counted_together_and_nothing_is_lost() {
    let rule = |at: usize| {
        format!(
            "[[rule]]\nname = \"r{at}\"\nmatch = {{ path = \"/{at}\" }}\nkey = []\nlimits = [\"9/day\"]\n"
        )
    };
    let policy: String = (0..70).map(rule).collect();
    let server = RedisServer::start();
    Runtime::new().unwrap().block_on(async {
        let clock = ManualClock::new();
        let limiter = builder(&policy, &clock, &server).build().await.unwrap();
        let paths: Vec<String> = (0..70).map(|at| format!("/{at}")).collect();
        for (at, path) in paths.iter().enumerate() {
            // The last are busier than most, and the first denies.
            for _ in 0..if at == 0 { 10 } else { 1 + at / 60 } {
                let _ = limiter.check(&Request::new().with("path", path.as_str())).await;
            }
        }
        go_on(2, &clock, &limiter, (0, 1, 88, 1), UNIX_EPOCH + clock.now()).await;
        let found = history(&limiter, None).await.rules;
        let of = |name: Option<&str>| {
            let found = found.iter().find(|it| it.rule.as_deref() == name);
            found.map(|it| it.allowed + it.denied)
        };
        // Sixteen places are kept for rules that deny.
        assert_eq!((found.len(), of(Some("r0")), of(Some("r69"))), (49, Some(10), Some(2)));
        assert_eq!(of(None), Some(22));
        let (own, none) =
            (history(&limiter, Some("r0")).await, history(&limiter, Some("r59")).await);
        assert_eq!(own.rule_since, None);
        assert!(none.rule_since.is_some(), "its decisions are among the others of this hour");
    });
}

#[test]
fn a_reload_that_names_limits_anew_loses_no_decision() {
    let server = RedisServer::start();
    Runtime::new().unwrap().block_on(async {
        let clock = ManualClock::new();
        let began = now(&clock);
        let limiter = on(&server, &clock).await;
        ask(&limiter, "acme", 7).await;
        for name in ["first", "second"] {
            let limits = format!("limits = [{{ quota = \"2/day\", name = \"{name}\" }}]");
            let policy = POLICY.replace("limits = [\"2/day\"]", &limits);
            limiter.set_policy(Policy::from_toml(&policy).unwrap());
            ask(&limiter, "bob", 9).await;
        }
        limiter.close().await;
        clock.advance(3 * MINUTE);
        let found = history(&on(&server, &clock).await, None).await;
        let (_, _, allowed, denied) = numbers(&found, began)[0];
        let api = found.rules.iter().find(|it| it.rule.as_deref() == Some("api")).unwrap();
        assert_eq!((allowed + denied, api.allowed + api.denied), (25, 25), "{:?}", found.rules);
    });
}

#[test]
fn a_time_that_is_not_recorded_has_an_empty_history() {
    let server = RedisServer::start();
    Runtime::new().unwrap().block_on(async {
        let clock = ManualClock::new();
        let limiter = on(&server, &clock).await;
        ask(&limiter, "acme", 1).await;
        go_on(2, &clock, &limiter, (0, 1, 1, 0), UNIX_EPOCH + clock.now()).await;
        let later = forever() + MINUTE;
        for (since, until) in [(forever(), later), (later, UNIX_EPOCH), (UNIX_EPOCH, UNIX_EPOCH)] {
            let found = limiter.fleet_history(since, until, None).await.unwrap().unwrap();
            assert!(found.minutes.is_empty() && found.rules.is_empty());
        }
    });
}

#[test]
fn a_store_that_lost_its_data_takes_the_next_minutes() {
    let server = RedisServer::start();
    Runtime::new().unwrap().block_on(async {
        let clock = ManualClock::new();
        let began = now(&clock);
        let limiter = on(&server, &clock).await;
        ask(&limiter, "acme", 1).await;
        go_on(2, &clock, &limiter, (0, 1, 1, 0), began).await;
        server.command(&["FLUSHALL"]);
        ask(&limiter, "bob", 2).await;
        clock.advance(2 * MINUTE);
        until("the next minutes are written", async || {
            clock.advance(Duration::from_secs(6));
            let minutes = numbers(&history(&limiter, None).await, began);
            minutes.iter().map(|it| it.2).sum::<u32>() == 2 && minutes.iter().all(|it| it.0 > 0)
        })
        .await;
    });
}

#[test]
fn an_instance_that_is_closed_records_the_minute_that_is_not_over() {
    let server = RedisServer::start();
    Runtime::new().unwrap().block_on(async {
        let clock = ManualClock::new();
        let began = now(&clock);
        let limiter = builder(POLICY, &clock, &server).denials(true).build().await.unwrap();
        ask(&limiter, "acme", 5).await;
        limiter.note_event("stop", "this instance stops");
        limiter.close().await;
        drop(limiter);
        clock.advance(3 * MINUTE);
        let next = builder(POLICY, &clock, &server).denials(true).build().await.unwrap();
        let found = history(&next, None).await;
        assert_eq!((numbers(&found, began), found.events.len()), (vec![(0, 1, 2, 3)], 1));
        let denials = next.denials_of(None, &Request::new().with("tenant", "acme"), began).await;
        assert_eq!(denials.unwrap().subjects[0].denied, 3);
    });
}
