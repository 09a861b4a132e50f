//! Waiting callers are admitted in order and at the exact rate. A cancelled wait costs nothing, and a wait
//! that cannot succeed is denied at once.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use spillgate::{Limit, Limiter, Mode, Policy, Reason, Request};
use spillgate_testkit::{Fault, FaultProxy, RedisServer};
use tokio::task::{JoinHandle, LocalSet, spawn_local, yield_now};
use tokio::time::{Instant, sleep};

use crate::support::clock::Clock;
use crate::support::storm;
use crate::support::world::runtime;

/// Caller, decision, and the time in ms since the scene began.
type Journal = Rc<RefCell<Vec<(usize, Option<Reason>, u128)>>>;

/// A limiter in memory whose clock follows that of the timers.
#[derive(Clone)]
struct Scene {
    limiter: Limiter,
    began: Instant,
    journal: Journal,
}

impl Scene {
    async fn new(limits: &str) -> Scene {
        Scene::under(&policy_of(limits)).await
    }

    async fn under(policy: &str) -> Scene {
        let clock = Clock::given(BEGIN_US);
        let policy = Policy::from_toml(policy).unwrap();
        let limiter =
            Limiter::builder().policy(policy).manual_clock(clock.manual()).build().await.unwrap();
        let began = Instant::now();
        spawn_local(async move {
            loop {
                clock.set(BEGIN_US + began.elapsed().as_micros() as u64);
                sleep(Duration::from_millis(1)).await;
            }
        });
        Scene { limiter, began, journal: Journal::default() }
    }

    /// Starts a caller that acquires from now on.
    fn waiter(&self, number: usize, cost: u64, within: Duration) -> JoinHandle<()> {
        self.waiter_for("ann", number, cost, within)
    }

    fn waiter_for(
        &self,
        user: &'static str,
        number: usize,
        cost: u64,
        within: Duration,
    ) -> JoinHandle<()> {
        let scene = self.clone();
        spawn_local(async move {
            let request = Request::new().with("user", user).costing(cost);
            let decision = scene.limiter.acquire(&request, within).await;
            let at_ms = scene.began.elapsed().as_millis();
            scene.journal.borrow_mut().push((number, decision.reason(), at_ms));
        })
    }

    fn journal(&self) -> Vec<(usize, Option<Reason>, u128)> {
        self.journal.borrow().clone()
    }
}

#[test]
fn ten_thousand_waiting_callers_of_one_subject_are_admitted_in_order_at_the_exact_rate() {
    in_virtual_time(async {
        let scene = Scene::new(r#"[{ quota = "100/second", burst = 1 }]"#).await;
        let waiters: Vec<_> = (0..10_000).map(|number| scene.waiter(number, 1, HOUR)).collect();
        for waiter in waiters {
            waiter.await.unwrap();
        }
        let journal = scene.journal();
        assert_eq!(journal.len(), 10_000);
        for (place, (number, verdict, at_ms)) in journal.into_iter().enumerate() {
            assert_eq!((number, verdict), (place, None));
            let due_ms = 10 * place as u128;
            // Timers and the scene's clock have a resolution of one millisecond.
            assert!((due_ms..=due_ms + 3).contains(&at_ms), "{place} left at {at_ms} ms");
        }
    });
}

#[test]
fn a_refund_by_a_request_admits_a_waiting_caller_at_once() {
    in_virtual_time(async {
        let scene = Scene::new("[\"unlimited\"]").await;
        let job = || Request::keyed("job", Limit::per_hour(1));
        assert!(scene.limiter.check(&job()).await.allowed());
        let limiter = scene.limiter.clone();
        let waiter = spawn_local(async move { limiter.acquire(&job(), 2 * HOUR).await });
        sleep(Duration::from_secs(1)).await;
        assert!(!waiter.is_finished());
        assert!(scene.limiter.check(&job().refunding()).await.allowed());
        assert!(waiter.await.unwrap().allowed());
        assert!(scene.began.elapsed() < Duration::from_secs(2), "{:?}", scene.began.elapsed());
    });
}

#[test]
fn a_cancelled_wait_frees_its_position_and_charges_nothing() {
    in_virtual_time(async {
        let scene = Scene::new(r#"[{ quota = "10/second", burst = 1 }]"#).await;
        let waiters: Vec<_> = (0..21).map(|number| scene.waiter(number, 1, HOUR)).collect();
        sleep(Duration::from_millis(50)).await;
        waiters.iter().skip(1).step_by(2).for_each(JoinHandle::abort);
        for waiter in waiters {
            let _ = waiter.await;
        }
        let journal = scene.journal();
        let order: Vec<usize> = journal.iter().map(|(number, ..)| *number).collect();
        assert_eq!(order, [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20]);
        let last_ms = journal.last().unwrap().2;
        assert!((1_000..1_005).contains(&last_ms), "ten tokens take a second: {last_ms} ms");
    });
}

#[test]
fn a_wait_that_cannot_succeed_is_denied_at_once() {
    in_virtual_time(async {
        let scene = Scene::new(r#"["2/second"]"#).await;
        let _waiters: Vec<_> = (0..8).map(|number| scene.waiter(number, 1, HOUR)).collect();
        yield_now().await;
        assert_eq!(scene.journal().len(), 2, "the other six wait, up to three seconds");
        let late = scene.limiter.acquire(&request(1), Duration::from_secs(3)).await;
        assert_eq!(
            (late.reason(), scene.began.elapsed()),
            (Some(Reason::LimitExceeded), Duration::ZERO)
        );
        assert_eq!(late.retry_after(), Some(Duration::from_millis(3_500)));
        let never = scene.limiter.acquire(&request(3), HOUR).await;
        assert_eq!(
            (never.reason(), scene.began.elapsed()),
            (Some(Reason::CostExceedsLimit), Duration::ZERO)
        );
        let in_time = scene.limiter.acquire(&request(1), Duration::from_millis(3_510)).await;
        assert!(in_time.allowed());
    });
}

#[test]
fn a_small_request_does_not_overtake_a_large_one() {
    in_virtual_time(async {
        let scene = Scene::new(r#"["10/second"]"#).await;
        assert!(scene.limiter.check(&request(10)).await.allowed());
        let large = scene.waiter(0, 10, HOUR);
        yield_now().await;
        let small = scene.waiter(1, 1, HOUR);
        let (large, small) = tokio::join!(large, small);
        large.unwrap();
        small.unwrap();
        let order: Vec<usize> = scene.journal().iter().map(|(number, ..)| *number).collect();
        assert_eq!(order, [0, 1]);
    });
}

#[test]
fn a_waiting_caller_is_admitted_as_soon_as_an_operator_makes_room() {
    in_virtual_time(async {
        let scene = Scene::new(r#"["1/hour"]"#).await;
        assert!(scene.limiter.check(&request(1)).await.allowed());
        let waiter = scene.waiter(0, 1, 2 * HOUR);
        sleep(Duration::from_secs(1)).await;
        scene.limiter.reset("all", &request(1)).await.unwrap();
        waiter.await.unwrap();
        assert!(scene.journal()[0].2 < 1_010, "{:?}", scene.journal());
    });
}

#[test]
fn the_longest_patience_is_a_wait_like_any_other() {
    in_virtual_time(async {
        let scene = Scene::new(r#"["2/second"]"#).await;
        assert!(scene.limiter.check(&request(2)).await.allowed());
        assert!(scene.limiter.acquire(&request(1), Duration::MAX).await.allowed());
        assert!(scene.began.elapsed() < Duration::from_millis(510), "{:?}", scene.began.elapsed());
    });
}

#[test]
fn a_caller_that_another_limit_denies_does_not_delay_others() {
    in_virtual_time(async {
        let shared = r#"limits = [{ quota = "10/second", burst = 1 }]"#;
        let scene = Scene::under(&format!(
            "[[rule]]\nname = \"shared\"\nkey = []\n{shared}\n\n{}",
            policy_of(r#"["1/minute"]"#)
        ))
        .await;
        let zoe = Request::new().with("user", "zoe");
        assert!(scene.limiter.check(&zoe).await.allowed());
        let two_minutes = Duration::from_secs(120);
        let first = scene.waiter_for("ann", 0, 1, two_minutes);
        let second = scene.waiter_for("ann", 1, 1, two_minutes);
        let other = scene.waiter_for("bob", 2, 1, Duration::from_secs(5));
        sleep(Duration::from_secs(1)).await;
        let late = Request::new().with("user", "cal");
        assert!(scene.limiter.acquire(&late, Duration::from_secs(5)).await.allowed());
        for waiter in [first, second, other] {
            waiter.await.unwrap();
        }
        let journal = scene.journal();
        let order: Vec<_> = journal.iter().map(|(number, reason, _)| (*number, *reason)).collect();
        assert_eq!(order, [(0, None), (2, None), (1, None)]);
        assert!(journal[1].2 <= 310, "the shared limit had room: {journal:?}");
        assert!((60_000..60_200).contains(&journal[2].2), "{journal:?}");
    });
}

#[test]
fn callers_of_one_subject_keep_their_order_under_two_limits() {
    in_virtual_time(async {
        let scene = Scene::new(r#"[{ quota = "10/second", burst = 1 }, "3/minute"]"#).await;
        let waiters: Vec<_> = (0..8).map(|number| scene.waiter(number, 1, HOUR)).collect();
        for waiter in waiters {
            waiter.await.unwrap();
        }
        let journal = scene.journal();
        let order: Vec<_> = journal.iter().map(|(number, reason, _)| (*number, *reason)).collect();
        assert_eq!(order, (0..8).map(|number| (number, None)).collect::<Vec<_>>());
        let last_ms = journal[7].2;
        assert!((100_000..100_100).contains(&last_ms), "one in 20 s after three: {last_ms} ms");
    });
}

#[test]
fn waiting_callers_are_admitted_as_soon_as_other_limits_are_in_force() {
    admits_at_once_after(async |limiter| {
        let _ = limiter.set_override("all", &request(1), ["10/hour"], None).await.unwrap();
    });
    admits_at_once_after(async |limiter| {
        let _ = limiter.set_mode("all", Mode::Off, None).await.unwrap();
    });
    admits_at_once_after(async |limiter| {
        let _ = limiter.reset_rule("all").await.unwrap();
    });
    admits_at_once_after(async |limiter| {
        limiter.set_policy(Policy::from_toml(&policy_of(r#"["10/hour"]"#)).unwrap());
    });
}

/// Makes a caller wait for a limit, changes that, and expects this caller and a newcomer to be admitted.
fn admits_at_once_after(change: impl AsyncFnOnce(&Limiter)) {
    in_virtual_time(async move {
        let scene = Scene::new(r#"["2/hour"]"#).await;
        assert!(scene.limiter.check(&request(2)).await.allowed());
        let waiter = scene.waiter(0, 1, 2 * HOUR);
        sleep(Duration::from_secs(1)).await;
        change(&scene.limiter).await;
        let newcomer = scene.limiter.acquire(&request(1), Duration::from_secs(5)).await;
        assert_eq!(newcomer.reason(), None, "the earlier limit no longer counts");
        waiter.await.unwrap();
        let journal = scene.journal();
        assert!(journal[0].1.is_none() && journal[0].2 < 1_010, "{journal:?}");
    });
}

#[test]
fn waiting_callers_are_denied_when_the_service_stops() {
    in_virtual_time(async {
        let scene = Scene::new(r#"["1/hour"]"#).await;
        let waiters: Vec<_> = (0..3).map(|number| scene.waiter(number, 1, 9 * HOUR)).collect();
        sleep(Duration::from_secs(1)).await;
        scene.limiter.end_waiting();
        for waiter in waiters {
            waiter.await.unwrap();
        }
        let denied = scene
            .journal()
            .iter()
            .filter(|(_, verdict, at_ms)| *verdict == Some(Reason::LimitExceeded) && *at_ms < 1_010)
            .count();
        assert_eq!(denied, 2, "{:?}", scene.journal());
    });
}

#[test]
fn processes_that_wait_on_one_store_share_its_rate() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let limit = Limit::per_second(20).burst(1);
        let mut waiters = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let limiter = Limiter::builder().redis(server.url()).build().await.unwrap();
            for _ in 0..7 {
                let (limiter, limit) = (limiter.clone(), limit.clone());
                waiters.spawn(async move {
                    let request = Request::keyed("all", limit);
                    limiter.acquire(&request, Duration::from_secs(60)).await.allowed()
                });
            }
        }
        let began = Instant::now();
        let admitted = waiters.join_all().await;
        assert!(admitted.iter().all(|admitted| *admitted), "{admitted:?}");
        // Some callers were admitted before all had joined.
        assert!(
            began.elapsed() > Duration::from_millis(500),
            "21 at 20 per second: {:?}",
            began.elapsed()
        );
    });
}

/// The permit was held until its `max_hold`, also that of a check in a batch.
#[test]
fn a_caller_that_leaves_while_its_call_is_under_way_holds_no_permit() {
    let server = RedisServer::start();
    let proxy = FaultProxy::before(server.port());
    let runtime = storm::threads();
    runtime.block_on(async {
        let builder = Limiter::builder().redis(proxy.url()).timeout(Duration::from_secs(10));
        let limiter = builder.denial_cache(false).build().await.unwrap();
        for (job, is_batch) in [("job", false), ("batch", true)] {
            let request = Request::keyed(job, Limit::concurrent(1, HOUR));
            proxy.set(Fault::Freeze);
            let leaves = async {
                match is_batch {
                    true => drop(limiter.check_batch(&[request.clone(), request.clone()]).await),
                    false => drop(limiter.acquire(&request, HOUR).await),
                }
            };
            assert!(tokio::time::timeout(Duration::from_millis(50), leaves).await.is_err());
            proxy.set(Fault::None);
            // It waits behind the call that was left, and may find its permit for a moment.
            let began = Instant::now();
            while !limiter.check(&request).await.allowed() {
                assert!(began.elapsed() < Duration::from_secs(10), "the permit of {job} is held");
                sleep(Duration::from_millis(5)).await;
            }
        }
    });
}

/// Returns a policy whose rule `all` has these limits for each user.
fn policy_of(limits: &str) -> String {
    format!("[[rule]]\nname = \"all\"\nkey = [\"user\"]\nlimits = {limits}")
}

fn request(cost: u64) -> Request<'static> {
    Request::new().with("user", "ann").costing(cost)
}

fn in_virtual_time(body: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    LocalSet::new().block_on(&runtime.unwrap(), body);
}

const BEGIN_US: u64 = 1_800_000_000_000_000;
const HOUR: Duration = Duration::from_secs(3_600);
