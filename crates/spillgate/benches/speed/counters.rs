//! Decisions over several counters. Counters of one rule and subject share a value in Redis; counters of
//! several rules or subjects do not.

use std::error::Error;

use spillgate::{Limiter, Policy, Request};
use spillgate_testkit::RedisServer;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::load::{drive, key, limiter_on, runtime};
use crate::rounds::{Effort, Rounds, Run};
use crate::table::{Floor, Table};

pub fn one_to_eight(effort: Effort) -> Outcome {
    let server = RedisServer::start();
    let runtime = runtime();
    let limiters = SHAPES
        .iter()
        .map(|shape| {
            let limiter = runtime.block_on(limiter_on(&server))?;
            limiter.set_policy(shape.policy()?);
            Ok(limiter)
        })
        .collect::<Result<Vec<Limiter>, Box<dyn Error>>>()?;
    let modes = [
        ("one decision per call, 200 callers", Mode { callers: 200, batch: 1 }),
        ("32 decisions per call, 8 callers", Mode { callers: 8, batch: 32 }),
    ];
    let table = |(name, mode)| {
        let mut contenders: Vec<Box<dyn FnMut() -> Run>> = Vec::new();
        for limiter in &limiters {
            let (server, runtime) = (&server, &runtime);
            contenders.push(Box::new(move || decide(effort, server, runtime, limiter, mode)));
        }
        let rounds = Rounds::of(effort, &mut contenders);
        let rows = SHAPES
            .iter()
            .enumerate()
            .map(|(contender, shape)| rounds.rate_row(shape.name(), contender, 0, shape.floor()));
        Table {
            title: format!("Redis, {name}; baseline: one counter"),
            rows: rows.skip(1).collect(),
        }
    };
    Ok(modes.map(table).into())
}

/// How many callers there are, and how many decisions each call holds.
#[derive(Clone, Copy)]
struct Mode {
    callers: usize,
    batch: usize,
}

/// How the counters of a decision are spread over rules.
#[derive(Clone, Copy)]
enum Shape {
    /// This many limits of one rule and subject.
    OneRule(usize),
    /// This many rules of one limit, each with a subject of its own.
    SeveralRules(usize),
}

impl Shape {
    fn name(self) -> String {
        match self {
            Shape::OneRule(counters) => format!("{counters} counters of one rule"),
            Shape::SeveralRules(rules) => format!("{rules} rules and subjects"),
        }
    }

    fn floor(self) -> Floor {
        match self {
            Shape::OneRule(3) => Floor::AtLeast(0.6),
            Shape::SeveralRules(3) => Floor::AtLeast(0.3),
            _ => Floor::Nothing,
        }
    }

    /// All limits differ, as the limits of one rule must.
    fn policy(self) -> Result<Policy, Box<dyn Error>> {
        let quota = |place: usize| format!("\"{}/second\"", 100 << place);
        let rule = |place: usize, limits: &[String]| {
            format!(
                "[[rule]]\nname = \"r{place}\"\nkey = [\"user\"]\nlimits = [{}]\n",
                limits.join(", ")
            )
        };
        let text: String = match self {
            Shape::OneRule(counters) => {
                rule(counters, &(0..counters).map(quota).collect::<Vec<_>>())
            }
            Shape::SeveralRules(rules) => {
                (0..rules).map(|place| rule(place, &[quota(place)])).collect()
            }
        };
        Ok(Policy::from_toml(&text)?)
    }
}

fn decide(
    effort: Effort,
    server: &RedisServer,
    runtime: &Runtime,
    limiter: &Limiter,
    mode: Mode,
) -> Run {
    server.command(&["FLUSHALL"]);
    let limiter = limiter.clone();
    drive(runtime, server, mode.callers, effort.span, move |caller, call| {
        let limiter = limiter.clone();
        async move {
            if mode.batch == 1 {
                let _ = limiter.check(&Request::new().with("user", key(caller, call))).await;
                return 1;
            }
            let requests: Vec<Request<'_>> = (call * mode.batch..(call + 1) * mode.batch)
                .map(|number| Request::new().with("user", key(caller, number)))
                .collect();
            limiter.check_batch(&requests).await.len()
        }
    })
}

const SHAPES: [Shape; 11] = [
    Shape::OneRule(1),
    Shape::OneRule(2),
    Shape::OneRule(3),
    Shape::OneRule(4),
    Shape::OneRule(6),
    Shape::OneRule(8),
    Shape::SeveralRules(2),
    Shape::SeveralRules(3),
    Shape::SeveralRules(4),
    Shape::SeveralRules(6),
    Shape::SeveralRules(8),
];
