//! Decisions under real faults of real servers, named as in docs/internals/faults.md. Every decision comes
//! within the ceiling, admissions never exceed the stated bound, and the system recovers by itself.

use std::time::Duration;

use spillgate::{Decision, Limit, Limiter, LimiterBuilder, Request, Source};
use spillgate_testkit::{FaultProxy, RedisServer, Reply, eventually, poll};
use tokio::runtime::{Builder, Runtime};

use crate::support::clock::Clock;

mod clocks;
mod cluster;
mod connections;
mod elections;
mod exhausted_after_loss;
mod many_callers;
mod minority;
mod outage;
mod overload;
mod record;
mod rolling_restart;
mod sentinel;
mod server_errors;
mod starved;
mod state_loss;
mod table;

/// A limiter on a store that will fail.
pub(crate) struct Patient {
    pub(crate) limiter: Limiter,
    runtime: Runtime,
}

impl Patient {
    pub(crate) fn on(url: &str) -> Patient {
        Patient::built(Limiter::builder().redis(url).timeout(TIMEOUT))
    }

    pub(crate) fn built(builder: LimiterBuilder) -> Patient {
        // Background recovery continues between the checks.
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        // These tests examine the store's decisions, which the denial cache would hide.
        let builder = builder.expected_instances((ALL / SHARE) as u32).denial_cache(false);
        let opening = async { tokio::time::timeout(CEILING, builder.build()).await };
        let limiter =
            runtime.block_on(opening).expect("a limiter starts without its store").unwrap();
        Patient { limiter, runtime }
    }

    /// Makes one check, which must return within the ceiling.
    #[track_caller]
    pub(crate) fn check(&self, key: &str, limit: &Limit) -> Decision {
        self.run(async {
            let request = Request::keyed(key, limit);
            let check = self.limiter.check(&request);
            tokio::time::timeout(CEILING, check).await.expect("a decision within two seconds")
        })
    }

    /// Returns how many of `checks` checks, one after another, are allowed.
    #[track_caller]
    pub(crate) fn admitted(&self, checks: usize, key: &str, limit: &Limit) -> u64 {
        (0..checks).filter(|_| self.check(key, limit).allowed()).count() as u64
    }

    /// Waits until the store decides again.
    #[track_caller]
    pub(crate) fn heals(&self) {
        self.settles(Source::Store);
    }

    /// Waits until the limiter has noticed the outage.
    #[track_caller]
    pub(crate) fn falls_back(&self) {
        self.settles(Source::Fallback);
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Checks a subject that no test uses, with a charge: a server that denies writes may still serve reads.
    #[track_caller]
    fn settles(&self, source: Source) {
        let wide = Limit::per_second(1_000_000);
        let settled =
            poll(HEALING, || (self.check("a bystander", &wide).source() == source).then_some(()));
        let stats = self.limiter.stats();
        assert!(settled.is_some(), "not by {source:?} after {HEALING:?}: {stats:?}");
    }
}

/// The local share of `ALL` for one of sixteen expected instances.
pub(crate) const SHARE: u64 = 10;
pub(crate) const ALL: u64 = 160;

/// `ALL` per year: nothing refills while a test runs.
pub(crate) fn limit() -> Limit {
    Limit::per(ALL, YEAR)
}

/// Returns what the store has counted for a key, read directly, past the fault.
#[track_caller]
pub(crate) fn counted_by(server: &RedisServer, key: &str, limit: &Limit) -> u64 {
    counted(Limiter::builder().redis(server.url()), key, limit)
}

/// Returns what the store has counted for a key at the time of `clock`.
#[track_caller]
pub(crate) fn counted_at(clock: &Clock, server: &RedisServer, key: &str, limit: &Limit) -> u64 {
    counted(Limiter::builder().redis(server.url()).manual_clock(clock.manual()), key, limit)
}

#[track_caller]
fn counted(builder: LimiterBuilder, key: &str, limit: &Limit) -> u64 {
    let onlooker = Patient::built(builder.timeout(CEILING));
    let seen = onlooker.run(onlooker.limiter.check(&Request::keyed(key, limit).costing(0)));
    assert_eq!(seen.source(), Source::Store);
    limit.capacity().unwrap() - seen.remaining().unwrap()
}

/// A replica that follows its primary through a proxy, from the first synchronisation on.
fn replica(primary: &FaultProxy) -> RedisServer {
    let port = primary.port().to_string();
    let flags = ["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"];
    RedisServer::start_with(&RedisServer::versions()[0].path, &flags)
}

/// Waits until a replica has all data of its primary.
///
/// WAIT would wait for writes of its own connection, of which there are none. A primary that never had a
/// replica is at offset 0, and so is a replica that has not found its primary.
#[track_caller]
fn caught_up(replica: &RedisServer, primary: &RedisServer) {
    let replication = |server: &RedisServer, name| server.info("replication", name);
    eventually(|| {
        replication(replica, "master_link_status") == "up"
            && replication(replica, "master_repl_offset")
                == replication(primary, "master_repl_offset")
    });
}

/// Returns whether `./evidence` runs this test, for longer than the gate.
pub(crate) fn evidence() -> bool {
    std::env::var_os("SPILLGATE_EVIDENCE").is_some()
}

/// Returns a field of the server's INFO, which shows that a test reached its target.
pub(crate) fn field(server: &RedisServer, section: &str, name: &str) -> u64 {
    server.info(section, name).parse().unwrap()
}

pub(crate) fn is_error(reply: &Reply, code: &str) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with(code))
}

/// Longer than the default, so that a busy machine does not look like a fault.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(150);
/// No caller waits longer for a decision: many times the timeout.
pub(crate) const CEILING: Duration = Duration::from_secs(2);
/// Reconnecting waits up to two seconds between attempts, and the circuit breaker a little longer.
pub(crate) const HEALING: Duration = Duration::from_secs(15);
/// The period of limits that refill nothing while a test runs.
pub(crate) const YEAR: Duration = Duration::from_secs(366 * 86_400);
