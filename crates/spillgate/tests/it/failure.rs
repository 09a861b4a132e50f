//! What becomes of decisions when something becomes of the store: real faults on real servers, by the
//! names of docs/internals/faults.md. A verdict comes within the ceiling whatever happens, more than the
//! stated price is never admitted, and all heals by itself.

use std::time::Duration;

use spillgate::{Decision, Limit, Limiter, LimiterBuilder, Source};
use spillgate_testkit::{FaultProxy, RedisServer, Reply, eventually, poll};
use tokio::runtime::{Builder, Runtime};

mod clocks;
mod cluster;
mod elections;
mod empty_again;
mod lines;
mod minority;
mod night;
mod outage;
mod overload;
mod refusals;
mod sentinel;
mod state_loss;
mod table;
mod two_hundred;

/// A limiter on a store that something happens to.
pub(crate) struct Patient {
    pub(crate) limiter: Limiter,
    runtime: Runtime,
}

impl Patient {
    pub(crate) fn on(url: &str) -> Patient {
        Patient::built(Limiter::builder().redis(url).timeout(TIMEOUT))
    }

    pub(crate) fn built(builder: LimiterBuilder) -> Patient {
        // What heals in the background goes on between the checks.
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        // What the store says is what is tested: a remembered refusal would speak for it.
        let builder = builder.expected_instances((ALL / SHARE) as u32).denial_cache(false);
        let opening = async { tokio::time::timeout(CEILING, builder.build()).await };
        let limiter = runtime.block_on(opening).expect("a start waits for no store").unwrap();
        Patient { limiter, runtime }
    }

    /// One check; there is a verdict, whatever happens.
    #[track_caller]
    pub(crate) fn check(&self, key: &str, limit: &Limit) -> Decision {
        self.run(async {
            let check = self.limiter.check_limit(key, limit, 1);
            tokio::time::timeout(CEILING, check).await.expect("a verdict within two seconds")
        })
    }

    /// How many of so many checks, one after another, are allowed.
    #[track_caller]
    pub(crate) fn admitted(&self, checks: usize, key: &str, limit: &Limit) -> u64 {
        (0..checks).filter(|_| self.check(key, limit).allowed()).count() as u64
    }

    /// Waits until the store decides again.
    #[track_caller]
    pub(crate) fn heals(&self) {
        self.settles(Source::Store);
    }

    /// Waits until the store is known to be gone.
    #[track_caller]
    pub(crate) fn falls_back(&self) {
        self.settles(Source::Fallback);
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// By charging somebody whom no test asks about: a server that refuses to count may still look.
    #[track_caller]
    fn settles(&self, source: Source) {
        let wide = Limit::per_second(1_000_000);
        let settled =
            poll(HEALING, || (self.check("a bystander", &wide).source() == source).then_some(()));
        let stats = self.limiter.stats();
        assert!(settled.is_some(), "not by {source:?} after {HEALING:?}: {stats:?}");
    }
}

/// So much of `ALL` is one process's share, when nobody has said how many there are.
pub(crate) const SHARE: u64 = 10;
pub(crate) const ALL: u64 = 160;

/// `ALL` in a year: nothing refills while a test runs.
pub(crate) fn limit() -> Limit {
    Limit::per(ALL, YEAR)
}

/// What the store has counted for a key: asked of it, past whatever is broken on the way.
#[track_caller]
pub(crate) fn counted_by(server: &RedisServer, key: &str, limit: &Limit) -> u64 {
    let onlooker = Patient::built(Limiter::builder().redis(server.url()).timeout(CEILING));
    let seen = onlooker.run(onlooker.limiter.check_limit(key, limit, 0));
    assert_eq!(seen.source(), Source::Store);
    limit.capacity().unwrap() - seen.remaining().unwrap()
}

/// Follows the primary behind a proxy, from its first synchronisation on.
fn replica(primary: &FaultProxy) -> RedisServer {
    let port = primary.port().to_string();
    let flags = ["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"];
    RedisServer::start_with(&RedisServer::versions()[0].path, &flags)
}

/// Waits until a replica has all that its primary has. WAIT would ask for what its own connection has
/// written, which is nothing; and a primary that never had a replica is at offset 0, as is one that has
/// not found its primary yet.
#[track_caller]
fn caught_up(replica: &RedisServer, primary: &RedisServer) {
    let reply = |server: &RedisServer, name| server.info("replication", name);
    eventually(|| {
        reply(replica, "master_link_status") == "up"
            && reply(replica, "master_repl_offset") == reply(primary, "master_repl_offset")
    });
}

/// `./evidence faults` looks longer.
pub(crate) fn evidence() -> bool {
    std::env::var_os("SPILLGATE_EVIDENCE").is_some()
}

/// Whether a server holds a key of that name: tells that a test reached what it means.
pub(crate) fn field(server: &RedisServer, section: &str, name: &str) -> u64 {
    server.info(section, name).parse().unwrap()
}

pub(crate) fn is_refused(reply: &Reply, code: &str) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with(code))
}

/// Longer than the default, so that a busy machine is not taken for a fault.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(150);
/// No caller waits longer for a verdict: many times the time-out.
pub(crate) const CEILING: Duration = Duration::from_secs(2);
/// Reconnecting waits up to two seconds between attempts, and a breaker a little.
pub(crate) const HEALING: Duration = Duration::from_secs(15);
const YEAR: Duration = Duration::from_secs(366 * 86_400);
