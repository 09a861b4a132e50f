//! How the number of connections to one server affects throughput.

use std::sync::Arc;
use std::time::Duration;

use spillgate::{Limit, Limiter, Request};
use spillgate_testkit::RedisServer;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::baseline::{Baseline, QUOTA};
use crate::grid::{Grid, micros, rounded};
use crate::load::{drive, key};
use crate::rounds::{Effort, Rounds, Run};

pub fn one_to_fifty(effort: Effort) -> Outcome {
    let server = RedisServer::start();
    let runtime = Runtime::new()?;
    let mut ours = Vec::new();
    let mut bare = Vec::new();
    for connections in COUNTS {
        let builder = Limiter::builder().redis(server.url()).timeout(Duration::from_secs(5));
        // The builder accepts at most 16 connections.
        ours.push(match connections {
            ..=16 => Some(runtime.block_on(builder.connections(connections).build())?),
            _ => None,
        });
        let mut each = Vec::new();
        for _ in 0..connections {
            each.push(runtime.block_on(Baseline::connect(&server))?);
        }
        bare.push(Arc::new(each));
    }
    let mut contenders: Vec<Box<dyn FnMut() -> Run + '_>> = Vec::new();
    for (limiter, bare) in ours.iter().zip(&bare) {
        let (server, runtime) = (&server, &runtime);
        contenders.push(Box::new(move || {
            let Some(limiter) = limiter.clone() else { return Run { figure: 0.0, store_us: 0.0 } };
            drive(runtime, server, CALLERS, effort.span, move |caller, call| {
                let limiter = limiter.clone();
                async move {
                    let limit = Limit::per_second(QUOTA.0).burst(QUOTA.1);
                    let _ = limiter.check(&Request::keyed(key(caller, call), &limit)).await;
                    1
                }
            })
        }));
        contenders.push(Box::new(move || {
            let bare = Arc::clone(bare);
            drive(runtime, server, CALLERS, effort.span, move |caller, call| {
                let bare = Arc::clone(&bare);
                async move {
                    bare[caller % bare.len()].check(&format!("bare:{}", key(caller, call))).await;
                    1
                }
            })
        }));
    }
    let rounds = Rounds::of(effort, &mut contenders);
    drop(contenders);
    let rows = COUNTS.iter().enumerate().map(|(place, connections)| {
        let (ours, bare) = (2 * place, 2 * place + 1);
        let reply = |text: String| if *connections > 16 { "-".to_owned() } else { text };
        vec![
            connections.to_string(),
            reply(rounded(rounds.figure(ours))),
            reply(micros(rounds.store_us(ours))),
            rounded(rounds.figure(bare)),
            micros(rounds.store_us(bare)),
        ]
    });
    Ok(vec![Grid {
        title: format!("Connections to one server, {CALLERS} callers, distinct keys"),
        heads: vec![
            "connections",
            "Spillgate, decisions a second",
            "Redis CPU each",
            "bare EVALSHA a second",
            "Redis CPU each",
        ],
        rows: rows.collect(),
    }])
}

const COUNTS: [usize; 6] = [1, 2, 4, 8, 16, 50];
const CALLERS: usize = 200;
