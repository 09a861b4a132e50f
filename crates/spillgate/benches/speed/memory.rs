//! The memory engine against governor's keyed check: a tight loop over the same keys in the same order.

use std::error::Error;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Instant;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use spillgate::{Limit, Limiter, Policy, Request};

use crate::Outcome;
use crate::load::{runtime, shuffled};
use crate::rounds::{Effort, Rounds, Run};
use crate::table::{Budget, Row, Table, rate};

pub fn against_governor(effort: Effort) -> Outcome {
    let mut rows = Vec::new();
    for (keys, budget) in [(100_000, Budget::AtLeast(2.0)), (1_000, Budget::Nothing)] {
        rows.extend(checks(effort, keys, budget)?);
    }
    let title = "Memory engine, one tier, one thread; yardstick: governor's keyed check".into();
    Ok(vec![Table { title, rows }])
}

fn checks(effort: Effort, keys: u32, budget: Budget) -> Result<[Row; 2], Box<dyn Error>> {
    let names: Vec<String> = (0..keys).map(|number| format!("user:{number}")).collect();
    let order = shuffled(keys);
    let runtime = runtime();

    let limit = Limit::per_second(RATE).burst(BURST);
    let ad_hoc = runtime.block_on(Limiter::builder().build())?;
    let check_limit = || {
        runtime.block_on(async {
            let mut pass = Pass::begin();
            while !pass.is_over(effort) {
                for place in &order {
                    let name = &names[*place as usize];
                    pass.note(black_box(ad_hoc.check_limit(name, &limit, 1).await).allowed());
                }
            }
            pass.end()
        })
    };

    let policy = format!(
        "[[rule]]\nname = \"api\"\nkey = [\"user\"]\nlimits = [{{ quota = \"{RATE}/second\", burst = {BURST} }}]"
    );
    let by_policy =
        runtime.block_on(Limiter::builder().policy(Policy::from_toml(&policy)?).build())?;
    let check = || {
        runtime.block_on(async {
            let mut pass = Pass::begin();
            while !pass.is_over(effort) {
                for place in &order {
                    let request = Request::new().with("user", &names[*place as usize]);
                    pass.note(black_box(by_policy.check(&request).await).allowed());
                }
            }
            pass.end()
        })
    };

    let quota = Quota::per_second(fits(RATE)).allow_burst(fits(BURST));
    let theirs: DefaultKeyedRateLimiter<String> = RateLimiter::dashmap(quota);
    let governor = || {
        let mut pass = Pass::begin();
        while !pass.is_over(effort) {
            for place in &order {
                pass.note(black_box(theirs.check_key(&names[*place as usize])).is_ok());
            }
        }
        pass.end()
    };

    let rounds =
        Rounds::of(effort, &mut [Box::new(governor), Box::new(check_limit), Box::new(check)]);
    let row = |name: &str, who, budget| Row {
        measure: format!("{name}, {keys} keys"),
        ours: rate(rounds.figure(who)),
        yardstick: rate(rounds.figure(0)),
        ratio: Some(rounds.figure_ratio(who, 0)),
        budget,
    };
    Ok([row("check_limit", 1, budget), row("check by a policy", 2, Budget::Nothing)])
}

/// One contender's time over the keys.
struct Pass {
    start: Instant,
    calls: u64,
    allowed: u64,
}

impl Pass {
    fn begin() -> Pass {
        Pass { start: Instant::now(), calls: 0, allowed: 0 }
    }

    fn is_over(&self, effort: Effort) -> bool {
        self.start.elapsed() >= effort.span
    }

    fn note(&mut self, allowed: bool) {
        self.calls += 1;
        self.allowed += u64::from(allowed);
    }

    fn end(self) -> Run {
        let seconds = self.start.elapsed().as_secs_f64();
        assert_eq!(self.allowed, self.calls, "the burst is made to last");
        Run { figure: self.calls as f64 / seconds, store_us: 0.0 }
    }
}

fn fits(number: u64) -> NonZeroU32 {
    u32::try_from(number).ok().and_then(NonZeroU32::new).expect("a constant of this file")
}

/// Slow enough that each bucket is still in use at the next visit, and large enough to last.
const RATE: u64 = 10;
const BURST: u64 = 10_000_000;
