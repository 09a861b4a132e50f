//! Changes that operators make while the store is down: in force at once at the instance asked, and
//! everywhere once the store is back.

use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use spillgate::control::ControlError;
use spillgate::testing::ManualClock;
use spillgate::{LimitSpec, Limiter, LimiterBuilder, Mode, Policy, Reason, Request};
use spillgate_core::time::{Clock, monotonic_us};
use spillgate_testkit::RedisServer;

use super::{API, acme, ann, capacity, until};
use crate::failure::evidence;

/// How the store goes away.
#[derive(Clone, Copy, Debug)]
enum Outage {
    /// It is killed, and comes back empty.
    Gone,
    /// It is paused: connections stay open, and no reply comes.
    Hung,
}

impl Outage {
    const ALL: [Outage; 2] = [Outage::Gone, Outage::Hung];

    fn begin(self, server: &mut RedisServer) {
        match self {
            Outage::Gone => server.kill(),
            Outage::Hung => server.pause(),
        }
    }

    fn end(self, server: &mut RedisServer) {
        match self {
            Outage::Gone => server.restart(),
            Outage::Hung => server.resume(),
        }
    }
}

fn on(server: &RedisServer) -> LimiterBuilder {
    let login = "[[rule]]\nname = \"login\"\nkey = [\"ip\"]\nlimits = [\"1/day\"]";
    Limiter::builder()
        .policy(Policy::from_toml(&format!("{API}\n{login}")).unwrap())
        .redis(server.url())
        .timeout(Duration::from_millis(100))
}

/// Once, a Cluster without its map had no shards, so the change counted as saved at once.
#[test]
fn a_change_is_not_saved_while_no_node_of_a_cluster_answers() {
    run(async {
        let builder = Limiter::builder().policy(Policy::from_toml(API).unwrap());
        let limiter = builder.cluster(["redis://127.0.0.1:1"]).build().await.unwrap();
        let report = limiter.set_mode("api", Mode::Off, None).await.unwrap();
        assert!(!report.is_saved(), "{report:?}");
        // Another instance may have set it.
        assert!(limiter.clear_mode("watched").await.is_ok());
        let _ = limiter.set_override("api", &acme(), ["20/day"], None).await.unwrap();
        assert!(!limiter.overrides()[0].is_saved());
    });
}

async fn start(server: &RedisServer) -> Limiter {
    on(server).build().await.unwrap()
}

fn run(body: impl Future<Output = ()>) {
    tokio::runtime::Runtime::new().unwrap().block_on(body);
}

async fn until_degraded(limiter: &Limiter) {
    until("the store is gone", async || limiter.peek(&ann()).await.degraded()).await;
}

/// Returns whether the rule `login` lets through a request that it can never allow.
async fn login_is_off(limiter: &Limiter) -> bool {
    limiter.check(&Request::new().with("ip", "192.0.2.1").costing(2)).await.allowed()
}

async fn acme_is_blocked(limiter: &Limiter) -> bool {
    limiter.check(&ann()).await.reason() == Some(Reason::Blocked)
}

#[test]
fn a_kill_switch_and_a_block_hold_here_at_once_and_everywhere_after_the_outage() {
    for outage in Outage::ALL {
        let mut server = RedisServer::start();
        run(async {
            let (one, other) = (start(&server).await, start(&server).await);
            outage.begin(&mut server);
            until_degraded(&one).await;
            until_degraded(&other).await;

            let set = one.set_mode("login", Mode::Off, None).await.unwrap();
            assert!(set.why_unsaved().is_some_and(|why| !why.is_empty()), "{outage:?}: {set:?}");
            assert!(login_is_off(&one).await && !login_is_off(&other).await, "{outage:?}");
            one.set_override("api", &acme(), ["block"], None).await.unwrap();
            assert!(!one.overrides()[0].is_saved(), "{outage:?}");
            assert!(acme_is_blocked(&one).await && !acme_is_blocked(&other).await, "{outage:?}");

            outage.end(&mut server);
            let back_us = monotonic_us();
            until("the other has both", async || {
                login_is_off(&other).await && acme_is_blocked(&other).await
            })
            .await;
            let took = Duration::from_micros(monotonic_us() - back_us);
            println!("{outage:?}: everywhere {took:?} after the store is back");
            // One second is promised; the rest is for a machine with every core busy.
            let at_most = Duration::from_secs(if evidence() { 1 } else { 5 });
            assert!(took < at_most, "{outage:?}: {took:?}");
            until("it is saved", async || one.overrides()[0].is_saved()).await;
        });
    }
}

#[test]
fn a_change_is_in_force_before_a_hung_store_is_waited_for() {
    let mut server = RedisServer::start();
    run(async {
        let limiter = start(&server).await;
        Outage::Hung.begin(&mut server);
        let mut call = pin!(limiter.set_mode("api", Mode::Off, None));
        let first = std::future::poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        assert!(first.is_pending(), "it has asked the store");
        assert_eq!(limiter.modes()[0].in_force(), Mode::Off);
        Outage::Hung.end(&mut server);
        call.await.unwrap();
    });
}

#[test]
fn a_change_whose_caller_leaves_during_the_outage_is_passed_on_all_the_same() {
    let mut server = RedisServer::start();
    run(async {
        let (one, other) = (start(&server).await, start(&server).await);
        Outage::Hung.begin(&mut server);
        {
            let mut call = pin!(one.set_mode("api", Mode::Off, None));
            std::future::poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_pending()))
                .await;
        }
        Outage::Hung.end(&mut server);
        until("the other has it", async || other.modes()[0].in_force() == Mode::Off).await;
    });
}

#[test]
fn of_conflicting_changes_made_during_an_outage_the_newest_holds_everywhere() {
    for outage in Outage::ALL {
        let mut server = RedisServer::start();
        run(async {
            let limiters = [start(&server).await, start(&server).await];
            outage.begin(&mut server);
            for limiter in &limiters {
                until_degraded(limiter).await;
            }
            let quotas = [20, 30];
            for (limiter, quota) in limiters.iter().zip(quotas) {
                let limits = [format!("{quota}/day")];
                limiter.set_override("api", &acme(), limits, None).await.unwrap();
            }
            for (limiter, mode) in limiters.iter().zip([Mode::Shadow, Mode::Off]) {
                limiter.set_mode("watched", mode, None).await.unwrap();
            }
            for (limiter, quota) in limiters.iter().zip(quotas) {
                let own = [LimitSpec::new(format!("{quota}/day"))];
                assert_eq!(limiter.overrides()[0].limits(), own, "{outage:?}");
            }
            // Two instances know the store's time to within a call's latency, so the first of two
            // calls may have the newest stamp.
            let written_at = |limiter: &Limiter| limiter.overrides()[0].written_at();
            let newest = limiters.each_ref().map(written_at).into_iter().zip(quotas).max();
            let (_, expected) = newest.unwrap();

            outage.end(&mut server);
            for limiter in &limiters {
                until("both have the newest limit", async || {
                    capacity(limiter, &ann()).await == Some(expected)
                })
                .await;
            }
            let mode = |limiter: &Limiter| limiter.modes()[1].runtime();
            until("both have one mode", async || mode(&limiters[0]) == mode(&limiters[1])).await;
            let late = start(&server).await;
            until("a late instance has all", async || {
                capacity(&late, &ann()).await == Some(expected) && mode(&late) == mode(&limiters[0])
            })
            .await;
        });
    }
}

/// The clock of one instance stands still, in 1970. It stamps by the store's time as last seen.
#[test]
fn a_later_change_wins_over_earlier_ones_whatever_the_clock_of_the_instance_shows() {
    let mut server = RedisServer::start();
    run(async {
        let one = start(&server).await;
        let clock = ManualClock::new();
        clock.set(Duration::from_secs(1));
        let wrong = on(&server).manual_clock(&clock).build().await.unwrap();
        one.set_mode("login", Mode::Shadow, None).await.unwrap();
        until("the change is known", async || wrong.modes()[2].runtime().is_some()).await;
        Outage::Gone.begin(&mut server);
        until_degraded(&wrong).await;
        wrong.set_mode("login", Mode::Off, None).await.unwrap();
        wrong.set_override("api", &acme(), ["block"], None).await.unwrap();
        let hour = Duration::from_secs(3_600);
        let at = wrong.overrides()[0].written_at();
        let now = SystemTime::UNIX_EPOCH + Duration::from_micros(Clock::System.now_us());
        assert!(at + hour > now && at < now + hour, "not of 1970: {at:?}");
        Outage::Gone.end(&mut server);
        until("the kill switch wins", async || one.modes()[2].in_force() == Mode::Off).await;
        assert_eq!(wrong.modes()[2].in_force(), Mode::Off);
    });
}

#[test]
fn a_removal_during_an_outage_holds_at_once_and_everywhere_after_it() {
    let mut server = RedisServer::start();
    run(async {
        let (one, other) = (start(&server).await, start(&server).await);
        one.set_override("api", &acme(), ["block"], None).await.unwrap();
        until("both know the block", async || acme_is_blocked(&other).await).await;
        Outage::Gone.begin(&mut server);
        until_degraded(&other).await;
        other.remove_override("api", &acme()).await.unwrap();
        assert!(!acme_is_blocked(&other).await && acme_is_blocked(&one).await);
        let gone = other.remove_override("api", &acme()).await;
        assert!(gone.is_ok(), "the store cannot tell whether others have set it anew: {gone:?}");
        Outage::Gone.end(&mut server);
        until("one has removed it", async || !acme_is_blocked(&one).await).await;
        let gone = one.remove_override("api", &acme()).await.unwrap_err();
        assert!(matches!(gone, ControlError::NotSet { .. }), "{gone}");
    });
}

#[test]
fn a_removal_during_an_outage_finds_an_override_that_was_set_under_another_type() {
    let mut server = RedisServer::start();
    run(async {
        let rule = "[[rule]]\nname = \"login\"\nkey = [\"client\"]\nlimits = [\"5/day\"]\n";
        let limiter = on(&server).policy(Policy::from_toml(rule).unwrap()).build().await.unwrap();
        let client = Request::new().with("client", "2001:DB8::7");
        limiter.set_override("login", &client, ["block"], None).await.unwrap();
        let typed = format!("{rule}[attribute.client]\ntype = \"ip\"");
        limiter.set_policy(Policy::from_toml(&typed).unwrap());
        Outage::Gone.begin(&mut server);
        let other = Request::new().with("client", "192.0.2.1");
        until("the store is gone", async || limiter.peek(&other).await.degraded()).await;
        limiter.remove_override("login", &client).await.unwrap();
        assert!(limiter.overrides().is_empty(), "{:?}", limiter.overrides());
    });
}

#[test]
fn an_instance_that_never_saw_the_store_sets_and_removes_changes_too() {
    let mut server = RedisServer::start();
    run(async {
        let one = start(&server).await;
        one.set_mode("login", Mode::Off, None).await.unwrap();
        Outage::Gone.begin(&mut server);
        let alone = start(&server).await;
        assert_eq!(alone.modes()[2].runtime(), None, "it cannot know");
        alone.clear_mode("login").await.unwrap();
        alone.set_override("api", &acme(), ["block"], None).await.unwrap();
        assert!(acme_is_blocked(&alone).await);
        Outage::Gone.end(&mut server);
        until("one has the block", async || acme_is_blocked(&one).await).await;
        until("one has removed the mode", async || one.modes()[2].runtime().is_none()).await;
    });
}

/// Its clock is a day ahead. A stamp from then would make every later change of the fleet one of tomorrow.
#[test]
fn an_instance_whose_clock_is_ahead_gives_its_changes_the_time_of_the_store() {
    let mut server = RedisServer::start();
    run(async {
        let one = start(&server).await;
        Outage::Gone.begin(&mut server);
        let now = Duration::from_micros(Clock::System.now_us());
        let clock = ManualClock::new();
        clock.set(now + Duration::from_secs(86_400));
        let ahead = on(&server).manual_clock(&clock).build().await.unwrap();
        ahead.clear_mode("login").await.unwrap();
        ahead.set_override("api", &acme(), ["block"], None).await.unwrap();
        Outage::Gone.end(&mut server);
        until("one has the block", async || acme_is_blocked(&one).await).await;
        let hour = SystemTime::UNIX_EPOCH + now + Duration::from_secs(3_600);
        assert!(one.overrides()[0].written_at() < hour, "{:?}", one.overrides());
        one.remove_override("api", &acme()).await.unwrap();
        until("the audit has all", async || one.audit_log(None, 10).await.records.len() >= 3).await;
        let log = one.audit_log(None, 10).await.records;
        assert_eq!(log.len(), 3, "{log:?}");
        assert!(log.iter().all(|record| record.at() < hour), "{log:?}");
    });
}

#[test]
fn during_an_outage_earlier_changes_hold_and_the_state_of_a_subject_is_unknown() {
    let mut server = RedisServer::start();
    run(async {
        let limiter = start(&server).await;
        limiter.set_override("api", &acme(), ["20/day"], None).await.unwrap();
        Outage::Gone.begin(&mut server);
        until_degraded(&limiter).await;
        assert_eq!(capacity(&limiter, &ann()).await, Some(20));
        assert_eq!(limiter.overrides().len(), 1);
        let error = limiter.state("api", &ann()).await.unwrap_err();
        assert!(matches!(error, ControlError::Store(_)), "{error}");
    });
}
