//! A primary watched by real Sentinels, followed when another server takes over.

use std::time::Duration;

use spillgate::{Limit, Limiter, Request, Source};
use spillgate_testkit::{Sentinels, eventually};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::support::storm;
use crate::support::world::PATIENCE;

/// F8. A stale answer led to the old primary, which rejected every write.
#[test]
fn the_new_primary_is_followed_after_a_handover() {
    let sentinels = Sentinels::start(1, 3);
    let watched = Watched::by(&sentinels, PATIENCE);
    assert_eq!(watched.check(), Source::Store);
    sentinels.fail_over();
    eventually(|| watched.check() == Source::Store);
    assert_eq!(watched.limiter.shards()[0].name, "sentinel://spillgate");
}

#[test]
fn a_killed_primary_is_an_outage_until_the_sentinels_name_another() {
    let mut sentinels = Sentinels::start(1, 3);
    let watched = Watched::by(&sentinels, Duration::from_millis(300));
    assert_eq!(watched.check(), Source::Store);
    let killed = sentinels.primary();
    sentinels.server_mut(killed).kill();
    assert_eq!(watched.check(), Source::Fallback);
    let now = sentinels.primary();
    assert_ne!(now, killed);
    eventually(|| watched.check() == Source::Store);
}

#[test]
fn an_unknown_primary_name_is_an_outage_with_a_message() {
    let sentinels = Sentinels::start(1, 3);
    let runtime = storm::threads();
    let builder = Limiter::builder().sentinel("unknown", sentinels.urls());
    let limiter = runtime.block_on(builder.build()).unwrap();
    let trouble = limiter.shards()[0].trouble.clone().unwrap();
    assert!(trouble.contains("watches no primary named \"unknown\""), "{trouble}");
}

/// One random sentinel used to be asked, so each connection and each look followed the wrong one by chance.
#[test]
fn a_wrong_sentinel_of_three_moves_no_instance_off_a_healthy_primary() {
    let (right, wrong) = (Sentinels::start(0, 2), Sentinels::start(0, 1));
    let urls = [right.urls(), wrong.urls()].concat();
    let runtime = storm::threads();
    let mut opened = JoinSet::new();
    for _ in 0..10 {
        let builder = Limiter::builder().sentinel(Sentinels::NAME, &urls);
        opened.spawn_on(builder.timeout(PATIENCE).build(), runtime.handle());
    }
    let limiters: Vec<Limiter> =
        runtime.block_on(opened.join_all()).into_iter().map(Result::unwrap).collect();
    let limit = Limit::per_day(1_000_000);
    let check =
        |limiter: &Limiter| runtime.block_on(limiter.check(&Request::keyed("me", &limit))).source();
    // Each instance asks again after a second at most.
    std::thread::sleep(Duration::from_millis(1_050));
    assert!(limiters.iter().all(|limiter| check(limiter) == Source::Store));
    let keys = |of: &Sentinels| of.servers()[0].command(&["DBSIZE"]).integer();
    assert!(keys(&right) > 0);
    assert_eq!(keys(&wrong), 0, "an instance has called the wrong primary");
}

#[test]
fn sentinels_may_have_another_password_than_their_primary() {
    let sentinels = Sentinels::start(0, 1);
    let urls: Vec<String> =
        sentinels.urls().iter().map(|url| url.replace("//", "//:of-the-primary@")).collect();
    let set = |password| ["ACL", "SETUSER", "default", "resetpass", password];
    sentinels.servers()[0].command(&set(">of-the-primary"));
    sentinels.sentinel(0).command(&set(">of-the-sentinels"));
    let runtime = storm::threads();
    let build = |password: Option<&str>| {
        let mut builder = Limiter::builder().sentinel(Sentinels::NAME, &urls);
        if let Some(password) = password {
            builder = builder.sentinel_password(password);
        }
        runtime.block_on(builder.timeout(PATIENCE).build()).unwrap()
    };
    let limit = Limit::per_second(1_000_000);
    let check =
        |limiter: &Limiter| runtime.block_on(limiter.check(&Request::keyed("me", &limit))).source();
    assert_eq!(check(&build(Some("of-the-sentinels"))), Source::Store);
    assert_eq!(check(&build(None)), Source::Fallback);
}

struct Watched {
    limiter: Limiter,
    runtime: Runtime,
}

impl Watched {
    fn by(sentinels: &Sentinels, wait: Duration) -> Watched {
        let runtime = storm::threads();
        let builder = Limiter::builder().sentinel(Sentinels::NAME, sentinels.urls()).timeout(wait);
        Watched { limiter: runtime.block_on(builder.build()).unwrap(), runtime }
    }

    /// Returns the source of the decision.
    fn check(&self) -> Source {
        let limit = Limit::per_second(1_000_000);
        self.runtime.block_on(self.limiter.check(&Request::keyed("me", &limit))).source()
    }
}
