//! A reservation and its settlement on Redis, against one check. Both share calls with other callers.

use spillgate::reservation::{Reserve, Usage};
use spillgate::{Cost, Limiter, Request};
use spillgate_testkit::RedisServer;

use crate::Outcome;
use crate::baseline::limit;
use crate::load::{drive, key, limiter_on, runtime};
use crate::rounds::{Effort, Rounds};
use crate::table::{Floor, Table};

pub fn against_checks(effort: Effort) -> Outcome {
    let server = RedisServer::start();
    let runtime = runtime();
    let limiter = runtime.block_on(limiter_on(&server))?;
    let reserved = || {
        let limiter = limiter.clone();
        drive(&runtime, &server, CALLERS, effort.span, move |caller, call| {
            let limiter = limiter.clone();
            async move {
                reserve_and_settle(&limiter, &key(caller, call)).await;
                1
            }
        })
    };
    let checked = || {
        let limiter = limiter.clone();
        drive(&runtime, &server, CALLERS, effort.span, move |caller, call| {
            let limiter = limiter.clone();
            async move {
                let _ = limiter.check(&Request::keyed(key(caller, call), limit()).costing(2)).await;
                1
            }
        })
    };
    let rounds = Rounds::of(effort, &mut [Box::new(reserved), Box::new(checked)]);
    let rows = vec![
        rounds.rate_row("reserve and settle, against one check", 0, 1, Floor::Nothing),
        rounds.cpu_row("Redis CPU of both, against that of one check", 0, 1, Floor::AtMost(TIMES)),
    ];
    let title = format!("Redis, reservations of one counter, distinct keys, {CALLERS} callers");
    Ok(vec![Table { title, rows }])
}

async fn reserve_and_settle(limiter: &Limiter, key: &str) {
    let cost = Cost::requests(2);
    let request = Request::keyed(key, limit()).costing(cost);
    let decision = limiter.reserve(&request, &Reserve::default()).await;
    if let Some(receipt) = decision.ok().as_ref().and_then(|decision| decision.receipt()) {
        // The count is the same if the settlement fails.
        let _ = limiter.settle(receipt, &Usage::from(1)).await;
    }
}

const CALLERS: usize = 200;
/// The most that both calls together may cost, in checks.
const TIMES: f64 = 4.1;
