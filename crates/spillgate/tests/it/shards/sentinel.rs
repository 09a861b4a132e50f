//! A primary watched by real Sentinels, followed when another server takes over.

use std::time::Duration;

use spillgate::{Limit, Limiter, Request, Source};
use spillgate_testkit::{Sentinels, eventually};
use tokio::runtime::Runtime;

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
