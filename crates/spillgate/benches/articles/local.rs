//! How many checks are decided without asking the store, and whether any of them exceeds its limit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use spillgate::{Limiter, Policy, Request, Source};
use spillgate_testkit::RedisServer;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::grid::{Grid, percent};
use crate::rounds::Effort;

pub fn share_decided_here(_: Effort) -> Outcome {
    let runtime = Runtime::new()?;
    let shapes = [
        ("distinct keys, far from their limits", 100_000, 1_000_000),
        ("Zipf over 10,000 keys, a few at their limits", 10_000, 200),
        ("ten hot keys, far from their limits", 10, 1_000_000),
        ("ten hot keys, soon at their limits", 10, 2_000),
    ];
    let mut rows = Vec::new();
    for (name, keys, count) in shapes {
        for leases in [false, true] {
            rows.push(runtime.block_on(shape(name, keys, count, leases))?);
        }
    }
    Ok(vec![Grid {
        title: format!(
            "{CALLS} checks by one process of {CALLERS} callers, by the source of the decision"
        ),
        heads: vec![
            "keys",
            "leases",
            "store",
            "lease",
            "denial cache",
            "admitted",
            "charged",
            "over a limit",
        ],
        rows,
    }])
}

async fn shape(
    name: &str,
    keys: u64,
    count: u64,
    leases: bool,
) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let server = RedisServer::start();
    let lease = if leases { "lease = { share = 0.05, ttl = \"1s\" }\n" } else { "" };
    // Nothing drains within this period, so the admitted calls can be counted exactly.
    let policy = format!(
        "[[rule]]\nname = \"api\"\nkey = [\"user\"]\n\
         limits = [{{ quota = \"{count}/366d\", algorithm = \"fixed-window\" }}]\n{lease}"
    );
    let limiter = Limiter::builder()
        .policy(Policy::from_toml(&policy)?)
        .redis(server.url())
        .timeout(Duration::from_secs(5))
        .build()
        .await?;
    let seen = Arc::new(Mutex::new((BTreeMap::<&str, u64>::new(), BTreeMap::<u64, u64>::new())));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (limiter, seen) = (limiter.clone(), Arc::clone(&seen));
            tokio::spawn(async move {
                let mut state = caller + 1;
                for _ in 0..CALLS / CALLERS {
                    let user = drawn(&mut state, keys);
                    let request = Request::new().with("user", user.to_string());
                    let decision = limiter.check(&request).await;
                    if decision.source() != Source::Store {
                        tokio::task::yield_now().await;
                    }
                    let mut seen = seen.lock().expect("no holder of this lock panics");
                    *seen.0.entry(decision.source().name()).or_default() += 1;
                    *seen.1.entry(user).or_default() += u64::from(decision.allowed());
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await?;
    }
    limiter.close().await;
    let (by_source, admitted) =
        std::mem::take(&mut *seen.lock().expect("no holder of this lock panics"));
    let (mut charged, mut beyond) = (0, 0);
    for (user, admitted) in &admitted {
        let peeked = limiter.peek(&Request::new().with("user", user.to_string())).await;
        charged += count - peeked.remaining().unwrap_or(0);
        beyond += admitted.saturating_sub(count);
    }
    let of = |source: Source| {
        percent(by_source.get(source.name()).copied().unwrap_or(0) as f64, CALLS as f64)
    };
    Ok(vec![
        name.to_owned(),
        if leases { "5 %" } else { "none" }.to_owned(),
        of(Source::Store),
        of(Source::Lease),
        of(Source::DenialCache),
        admitted.values().sum::<u64>().to_string(),
        charged.to_string(),
        beyond.to_string(),
    ])
}

/// Draws a key. Of 10,000 keys the n-th comes 1/n as often as the first; of other counts each comes equally
/// often.
fn drawn(state: &mut u64, keys: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    let part = (*state >> 11) as f64 / (1_u64 << 53) as f64;
    match keys {
        10_000 => ((keys as f64).powf(part) - 1.0) as u64,
        _ => (part * keys as f64) as u64,
    }
}

const CALLS: u64 = 200_000;
const CALLERS: u64 = 64;
