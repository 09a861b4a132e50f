//! Rotation of the key secret: processes with the new secret beside processes that know only the old one.
//! Subjects have other keys under the new secret, and no fresh quota.

use std::time::Duration;

use spillgate::{Limit, LimitSpec, Limiter, LimiterBuilder, Mode, Policy, Request};
use spillgate_testkit::{Cluster, RedisServer};

use crate::support::random::Random;
use crate::support::world::{PATIENCE, runtime};

const OLD: [u8; 16] = [1; 16];
const NEW: [u8; 16] = [2; 16];
const POLICY: &str = r#"
    [[rule]]
    name = "user"
    key = ["user"]
    limits = [
        "9/366d",
        { name = "log", quota = "11/366d", algorithm = "sliding-log" },
        { name = "window", quota = "13/366d", algorithm = "fixed-window" },
    ]

    [[rule]]
    name = "tenant"
    key = ["tenant"]
    limits = [{ quota = "30/366d", algorithm = "sliding-window" }]

    [[rule]]
    name = "watched"
    mode = "shadow"
    key = ["tenant"]
    limits = ["3/366d"]

    [[rule]]
    name = "after"
    key = ["user", "tenant"]
    postpaid = true
    limits = ["1000/366d"]
"#;

#[test]
fn a_new_secret_gives_no_fresh_quota() {
    let server = RedisServer::start();
    runtime().block_on(mixed_fleet_keeps_every_limit(|| Limiter::builder().redis(server.url())));
}

#[test]
fn a_new_secret_gives_no_fresh_quota_on_a_cluster() {
    let cluster = Cluster::start(3, 0);
    runtime()
        .block_on(mixed_fleet_keeps_every_limit(|| Limiter::builder().cluster(cluster.urls())));
}

/// Users of two tenants check at processes of both kinds in any order; the limits hold.
async fn mixed_fleet_keeps_every_limit(on_store: impl Fn() -> LimiterBuilder) {
    let (old, new) = (under_old(on_store()).await, changing_over(on_store()).await);
    let mut random = Random::new(20_261_122);
    let mut users = [0; 8];
    let mut tenants = [0; 2];
    for _ in 0..300 {
        let user = random.below(8) as usize;
        let tenant = user % 2;
        let limiter = if random.below(2) == 0 { &old } else { &new };
        let decision = match random.below(3) {
            0 => limiter.check(&request(user, tenant)).await,
            1 => limiter.check_batch(&[request(user, tenant)]).await.remove(0),
            _ => {
                let requests = [request(user, tenant)];
                limiter.check_atomic_within(&requests, PATIENCE).await.whole().clone()
            }
        };
        assert!(!decision.degraded(), "{decision:?}");
        let room = users[user] < 9 && tenants[tenant] < 30;
        assert_eq!(decision.allowed(), room, "{users:?} {tenants:?} {decision:?}");
        users[user] += u64::from(room);
        tenants[tenant] += u64::from(room);
        let left = [
            ("user", 0, 9 - users[user]),
            ("user", 1, 11 - users[user]),
            ("user", 2, 13 - users[user]),
            ("tenant", 0, 30 - tenants[tenant]),
        ];
        for (rule, position, left) in left {
            let mut counters = decision.limits().filter(|counter| counter.rule() == Some(rule));
            let counter = counters.nth(position).unwrap();
            // On several servers a denial ends the check early.
            assert!(counter.remaining().is_none_or(|reply| reply == left), "{left} {counter:?}");
        }
    }
    assert_eq!(tenants, [30, 30], "{users:?}");
}

#[test]
fn an_inline_limit_is_charged_under_both_secrets() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let old = under_old(Limiter::builder().redis(server.url())).await;
        let new = changing_over(Limiter::builder().redis(server.url())).await;
        let limit = Limit::per(5, Duration::from_secs(365 * 86_400));
        assert!(old.check(&Request::keyed("me", &limit).costing(3)).await.allowed());
        assert_eq!(new.check(&Request::keyed("me", &limit)).await.remaining(), Some(1));
        assert!(
            !old.check(&Request::keyed("me", &limit).costing(2)).await.allowed(),
            "charged under both"
        );
        let request = |cost: u64| Request::keyed("me", limit.clone()).costing(cost);
        let reply = new.check_batch(&[request(2), request(1), request(1)]).await;
        let allowed: Vec<bool> = reply.iter().map(spillgate::Decision::allowed).collect();
        assert_eq!(allowed, [false, true, false]);
    });
}

/// Each counter was charged twice.
#[test]
fn a_previous_secret_equal_to_the_secret_is_ignored() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let builder = Limiter::builder().redis(server.url());
        let limiter = build(builder.key_secret(NEW).previous_key_secret(NEW)).await;
        let limit = LimitSpec::new("4/366d").algorithm("fixed-window").build().unwrap();
        let mut admitted = 0;
        for _ in 0..8 {
            let decision = limiter.check(&Request::keyed("me", &limit)).await;
            admitted += u64::from(decision.allowed());
        }
        assert_eq!(admitted, 4);
    });
}

#[test]
fn operator_changes_to_a_subject_apply_under_both_secrets() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let old = under_old(Limiter::builder().redis(server.url())).await;
        let new = changing_over(Limiter::builder().redis(server.url())).await;
        let ann = request(0, 0);
        for _ in 0..9 {
            assert!(old.check(&ann).await.allowed());
        }
        assert_eq!(new.state("user", &ann).await.unwrap().remaining(), Some(0));
        assert_eq!(new.refund("user", &ann, 2).await.unwrap().remaining(), Some(2));
        assert_eq!(old.peek(&ann).await.remaining(), Some(2));
        new.reset("user", &ann).await.unwrap();
        assert_eq!(old.state("user", &ann).await.unwrap().remaining(), Some(9));
    });
}

#[test]
fn overrides_and_modes_are_carried_over_to_the_new_secret() {
    let server = RedisServer::start();
    let on_store = || Limiter::builder().redis(server.url());
    runtime().block_on(async {
        let old = under_old(on_store()).await;
        let ann = Request::new().with("user", "0");
        old.set_override("user", &ann, ["2/366d"], None).await.unwrap();
        old.set_mode("tenant", Mode::Off, None).await.unwrap();
        let new = changing_over(on_store()).await;
        assert_eq!(new.state("user", &ann).await.unwrap().capacity(), Some(2));
        drop((old, new));
        // A process with only the new secret reads the rewritten entries.
        let builder = on_store().policy(Policy::from_toml(POLICY).unwrap()).key_secret(NEW);
        let last = builder.build().await.unwrap();
        assert_eq!(last.state("user", &ann).await.unwrap().capacity(), Some(2));
        let modes = last.modes();
        let tenant = modes.iter().find(|mode| mode.rule() == "tenant").unwrap();
        assert_eq!(tenant.runtime(), Some(Mode::Off));
        last.remove_override("user", &ann).await.unwrap();
        let again = changing_over(on_store()).await;
        assert_eq!(
            again.state("user", &ann).await.unwrap().capacity(),
            Some(9),
            "under both names"
        );
    });
}

async fn under_old(builder: LimiterBuilder) -> Limiter {
    build(builder.key_secret(OLD)).await
}

async fn changing_over(builder: LimiterBuilder) -> Limiter {
    build(builder.key_secret(NEW).previous_key_secret(OLD)).await
}

async fn build(builder: LimiterBuilder) -> Limiter {
    let policy = Policy::from_toml(POLICY).unwrap();
    builder.policy(policy).timeout(PATIENCE).denial_cache(false).build().await.unwrap()
}

fn request(user: usize, tenant: usize) -> Request<'static> {
    Request::new().with("user", user.to_string()).with("tenant", tenant.to_string())
}
