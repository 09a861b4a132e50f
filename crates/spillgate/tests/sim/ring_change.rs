//! A ring change while the old owner answers too late.

use std::rc::Rc;
use std::time::Duration;

use spillgate::store::Ring;
use spillgate::{Limit, Limiter, Request, Source};
use spillgate_redis::simulation;
use tokio::task::LocalSet;
use tokio::time::sleep;

use super::ledger::{Ledger, START_US};
use super::lua::Host;
use super::network::{Line, Network};
use super::server::Server;

/// A call timed out at the old owner but was executed there after all, and the circuit breaker opened at that call.
/// The new owner did not execute it, so the charge was deferred and then sent to both.
#[test]
fn a_call_that_timed_out_at_the_old_owner_is_not_deferred() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let ledger = Rc::new(Ledger::new());
        let host = Rc::new(Host::new());
        let servers = ["a", "b"].map(|name| (name.to_owned(), Server::new(&host)));
        let network = Network::new(servers.into(), 1, &ledger);
        let inside = simulation::enter(1, START_US, network.dial());
        let on = async |ring| {
            let builder = Limiter::builder().ring(ring).timeout(TIMEOUT).expected_instances(1);
            builder.denial_cache(false).build().await.unwrap()
        };
        let old = |process| Ring::numbered(1).node("a", format!("redis://a.p{process}:6379"));
        let direct = on(old(2)).await;
        let new = Ring::numbered(2).node("a", "redis://a.p1:6379").node("b", "redis://b.p1:6379");
        let limiter = on(new.replacing(old(1))).await;
        let limit = Limit::per(COUNT, Duration::from_hours(24 * 365));

        let subjects_on_b = || network.server("b", |server| server.keys.borrow().keys().count());
        let check = async |user: &str| limiter.check(&Request::keyed(user, &limit)).await.source();
        let mut moved = Vec::new();
        for user in (0..).map(|user| format!("user {user}")) {
            let before = subjects_on_b();
            assert_eq!(check(&user).await, Source::Store);
            if subjects_on_b() > before {
                moved.push(user);
            }
            if moved.len() == 2 {
                break;
            }
        }
        let (mine, other) = (&moved[0], &moved[1]);
        let charged = async || {
            let read = Request::keyed(mine, &limit).costing(0);
            COUNT - direct.check(&read).await.remaining().unwrap()
        };
        assert_eq!(charged().await, 1);

        network.kill("b");
        network.set_line(1, "a", Line { later_ms: LATER_MS, ..Line::default() });
        let is_open = || limiter.shards().iter().any(|shard| shard.name == "a" && !shard.asked);
        let mut late = 0;
        while !is_open() {
            assert_eq!(check(mine).await, Source::Fallback);
            late += 1;
            assert!(late < COUNT, "the circuit breaker stays closed");
        }
        network.fix_lines();
        network.start("b", true);
        for _ in 0..COUNT {
            if check(other).await == Source::Store {
                break;
            }
            sleep(TIMEOUT).await;
        }
        assert_eq!(check(mine).await, Source::Store);
        assert_eq!(charged().await, 1 + late + 1, "{late} calls were late, and one was not");
        drop(inside);
    });
}

/// A call arrives in time, its reply does not. The instance sends other calls every 50 ms: their
/// replies must leave gaps longer than the timeout, or the slow server counts as working.
const TIMEOUT: Duration = Duration::from_millis(40);
const LATER_MS: u64 = 32;
const COUNT: u64 = 1_000;
