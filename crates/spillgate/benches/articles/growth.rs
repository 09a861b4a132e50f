//! How speed changes with growth: the number of keys, the size of a limit, rules that no request matches, overrides
//! and networks of the one that does, counters per decision, and servers of a ring.

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillgate::store::Ring;
use spillgate::{Limit, Limiter, Policy, Request};
use spillgate_testkit::RedisServer;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::baseline::Baseline;
use crate::grid::{Grid, rounded};
use crate::load::{cpu_seconds, drive, key, limiter_on, runtime, shuffled};
use crate::output::grouped;
use crate::rounds::{Effort, Rounds, Run};

mod policies;

pub fn along_each_dimension(effort: Effort) -> Outcome {
    let grown = [
        keys_in_redis(effort)?,
        keys_in_memory(effort)?,
        limit_size(effort)?,
        policies::idle_rules(effort)?,
        policies::overrides(effort)?,
        policies::networks(effort)?,
        counters(effort)?,
        ring(effort)?,
    ];
    let bounded = Grid {
        title: "Growing all the way, times slower".to_owned(),
        heads: vec!["dimension", "from, to", "Spillgate", "baseline", "ratio", "floor", ""],
        rows: grown.iter().flat_map(Grown::bounded).collect(),
    };
    Ok(grown.iter().map(Grown::grid).chain([bounded]).collect())
}

/// One dimension that grows.
struct Grown {
    title: &'static str,
    counts: &'static str,
    heads: Vec<&'static str>,
    points: Vec<String>,
    /// For each head but the first, one value per point.
    values: Vec<Vec<f64>>,
    /// How much slower the largest point may be than the smallest.
    bound: Option<Bound>,
}

/// The most that speed at the first point may exceed speed at the last point, as a factor.
#[derive(Clone, Copy)]
struct Bound {
    most: f64,
    /// Divide by the loss of the last line, which is the baseline.
    beside_last: bool,
}

impl Grown {
    /// One row for each line that has a bound.
    fn bounded(&self) -> Vec<Vec<String>> {
        let Some(bound) = self.bound else { return Vec::new() };
        let loss = |values: &Vec<f64>| values[0] / values[values.len() - 1];
        let baseline = self.values.last().filter(|_| bound.beside_last).map(loss);
        let ends = format!("{}, {}", self.points[0], self.points[self.points.len() - 1]);
        let lines = self.heads[1..].iter().zip(&self.values);
        let lines = lines.take(self.values.len() - usize::from(bound.beside_last));
        let row = |(head, values): (&&str, &Vec<f64>)| {
            let ratio = loss(values) / baseline.unwrap_or(1.0);
            vec![
                format!("{}, {head}", self.title),
                ends.clone(),
                format!("{:.2}", loss(values)),
                baseline.map_or_else(String::new, |loss| format!("{loss:.2}")),
                format!("{ratio:.2}"),
                format!("≤ {}", bound.most),
                if ratio <= bound.most { "holds" } else { "falls short" }.to_owned(),
            ]
        };
        lines.map(row).collect()
    }

    fn grid(&self) -> Grid {
        let row = |(place, point): (usize, &String)| {
            let values = self.values.iter().map(|values| rounded(values[place]));
            [point.clone()].into_iter().chain(values).collect()
        };
        Grid {
            title: format!("{}: {}", self.title, self.counts),
            heads: self.heads.clone(),
            rows: self.points.iter().enumerate().map(row).collect(),
        }
    }
}

/// Calls over `KEYS_IN_REDIS` existing keys, each key equally often, in shuffled order.
fn keys_in_redis(effort: Effort) -> Result<Grown, Box<dyn Error>> {
    let runtime = runtime();
    let mut stores = Vec::new();
    for keys in KEYS_IN_REDIS {
        stores.push(runtime.block_on(Filled::with(keys))?);
    }
    let mut contenders: Vec<Box<dyn FnMut() -> Run + '_>> = Vec::new();
    for store in &stores {
        contenders.push(Box::new(|| store.checks(&runtime, effort)));
        contenders.push(Box::new(|| store.sets(&runtime, effort)));
    }
    let figures = in_turns(effort, &mut contenders);
    drop(contenders);
    let of_every_other = |first| figures.iter().skip(first).step_by(2).copied().collect();
    Ok(Grown {
        title: "Keys in one Redis",
        counts: "calls a second, 200 callers",
        heads: vec!["keys", "Spillgate", "SET PX, one per call"],
        points: KEYS_IN_REDIS.map(|keys| grouped(keys.into())).into(),
        values: vec![of_every_other(0), of_every_other(1)],
        bound: Some(Bound { most: 1.2, beside_last: true }),
    })
}

/// A server with a bucket and a plain value for each subject.
struct Filled {
    server: RedisServer,
    limiter: Limiter,
    bare: Baseline,
    order: Arc<Vec<u32>>,
}

impl Filled {
    async fn with(keys: u32) -> Result<Filled, Box<dyn Error>> {
        let server = RedisServer::start();
        let limiter = limiter_on(&server).await?;
        let bare = Baseline::connect(&server).await?;
        let order = Arc::new(shuffled(keys));
        let limit = slow();
        for names in order.chunks(500) {
            let names: Vec<String> = names.iter().map(|key| format!("user:{key}")).collect();
            let request = |key| Request::keyed(key, limit.clone());
            let requests: Vec<_> = names.iter().map(|name| request(name.as_str())).collect();
            limiter.check_batch(&requests).await;
            bare.set(names.iter().map(|name| format!("set:{name}")), TTL_MS).await;
        }
        Ok(Filled { server, limiter, bare, order })
    }

    fn checks(&self, runtime: &Runtime, effort: Effort) -> Run {
        let (limiter, order) = (self.limiter.clone(), Arc::clone(&self.order));
        drive(runtime, &self.server, CALLERS, effort.span, move |caller, call| {
            let (limiter, key) = (limiter.clone(), place(&order, caller, call));
            async move {
                let _ = limiter.check(&Request::keyed(format!("user:{key}"), slow())).await;
                1
            }
        })
    }

    fn sets(&self, runtime: &Runtime, effort: Effort) -> Run {
        let (bare, order) = (self.bare.clone(), Arc::clone(&self.order));
        drive(runtime, &self.server, CALLERS, effort.span, move |caller, call| {
            let (bare, key) = (bare.clone(), place(&order, caller, call));
            async move {
                bare.set([format!("set:user:{key}")].into_iter(), TTL_MS).await;
                1
            }
        })
    }
}

fn place(order: &[u32], caller: usize, call: usize) -> u32 {
    order[(caller * 7_919 + call) % order.len()]
}

fn keys_in_memory(effort: Effort) -> Result<Grown, Box<dyn Error>> {
    let runtime = runtime();
    let limit = ample();
    let mut contenders: Vec<Box<dyn FnMut() -> Run + '_>> = Vec::new();
    for keys in KEYS {
        let limiter = runtime.block_on(Limiter::builder().build())?;
        let names: Vec<String> = (0..keys).map(|key| format!("user:{key}")).collect();
        let order = shuffled(keys);
        runtime.block_on(async {
            for name in &names {
                let _ = limiter.check(&Request::keyed(name, &limit)).await;
            }
        });
        let (runtime, limit) = (&runtime, &limit);
        contenders.push(Box::new(move || {
            runtime.block_on(measured(effort, &order, async |place: &u32| {
                let _ =
                    black_box(limiter.check(&Request::keyed(&names[*place as usize], limit)).await);
            }))
        }));
    }
    let ours = in_turns(effort, &mut contenders);
    drop(contenders);
    Ok(Grown {
        title: "Keys in memory",
        counts: "thousand checks a second, one thread",
        heads: vec!["keys", "Spillgate"],
        points: KEYS.map(|keys| grouped(keys.into())).into(),
        values: vec![ours],
        bound: None,
    })
}

fn limit_size(effort: Effort) -> Result<Grown, Box<dyn Error>> {
    let server = RedisServer::start();
    let runtime = runtime();
    let limiter = runtime.block_on(limiter_on(&server))?;
    let sizes = [10_u64, 1_000, 100_000, 1_000_000];
    let algorithms = ["token-bucket", "fixed-window", "sliding-window"];
    let mut contenders: Vec<Box<dyn FnMut() -> Run + '_>> = Vec::new();
    for algorithm in algorithms {
        for size in sizes {
            let spec = spillgate::LimitSpec::new(format!("{size}/hour")).algorithm(algorithm);
            let limit = spec.build()?;
            let (server, runtime, limiter) = (&server, &runtime, &limiter);
            contenders.push(Box::new(move || {
                let (limiter, limit) = (limiter.clone(), limit.clone());
                drive(runtime, server, CALLERS, effort.span, move |caller, call| {
                    let (limiter, limit) = (limiter.clone(), limit.clone());
                    async move {
                        // Each size and algorithm has subjects of its own.
                        let key = format!("{algorithm}:{size}:{caller}:{call}");
                        let _ = limiter.check(&Request::keyed(&key, &limit)).await;
                        1
                    }
                })
            }));
        }
    }
    let figures = in_turns(effort, &mut contenders);
    drop(contenders);
    Ok(Grown {
        title: "Size of the limit, an hour",
        counts: "decisions a second, 200 callers, each key once per round",
        heads: [vec!["limit"], algorithms.into()].concat(),
        points: sizes.map(grouped).into(),
        values: figures.chunks(sizes.len()).map(<[f64]>::to_vec).collect(),
        bound: Some(Bound { most: 1.2, beside_last: false }),
    })
}

fn counters(effort: Effort) -> Result<Grown, Box<dyn Error>> {
    let server = RedisServer::start();
    let runtime = runtime();
    let counts = [1_usize, 2, 3, 4, 8];
    let mut values = vec![Vec::new(), Vec::new()];
    for counters in counts {
        let limits = |range: std::ops::Range<usize>| {
            range.map(|place| format!("\"{}/second\"", 100 << place)).collect::<Vec<_>>().join(", ")
        };
        let one = format!(
            "[[rule]]\nname = \"one\"\nkey = [\"user\"]\nlimits = [{}]\n",
            limits(0..counters)
        );
        let several: String = (0..counters)
            .map(|place| {
                let limit = limits(place..place + 1);
                format!("[[rule]]\nname = \"r{place}\"\nkey = [\"user\"]\nlimits = [{limit}]\n")
            })
            .collect();
        let mut contenders: Vec<Box<dyn FnMut() -> Run + '_>> = Vec::new();
        for policy in [one, several] {
            let limiter = runtime.block_on(limiter_on(&server))?;
            limiter.set_policy(Policy::from_toml(&policy)?);
            let (server, runtime) = (&server, &runtime);
            contenders.push(Box::new(move || {
                let limiter = limiter.clone();
                drive(runtime, server, CALLERS, effort.span, move |caller, call| {
                    let limiter = limiter.clone();
                    async move {
                        let _ =
                            limiter.check(&Request::new().with("user", key(caller, call))).await;
                        1
                    }
                })
            }));
        }
        let rounds = Rounds::of(effort, &mut contenders);
        drop(contenders);
        for (place, values) in values.iter_mut().enumerate() {
            values.push(rounds.figure(place));
        }
        server.command(&["FLUSHALL"]);
    }
    Ok(Grown {
        title: "Counters per decision, on Redis",
        counts: "decisions a second, 200 callers",
        heads: vec!["counters", "limits of one rule", "rules of one limit"],
        points: counts.map(|counters| counters.to_string()).into(),
        values,
        bound: None,
    })
}

/// Client and servers share this machine, so read the CPU per decision rather than the rate.
fn ring(effort: Effort) -> Result<Grown, Box<dyn Error>> {
    let runtime = Runtime::new()?;
    let counts = [1_usize, 2, 4];
    let mut values = vec![Vec::new(), Vec::new()];
    for nodes in counts {
        let servers: Vec<RedisServer> = (0..nodes).map(|_| RedisServer::start()).collect();
        let ring = servers.iter().enumerate().fold(Ring::new(), |ring, (number, server)| {
            ring.node(format!("node-{number}"), server.url())
        });
        let builder = Limiter::builder().ring(ring).timeout(Duration::from_secs(5));
        let limiter = runtime.block_on(builder.build())?;
        let run = || {
            let cpu = || servers.iter().map(cpu_seconds).sum::<f64>();
            let (before, limiter, begun) = (cpu(), limiter.clone(), Instant::now());
            let run = drive(&runtime, &servers[0], CALLERS, effort.span, move |caller, call| {
                let limiter = limiter.clone();
                async move {
                    let _ = limiter.check(&Request::keyed(key(caller, call), slow())).await;
                    1
                }
            });
            let decisions = run.figure * begun.elapsed().as_secs_f64();
            Run { store_us: (cpu() - before) * 1e9 / decisions / nodes as f64, ..run }
        };
        let rounds = Rounds::of(effort, &mut [Box::new(run)]);
        values[0].push(rounds.figure(0));
        values[1].push(rounds.store_us(0));
    }
    Ok(Grown {
        title: "Servers of a ring",
        counts: "decisions a second on this machine; ns of CPU on each server per decision",
        heads: vec!["servers", "decisions a second", "ns of CPU on each server"],
        points: counts.map(|nodes| nodes.to_string()).into(),
        values,
        bound: None,
    })
}

/// Measures all contenders in turns and returns the median of each: a machine's speed drifts more than these
/// figures do.
fn in_turns(effort: Effort, contenders: &mut [Box<dyn FnMut() -> Run + '_>]) -> Vec<f64> {
    let rounds = Rounds::of(effort, contenders);
    (0..contenders.len()).map(|place| rounds.figure(place)).collect()
}

/// Calls `call` over `all` repeatedly during the effort's span. The figure is thousands of calls per second.
async fn measured<T>(effort: Effort, all: &[T], mut call: impl AsyncFnMut(&T)) -> Run {
    let (start, mut calls) = (Instant::now(), 0_u64);
    while start.elapsed() < effort.span {
        for one in all.iter().cycle().skip(calls as usize % all.len()).take(1_000) {
            call(one).await;
            calls += 1;
        }
    }
    Run { figure: calls as f64 / 1_000.0 / start.elapsed().as_secs_f64(), store_us: 0.0 }
}

/// A limit that admits every call on a store. A single charge is remembered for most of an hour, which is
/// longer than filling a server takes.
fn slow() -> Limit {
    Limit::per(10_000, Duration::from_secs(365 * 86_400))
}

/// A limit that admits every call in memory, at ten million a second.
fn ample() -> Limit {
    Limit::per_hour(120).burst(100_000_000)
}

const KEYS: [u32; 4] = [1_000, 10_000, 100_000, 1_000_000];
const KEYS_IN_REDIS: [u32; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];
const CALLERS: usize = 200;
const TTL_MS: u64 = 600_000;
