//! Decisions of a limiter that holds leases, and the events that end a lease.

use std::time::Duration;

use spillgate::{Decision, Limiter, Mode, Policy, Reason, Request, Source};
use spillgate_testkit::{RedisServer, eventually};
use tokio::runtime::Runtime;

use crate::support::world::{PATIENCE, runtime};

#[test]
fn a_hot_key_is_decided_by_its_lease_and_every_admission_is_charged() {
    let scene = Scene::new(&rule("1000000/366d"));
    scene.warm("hot");
    let (mut by_lease, mut all) = (0, 0);
    for _ in 0..20_000 {
        let decision = scene.check("hot");
        assert!(decision.allowed());
        all += 1;
        by_lease += u64::from(decision.source() == Source::Lease);
    }
    println!("{by_lease} of {all} by lease");
    assert!(by_lease > all / 2, "{by_lease} of {all}");
    let admitted = scene.limiter.stats().allowed;
    scene.run(scene.limiter.close());
    let used = 1_000_000 - scene.peek("hot").remaining().unwrap();
    assert_eq!(used, admitted, "unspent tokens are returned");
    assert_eq!(scene.limiter.stats().lease_outstanding, 0);
}

/// Each waiting check used to call the store, although the instance held a lease.
#[test]
fn a_waiting_check_spends_a_lease_as_a_check_does() {
    let hot = rule("1000000/366d")
        .replace("ttl = \"1s\" }", "ttl = \"10s\", hot = [{ user = \"hot\" }] }");
    let scene = Scene::new(&hot);
    let request = Request::new().with("user", "hot");
    for _ in 0..100 {
        let decision = scene.run(scene.limiter.acquire(&request, Duration::from_secs(1)));
        assert!(decision.allowed());
        assert_eq!(decision.source(), Source::Lease);
    }
    scene.run(scene.limiter.close());
    assert_eq!(scene.peek("hot").remaining(), Some(999_900), "each admission is charged");
}

#[test]
fn an_idle_lease_is_returned() {
    let scene = Scene::new(&rule("1000000/366d"));
    scene.warm("hot");
    let admitted = scene.limiter.stats().allowed;
    scene.eventually(|| 1_000_000 - scene.peek("hot").remaining().unwrap() == admitted);
    scene.eventually(|| scene.limiter.stats().leased_counters == 0);
}

#[test]
fn a_key_that_is_checked_once_is_not_leased() {
    let scene = Scene::new(&rule("1000000/366d"));
    for turn in 0..200 {
        assert_eq!(scene.check(&format!("cold {turn}")).source(), Source::Store);
    }
    assert_eq!(scene.limiter.stats().leased_counters, 0);
}

/// A subject that is not named must be checked often first.
#[test]
fn a_subject_named_as_hot_is_decided_by_its_lease_from_the_first_request_on() {
    let hot = "hot = [{ user = \"hot\" }, { user = \"also hot\" }] }";
    let scene = Scene::new(
        &rule("1000000/366d").replace("ttl = \"1s\" }", &format!("ttl = \"10s\", {hot}")),
    );
    assert_eq!(scene.limiter.stats().leased_counters, 2);
    for ip in ["hot", "also hot"] {
        assert_eq!(scene.check(ip).source(), Source::Lease, "{ip}");
    }
    assert_eq!(scene.check("cold").source(), Source::Store);
    let held = scene.limiter.stats().lease_outstanding;
    assert!(held <= 2 * 12_500, "a quarter of the share of each: {held}");
    scene.run(scene.limiter.close());
    assert_eq!(scene.peek("hot").remaining(), Some(999_999), "unspent tokens are returned");
}

#[test]
fn an_unavailable_store_delays_the_start_with_hot_subjects_only_briefly() {
    let unreachable = format!("redis://127.0.0.1:{}", spillgate_testkit::free_port());
    let policy = rule("1000/day").replace("\"1s\" }", "\"1s\", hot = [{ user = \"hot\" }] }");
    let builder = Limiter::builder().policy(Policy::from_toml(&policy).unwrap()).redis(unreachable);
    let runtime = runtime();
    let built = runtime.block_on(async { tokio::time::timeout(PATIENCE, builder.build()).await });
    let limiter = built.expect("the start does not wait for the store").unwrap();
    let decision = runtime.block_on(limiter.check(&Request::new().with("user", "hot")));
    assert!(decision.allowed() && decision.degraded(), "{decision:?}");
}

#[test]
fn hot_subjects_are_not_printed_with_the_policy() {
    let policy = rule("1000/day").replace("\"1s\" }", "\"1s\", hot = [{ user = \"canary\" }] }");
    let printed = format!("{:?}", Policy::from_toml(&policy).unwrap().rule("api"));
    assert!(printed.contains("HotSubjects(1)") && !printed.contains("canary"), "{printed}");
}

/// No other process checks, so this one gets the last token of the limit and not one more.
#[test]
fn a_process_alone_is_admitted_to_the_last_token() {
    let scene = Scene::new(&rule("3000/366d"));
    let mut by_lease = 0;
    let mut admitted = 0;
    loop {
        let decision = scene.check("me");
        match decision.reason() {
            None => admitted += 1,
            _ => break,
        }
        assert!(admitted <= 3_000);
        by_lease += u64::from(decision.source() == Source::Lease);
    }
    println!("{by_lease} of {admitted} by lease");
    scene.run(scene.limiter.close());
    while scene.check("me").allowed() {
        admitted += 1;
    }
    assert_eq!(admitted, 3_000);
    assert!(by_lease > 0);
}

#[test]
fn a_decision_by_a_lease_shows_only_known_numbers() {
    let scene = Scene::new(&rule("1000000/366d"));
    scene.warm("hot");
    let leased = scene.leased("hot");
    let counter = leased.limits().next().unwrap();
    assert_eq!(
        (counter.capacity(), counter.retry_after()),
        (Some(1_000_000), Some(Duration::ZERO))
    );
    assert_eq!(counter.reset_after(), None, "others may charge it meanwhile");
    let admitted = scene.limiter.stats().allowed;
    let left = counter.remaining().unwrap();
    // Decisions in flight at the last grant may be missing.
    assert!((900_000..=1_000_064 - admitted).contains(&left), "{left} after {admitted}");
    assert!(!leased.degraded());
}

#[test]
fn a_denied_mixed_decision_returns_tokens_to_the_lease() {
    let strict = "[[rule]]\nname = \"strict\"\nkey = [\"user\"]\nlimits = [\"5/366d\"]\n\
        match = { route = \"both\" }\n";
    let scene = Scene::new(&format!("{}{strict}", rule("1000000/366d")));
    scene.warm("hot");
    let both = Request::new().with("user", "hot").with("route", "both");
    let mut sources = Vec::new();
    for _ in 0..200 {
        let _ = scene.leased("hot");
        let decision = scene.run(scene.limiter.check(&both));
        sources.push((decision.allowed(), decision.limits().next().unwrap().source()));
    }
    assert_eq!(sources.iter().filter(|(allowed, _)| *allowed).count(), 5);
    assert!(sources.contains(&(true, Source::Lease)), "{sources:?}");
    assert!(sources.contains(&(false, Source::Lease)), "{sources:?}");
    let admitted = scene.limiter.stats().allowed;
    scene.run(scene.limiter.close());
    assert_eq!(1_000_000 - scene.peek("hot").remaining().unwrap(), admitted);
}

#[test]
fn a_changed_limit_ends_earlier_leases() {
    let scene = Scene::new(&rule("1000000/366d"));
    scene.warm("hot");
    scene.limiter.set_policy(Policy::from_toml(&rule("100/366d")).unwrap());
    let decision = scene.check("hot");
    assert_eq!(
        (decision.reason(), decision.source()),
        (Some(Reason::LimitExceeded), Source::Store)
    );
    // An override ends them as well.
    scene.limiter.set_policy(Policy::from_toml(&rule("1000000/366d")).unwrap());
    scene.warm("hot");
    let hot = Request::new().with("user", "hot");
    scene.run(scene.limiter.set_override("api", &hot, ["block"], None)).unwrap();
    assert_eq!(scene.check("hot").reason(), Some(Reason::Blocked));
}

#[test]
fn a_shadow_rule_spends_no_lease() {
    let scene = Scene::new(&rule("1000000/366d"));
    scene.warm("hot");
    scene.run(scene.limiter.set_mode("api", Mode::Shadow, None)).unwrap();
    assert!(
        (0..50)
            .all(|_| scene.check("hot").limits().all(|counter| counter.source() == Source::Store))
    );
}

#[test]
fn a_reset_ends_leases() {
    let scene = Scene::new(&rule("1000000/366d"));
    scene.warm("hot");
    let hot = Request::new().with("user", "hot");
    scene.run(scene.limiter.reset("api", &hot)).unwrap();
    // By the store, or by a lease taken since.
    assert!(scene.check("hot").allowed());
    // A grant from before the reset is not part of the new state and is not returned to it.
    scene.run(scene.limiter.close());
    assert_eq!(scene.peek("hot").remaining(), Some(999_999));
}

#[test]
fn state_loss_ends_granted_leases() {
    let scene = Scene::new(&rule("1000000/366d"));
    scene.warm("hot");
    scene.server.command(&["FLUSHALL"]);
    scene.eventually(|| scene.limiter.stats().state_losses > 0);
    scene.pause(Duration::from_millis(200));
    assert_eq!(scene.limiter.stats().lease_outstanding, 0);
    assert_eq!(scene.check("hot").source(), Source::Store);
}

#[test]
fn peeks_and_reservations_go_to_the_store() {
    let scene = Scene::new(&rule("1000000/366d"));
    scene.warm("hot");
    let hot = Request::new().with("user", "hot");
    for _ in 0..20 {
        let _ = scene.leased("hot");
        assert_eq!(scene.peek("hot").source(), Source::Store);
        let reserved =
            scene.run(scene.limiter.reserve(&hot, &spillgate::reservation::Reserve::default()));
        assert_eq!(reserved.unwrap().source(), Source::Store);
    }
}

#[test]
fn an_explanation_equals_the_next_check() {
    let scene = Scene::new(&rule("1000000/366d"));
    scene.warm("hot");
    let hot = Request::new().with("user", "hot");
    let _ = scene.leased("hot");
    let explained = scene.run(scene.limiter.explain(&hot));
    let leased = explained.leased().expect("a lease existed a moment ago");
    assert_eq!((leased.source(), explained.answer().source()), (Source::Lease, Source::Lease));
    assert_eq!(explained.decision().source(), Source::Store);
    let sentence = explained.sentence();
    assert!(sentence.ends_with("has leased enough, and answers without the store."), "{sentence}");
}

#[test]
fn several_requests_at_once_spend_a_lease_as_one_does() {
    let scene = Scene::new(&rule("1000000/366d"));
    scene.warm("hot");
    let hot = Request::new().with("user", "hot");
    let requests = vec![hot.clone(); 10];
    let _ = scene.leased("hot");
    let decisions = scene.run(scene.limiter.check_batch(&requests));
    assert!(decisions.iter().all(Decision::allowed));
    assert!(decisions.iter().any(|decision| decision.source() == Source::Lease));
    let both = [hot.clone(), hot];
    let _ = scene.leased("hot");
    let combined = scene.run(scene.limiter.check_atomic_within(&both, PATIENCE));
    assert_eq!(combined.whole().source(), Source::Lease);
    let admitted = scene.limiter.stats().allowed;
    scene.run(scene.limiter.close());
    // The last one counts once and costs two.
    assert_eq!(1_000_000 - scene.peek("hot").remaining().unwrap(), admitted + 1);
}

#[test]
fn metrics_show_leased_tokens_and_their_overshoot_bound() {
    let scene = Scene::new(&rule("1000000/366d"));
    scene.warm("hot");
    let _ = scene.leased("hot");
    let text = scene.limiter.metrics_text();
    let value = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().parse().unwrap()
    };
    assert!((1..=50_000).contains(&value("spillgate_lease_outstanding{rule=\"api\"}")));
    assert!(value("spillgate_overshoot_bound{rule=\"api\"}") >= 50_000);
}

fn rule(quota: &str) -> String {
    format!(
        "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [\"{quota}\"]\n\
         lease = {{ share = 0.05, ttl = \"1s\" }}\n"
    )
}

struct Scene {
    limiter: Limiter,
    runtime: Runtime,
    server: RedisServer,
}

impl Scene {
    fn new(policy: &str) -> Scene {
        let (server, runtime) = (RedisServer::start(), runtime());
        let policy = Policy::from_toml(policy).unwrap();
        let builder = Limiter::builder().policy(policy).redis(server.url()).timeout(PATIENCE);
        let limiter = runtime.block_on(builder.build()).unwrap();
        Scene { limiter, runtime, server }
    }

    fn check(&self, ip: &str) -> Decision {
        self.run(self.limiter.check(&Request::new().with("user", ip)))
    }

    fn peek(&self, ip: &str) -> Decision {
        self.run(self.limiter.peek(&Request::new().with("user", ip)))
    }

    /// Checks until a lease pays, and returns that decision.
    fn leased(&self, ip: &str) -> Decision {
        for _ in 0..100_000 {
            let decision = self.check(ip);
            assert!(decision.allowed(), "{decision:?}");
            if decision.source() == Source::Lease {
                return decision;
            }
        }
        panic!("no lease: {:?}", self.limiter.stats());
    }

    /// Checks until the counter holds a lease for a few hundred checks.
    fn warm(&self, ip: &str) {
        let _ = self.leased(ip);
        (0..2_000).for_each(|_| drop(self.check(ip)));
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    fn pause(&self, pause: Duration) {
        self.run(async { tokio::time::sleep(pause).await });
    }

    /// The limiter's tasks run only while this runtime does.
    fn eventually(&self, holds: impl Fn() -> bool) {
        eventually(|| {
            self.pause(Duration::from_millis(10));
            holds()
        });
    }
}
