//! One decision over counters on several servers: all or none are charged, the widest subject last.

use std::time::Duration;

use spillgate::reservation::Reserve;
use spillgate::{Limiter, LimiterBuilder, Policy, Reason, Request, Source};
use spillgate_testkit::{Cluster, Node, RedisServer, eventually, poll};
use tokio::runtime::Runtime;

use crate::support::storm;
use crate::support::world::ring_of;

/// A caller whose own counter was exhausted used up the shared quota, denial by denial.
#[test]
fn a_denial_by_a_callers_own_counter_charges_no_shared_counter() {
    let fleet = Fleet::with(&policy(""));
    let attacker = fleet.user_apart_from_all();
    for _ in 0..3 {
        assert_eq!(fleet.check(&attacker), (None, Source::Store));
    }
    let shared = fleet.shared_left(&attacker);
    let writes = fleet.writes();
    for _ in 0..100 {
        assert_eq!(fleet.check(&attacker), (Some(Reason::LimitExceeded), Source::Store));
    }
    assert_eq!(fleet.shared_left(&attacker), shared);
    assert_eq!(fleet.writes(), writes, "a denial wrote something");
}

#[test]
fn the_narrow_counter_is_refunded_when_the_shared_one_denies() {
    let fleet = Fleet::with(&policy(""));
    let users: Vec<String> = (0..6).map(|_| fleet.user_apart_from_all()).collect();
    let admitted = users.iter().flat_map(|user| (0..3).map(|_| fleet.check(user).0.is_none()));
    assert_eq!(admitted.filter(|allowed| *allowed).count(), 10, "all have ten together");
    // The fourth user was admitted once, and the last two never.
    let left: Vec<u64> = users.iter().map(|user| fleet.own_left(user)).collect();
    assert_eq!(left, [0, 0, 0, 2, 3, 3]);
}

#[test]
fn a_denial_by_one_server_shows_no_numbers_of_unchecked_counters() {
    let fleet = Fleet::with(&policy(""));
    let user = fleet.user_apart_from_all();
    (0..3).for_each(|_| {
        fleet.check(&user);
    });
    let denied = fleet.runtime.block_on(fleet.limiter.check(&of(&user)));
    let counters: Vec<_> =
        denied.limits().map(|counter| (counter.reason(), counter.remaining())).collect();
    assert_eq!(counters, [(None, None), (Some(Reason::LimitExceeded), Some(0))]);
    assert_eq!((denied.rule(), denied.remaining()), (Some("own"), Some(0)));
    assert!(denied.retry_after().is_some());
}

#[test]
fn shadow_rules_on_other_servers_are_charged_for_admitted_calls_only() {
    let watched = r#"
        [[rule]]
        name = "watched"
        key = ["tenant"]
        mode = "shadow"
        limits = ["100/day"]
    "#;
    let fleet = Fleet::with(&format!("{}{watched}", policy("")));
    let user = fleet.user_apart_from_all();
    for tenant in 0..20 {
        let tenant = tenant.to_string();
        let request = of(&user).with("tenant", &tenant);
        for _ in 0..2 {
            let _ = fleet.runtime.block_on(fleet.limiter.check(&request));
        }
    }
    let left = |tenant: u32| {
        let tenant = tenant.to_string();
        let request = Request::new().with("tenant", &tenant);
        fleet.runtime.block_on(fleet.limiter.peek(&request)).limits().next().unwrap().remaining()
    };
    let left: Vec<_> = (0..20).map(left).collect();
    assert_eq!(left[..3], [Some(98), Some(99), Some(100)]);
    assert!(left[3..].iter().all(|left| *left == Some(100)), "{left:?}");
}

/// F20. One dead server of three took all down.
#[test]
fn a_dead_server_degrades_only_its_own_subjects() {
    let mut fleet = Fleet::with(&policy(r#"on_outage = "deny""#));
    let users: Vec<String> = (0..60).map(|user| user.to_string()).collect();
    let own = |fleet: &Fleet, user: &str| {
        let request = Request::new().with("user", user);
        let decision = fleet.runtime.block_on(fleet.limiter.check(&request));
        (decision.reason(), decision.source())
    };
    fleet.kill(0);
    eventually(|| {
        users.iter().take(20).for_each(|user| {
            own(&fleet, user);
        });
        !fleet.limiter.shards()[0].asked
    });
    let reply: Vec<_> = users.iter().map(|user| own(&fleet, user)).collect();
    let degraded = reply
        .iter()
        .filter(|reply| **reply == (Some(Reason::StoreUnavailable), Source::OutagePolicy));
    let degraded = degraded.count();
    let exact = reply.iter().filter(|(_, source)| *source == Source::Store).count();
    assert_eq!(degraded + exact, users.len());
    assert!((8..=36).contains(&degraded), "{degraded} of 60 live on one of three servers");
    let names: Vec<_> = fleet.limiter.shards().into_iter().map(|s| (s.name, s.asked)).collect();
    assert_eq!(names, [("a".into(), false), ("b".into(), true), ("c".into(), true)]);
}

/// The shared counter's server is gone, so its rule decides. If the rule denies, the narrow counter is
/// refunded the charge made meanwhile.
#[test]
fn a_charge_is_refunded_when_the_rule_of_a_dead_server_denies() {
    let mut fleet = Fleet::with(&policy(r#"on_outage = "deny""#));
    let user = fleet.user_apart_from_all();
    assert_eq!(fleet.check(&user), (None, Source::Store));
    fleet.kill(fleet.home_of_all);
    eventually(|| fleet.check(&user) == (Some(Reason::StoreUnavailable), Source::OutagePolicy));
    assert_eq!(fleet.own_left(&user), 2);
}

/// Once, the second silence took the decision past its deadline, and it was denied as overloaded.
#[test]
fn silent_servers_one_after_the_other_are_an_outage() {
    let fleet = Fleet::with(&policy(""));
    let user = fleet.user_apart_from_all();
    let home = fleet.home_of(&Request::new().with("user", &user).costing(0));
    let builder = Limiter::builder().ring(ring_of(fleet.servers()));
    let builder = builder.timeout(Duration::from_millis(150)).expected_instances(1);
    let roomy = policy("").replace("/day", "000/day");
    let builder = builder.policy(Policy::from_toml(&roomy).unwrap());
    let limiter = fleet.runtime.block_on(builder.build()).unwrap();
    let check = || {
        let decision = fleet.runtime.block_on(limiter.check(&of(&user)));
        (decision.reason(), decision.source())
    };
    eventually(|| check() == (None, Source::Store));
    [home, fleet.home_of_all].iter().for_each(|number| fleet.server(*number).pause());
    assert_eq!(check(), (None, Source::Fallback));
}

/// A leg was admitted locally and its charge deferred at once. Until another leg denied, the next caller sent
/// that charge.
#[test]
fn a_leg_of_a_denied_decision_is_never_deferred() {
    let fleet = Fleet::with(&policy(""));
    for user in [(); 4].map(|()| fleet.user_apart_from_all()) {
        (0..3).for_each(|_| assert_eq!(fleet.check(&user).1, Source::Store));
    }
    let user = fleet.user_apart_from_all();
    assert_eq!((fleet.shared_left(&user), fleet.own_left(&user)), (0, 3));
    let home = fleet.home_of(&Request::new().with("user", &user).costing(0));
    fleet.server(home).command(&["CONFIG", "SET", "maxmemory", "1"]);
    fleet.server(fleet.home_of_all).pause();
    let (limiter, name) = (fleet.limiter.clone(), user.clone());
    let errors = fleet.limiter.stats().store_errors;
    let denied_call = fleet.runtime.spawn(async move { limiter.check(&of(&name)).await.reason() });
    eventually(|| fleet.limiter.stats().store_errors > errors);
    fleet.server(home).command(&["CONFIG", "SET", "maxmemory", "0"]);
    let own = Request::new().with("user", &user);
    let reply = fleet.runtime.block_on(fleet.limiter.check(&own));
    assert_eq!((reply.source(), reply.remaining()), (Source::Store, Some(2)));
    fleet.server(fleet.home_of_all).resume();
    assert_eq!(fleet.runtime.block_on(denied_call).unwrap(), Some(Reason::LimitExceeded));
    assert_eq!(fleet.own_left(&user), 2);
}

/// A leg carried a deferred charge and opened a record. The next leg denied, so the record was undone, and the
/// deferred charge was taken for one that had not been sent: the store charged it twice.
#[test]
fn a_denied_reservation_pays_a_deferred_charge_once() {
    let fleet = Fleet::with(&policy("").replace("3/day", "1000/day"));
    let user = fleet.user_apart_from_all();
    (0..10).for_each(|_| assert_eq!(fleet.check(&user).1, Source::Store));
    let own = Request::new().with("user", &user);
    let home = fleet.home_of(&own.clone().costing(0));
    let check = || fleet.runtime.block_on(fleet.limiter.check(&own));
    fleet.server(home).command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!((check().source(), check().source()), (Source::Fallback, Source::Fallback));
    fleet.server(home).command(&["CONFIG", "SET", "maxmemory", "0"]);
    let (request, minute) = (of(&user), Reserve::default());
    let denied = fleet.runtime.block_on(fleet.limiter.reserve(&request, &minute)).unwrap();
    assert_eq!((denied.reason(), denied.rule()), (Some(Reason::LimitExceeded), Some("all")));
    // This call carries whatever is still deferred.
    let next = check();
    assert_eq!((next.source(), next.remaining()), (Source::Store, Some(1_000 - 10 - 2 - 1)));
}

/// The refund of a local share turned an overload into an outage.
#[test]
fn a_refunded_local_share_keeps_the_overload_as_its_cause() {
    let fleet = Fleet::with(&policy("").replace("3/day", "1000/day"));
    let user = fleet.user_apart_from_all();
    let hurried = || {
        let (requests, within) = ([of(&user)], Duration::from_nanos(1));
        let decision = fleet.limiter.check_atomic_within(&requests, within);
        fleet.runtime.block_on(decision).allowed()
    };
    let admitted = (0..20).take_while(|_| hurried()).count();
    let counted = "spillgate_overloaded_decisions_total{domain=\"default\",rule=\"own\"}";
    let counted = format!("{counted} {}", admitted + 1);
    let text = fleet.limiter.metrics_text();
    assert!(text.lines().any(|line| line == counted), "{counted}: {text}");
}

/// The first leg of a decision was charged after its caller had left, and that charge was not refunded.
#[test]
fn a_caller_cancelled_while_a_leg_is_in_flight_leaves_no_charge() {
    cancelling_leaves_no_charge(Fleet::with);
}

#[test]
fn a_caller_cancelled_while_a_leg_is_in_flight_leaves_no_charge_on_a_cluster() {
    cancelling_leaves_no_charge(Fleet::on_cluster);
}

fn cancelling_leaves_no_charge(fleet: impl Fn(&str) -> Fleet) {
    // A window, since what drains from a bucket between a charge and its refund is not refunded.
    let own = "{ quota = \"1000/day\", algorithm = \"fixed-window\" }";
    let fleet = fleet(&policy("").replace("\"3/day\"", own));
    let user = fleet.user_apart_from_all();
    assert_eq!(fleet.check(&user), (None, Source::Store));
    let (own, shared) = (fleet.own_left(&user), fleet.shared_left(&user));
    let home = fleet.home_of(&Request::new().with("user", &user).costing(0));
    fleet.server(home).pause();
    fleet.server(fleet.home_of_all).pause();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let (limiter, user) = (fleet.limiter.clone(), user.clone());
        let check = async move {
            let request = of(&user);
            let check = limiter.check(&request);
            tokio::time::timeout(Duration::from_millis(50), check).await.is_err()
        };
        callers.spawn_on(check, fleet.runtime.handle());
    }
    let left = fleet.runtime.block_on(callers.join_all()).into_iter().filter(|left| *left);
    assert_eq!(left.count(), 200, "all were cancelled before any reply");
    fleet.server(home).resume();
    fleet.server(fleet.home_of_all).resume();
    let mut seen = (0, 0);
    // Once both servers answer again, the refunds are made within seconds.
    let _ = (fleet.own_left(&user), fleet.shared_left(&user));
    let refunded = poll(Duration::from_secs(15), || {
        seen = (fleet.own_left(&user), fleet.shared_left(&user));
        (seen == (own, shared)).then_some(())
    });
    assert!(refunded.is_some(), "{seen:?} left of {:?}", (own, shared));
}

/// A limiter on three servers.
struct Fleet {
    limiter: Limiter,
    servers: Servers,
    runtime: Runtime,
    /// The server of the shared counter.
    home_of_all: usize,
    users: std::cell::Cell<u64>,
}

enum Servers {
    Ring(Vec<RedisServer>),
    Cluster(Cluster),
}

impl Fleet {
    fn with(policy: &str) -> Fleet {
        let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
        let builder = Limiter::builder().ring(ring_of(&servers));
        Fleet::new(policy, builder, Servers::Ring(servers))
    }

    fn on_cluster(policy: &str) -> Fleet {
        let cluster = Cluster::start(3, 0);
        let builder = Limiter::builder().cluster(cluster.urls());
        Fleet::new(policy, builder, Servers::Cluster(cluster))
    }

    fn new(policy: &str, builder: LimiterBuilder, servers: Servers) -> Fleet {
        let runtime = storm::threads();
        let builder = builder.timeout(WAIT).policy(Policy::from_toml(policy).unwrap());
        let limiter = runtime.block_on(builder.build()).unwrap();
        let mut fleet =
            Fleet { limiter, servers, runtime, home_of_all: 0, users: std::cell::Cell::new(0) };
        let shared = Request::new().with("all", "yes").costing(0);
        fleet.home_of_all = fleet.home_of(&shared);
        fleet
    }

    fn servers(&self) -> &[RedisServer] {
        match &self.servers {
            Servers::Ring(servers) => servers,
            Servers::Cluster(cluster) => cluster.nodes(),
        }
    }

    fn server(&self, number: usize) -> &RedisServer {
        &self.servers()[number]
    }

    fn kill(&mut self, number: usize) {
        match &mut self.servers {
            Servers::Ring(servers) => servers[number].kill(),
            Servers::Cluster(cluster) => cluster.node_mut(Node(number)).kill(),
        }
    }

    /// Returns the server that decides.
    fn home_of(&self, request: &Request<'_>) -> usize {
        let calls = || self.servers().iter().map(|server| server.decisions());
        let before: Vec<_> = calls().collect();
        let _ = self.runtime.block_on(self.limiter.check(request));
        calls().zip(before).position(|(after, before)| after != before).unwrap()
    }

    /// Returns a new user whose own counter is on another server than the shared one.
    fn user_apart_from_all(&self) -> String {
        loop {
            self.users.set(self.users.get() + 1);
            let user = self.users.get().to_string();
            if self.home_of(&Request::new().with("user", &user).costing(0)) != self.home_of_all {
                return user;
            }
        }
    }

    fn check(&self, user: &str) -> (Option<Reason>, Source) {
        let decision = self.runtime.block_on(self.limiter.check(&of(user)));
        (decision.reason(), decision.source())
    }

    fn own_left(&self, user: &str) -> u64 {
        self.left(user, "own")
    }

    fn shared_left(&self, user: &str) -> u64 {
        self.left(user, "all")
    }

    /// Asks again while a server that was paused is not back in its cluster.
    fn left(&self, user: &str, rule: &str) -> u64 {
        let left = poll(Duration::from_secs(60), || {
            let seen = self.runtime.block_on(self.limiter.peek(&of(user)));
            let counter = seen.limits().find(|counter| counter.rule() == Some(rule)).unwrap();
            counter.remaining()
        });
        left.expect("an answer of the store")
    }

    /// Returns how often each server ran SET, as it does with every write.
    fn writes(&self) -> Vec<u64> {
        self.servers().iter().map(|server| server.calls_of("set")).collect()
    }
}

fn of(user: &str) -> Request<'_> {
    Request::new().with("all", "yes").with("user", user)
}

/// No healthy call takes this long, and three calls to a dead server still end soon.
const WAIT: Duration = Duration::from_secs(2);

/// Three for each user, ten for all together. The shared rule is written first and charged last.
fn policy(field: &str) -> String {
    format!(
        r#"
        [[rule]]
        name = "all"
        match = {{ all = "*" }}
        key = []
        limits = ["10/day"]
        {field}

        [[rule]]
        name = "own"
        key = ["user"]
        limits = ["3/day"]
        {field}
        "#
    )
}
