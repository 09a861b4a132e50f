//! A bucket in rational numbers.

use num_bigint::BigInt;
use num_rational::BigRational;
use spillgate::internals::algorithm::{Numbers, Reading, token_bucket};
use spillgate::internals::limit::NamedLimit;

use crate::support::target::{Act, Answer, Target, cost_of, numbers};

type Number = BigRational;

/// Whole tokens used at an instant, the drain that they were charged under, and what receipts need.
#[derive(Clone)]
struct Bucket {
    used: Number,
    boundary: Number,
    count: u32,
    period_us: u64,
    life: Option<Life>,
}

#[derive(Clone)]
struct Life {
    name: usize,
    burst: u32,
    span: Number,
    low: Number,
    low_before: Number,
    /// The lows as they were, and all that came back.
    floor: Number,
    floor_before: Number,
    returned: Number,
}

#[derive(Default)]
pub struct Oracle {
    bucket: Option<Bucket>,
    receipts: Vec<Option<Receipt>>,
    lives: usize,
}

/// Whose life was charged, when, how much, and what had come back by then.
type Receipt = (usize, Number, Number, Number);

/// The bucket at an instant.
struct Now {
    /// Tokens in use, the partly drained one by its part.
    level: Number,
    /// When the first of the whole used tokens began to drain.
    boundary: Number,
    life: Option<Life>,
    rebased: bool,
    gone: Option<Number>,
}

impl Oracle {
    fn now(&self, limit: &token_bucket::Numbers, now: &Number) -> Now {
        let untouched =
            Now { level: whole(0), boundary: now.clone(), life: None, rebased: false, gone: None };
        let Some(bucket) = &self.bucket else { return untouched };
        let token = token_us(limit.count, limit.period_us);
        let same = (bucket.count, bucket.period_us) == (limit.count, limit.period_us);
        let boundary = if same { bucket.boundary.clone() } else { bucket.boundary.ceil() };
        let gone =
            boundary.clone() + (&bucket.used * token_us(bucket.count, bucket.period_us)).ceil();
        if !same && &gone <= now {
            return untouched;
        }
        let used = bucket.used.clone().min(whole(limit.forced_max));
        let life = bucket.life.clone().filter(|life| same && life.burst == limit.burst);
        let gone = (!same).then_some(gone);
        if now <= &boundary {
            let full = (whole(limit.burst) * &token).ceil();
            if boundary.floor() - now > full.min(whole(1_000_000)) {
                return Now { level: used, rebased: true, ..untouched };
            }
            return Now { level: used, boundary, life, rebased: false, gone };
        }
        let drained = (now - &boundary) / &token;
        if drained >= used {
            return untouched;
        }
        let boundary = boundary + drained.floor() * token;
        Now { level: used - drained, boundary, life, rebased: false, gone }
    }

    fn store(&mut self, limit: &token_bucket::Numbers, now: Now) {
        self.bucket = (now.level > whole(0)).then(|| Bucket {
            used: now.level.ceil(),
            boundary: now.boundary,
            count: limit.count,
            period_us: limit.period_us,
            life: now.life,
        });
    }
}

impl Target for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn act(&mut self, act: Act, limit: &NamedLimit, now_us: u64) -> Answer {
        let Numbers::TokenBucket(limit) = numbers(limit) else { panic!("no bucket") };
        let at = whole(now_us);
        let token = token_us(limit.count, limit.period_us);
        let burst = whole(limit.burst);
        let mut now = self.now(limit, &at);
        let cost = cost_of(act).max(1);
        let fits = now.level.ceil() + whole(cost) <= burst;
        let mut returned = whole(0);
        match act {
            Act::Look(_) | Act::Check(0) => {}
            Act::Check(cost) | Act::Reserve(cost) if fits => {
                note_low(&mut now, &token, &burst, &at);
                now.gone = None;
                now.level += whole(cost);
                if let Act::Reserve(_) = act {
                    self.lives += 1;
                    let level = now.level.clone();
                    let begun = Life {
                        name: self.lives,
                        burst: limit.burst,
                        span: at.clone(),
                        low: level.clone(),
                        low_before: level.clone(),
                        floor: level.clone(),
                        floor_before: level,
                        returned: whole(0),
                    };
                    let life = now.life.get_or_insert(begun);
                    let receipt = (life.name, at.clone(), whole(cost), life.returned.clone());
                    self.receipts.push(Some(receipt));
                }
                self.store(
                    limit,
                    Now {
                        boundary: now.boundary.clone(),
                        life: now.life.clone(),
                        gone: None,
                        level: now.level.clone(),
                        ..now
                    },
                );
            }
            Act::Check(_) | Act::Reserve(_) => {
                if let Act::Reserve(_) = act {
                    self.receipts.push(None);
                }
                if now.rebased {
                    let again = self.now(limit, &at);
                    self.store(limit, again);
                }
            }
            Act::Force(cost) => {
                note_low(&mut now, &token, &burst, &at);
                now.gone = None;
                let forced = (now.level.ceil() + whole(cost)).min(whole(limit.forced_max));
                let more = forced - now.level.ceil();
                now.level += more.max(whole(0));
                let again = Now {
                    level: now.level.clone(),
                    boundary: now.boundary.clone(),
                    life: now.life.clone(),
                    rebased: false,
                    gone: None,
                };
                self.store(limit, again);
            }
            Act::Return { .. } | Act::Lower(_) => {
                note_low(&mut now, &token, &burst, &at);
                let wanted = match act {
                    Act::Lower(amount) => whole(amount),
                    Act::Return { receipt, unused } => {
                        let place = receipt as usize % self.receipts.len().max(1);
                        let receipt = self.receipts.get(place).cloned().flatten();
                        returnable(&now, receipt, unused, &token, &burst, &at)
                    }
                    _ => unreachable!("only these two arms lead here"),
                };
                let mut back = wanted.min(now.level.clone());
                if now.boundary > at {
                    back = back.floor();
                }
                if back > whole(0) {
                    now.gone = None;
                    now.level -= &back;
                    // Less is left of the first token: it began to drain earlier.
                    if now.boundary <= at {
                        let part = now.level.ceil() - &now.level;
                        now.boundary = &at - part * &token;
                    }
                    if let Some(life) = &mut now.life {
                        life.low = (&life.low - &back).max(whole(0));
                        life.low_before = (&life.low_before - &back).max(whole(0));
                        life.returned += back.ceil();
                    }
                    returned = back.floor();
                    let again = Now {
                        level: now.level.clone(),
                        boundary: now.boundary.clone(),
                        life: now.life.clone(),
                        rebased: false,
                        gone: None,
                    };
                    self.store(limit, again);
                }
            }
        }
        let judged = match act {
            Act::Check(_) | Act::Reserve(_) | Act::Look(_) => cost,
            _ => 1,
        };
        let free_after = |tokens: Number| {
            let wait = (now.boundary.clone() + tokens * &token - &at).ceil();
            match &now.gone {
                Some(gone) => wait.min(gone - &at),
                None => wait,
            }
        };
        let used = now.level.ceil();
        let over = used.clone() + whole(judged) - &burst;
        let gives = matches!(act, Act::Return { .. } | Act::Lower(_) | Act::Force(_));
        let retry = if (fits && !gives) || over <= whole(0) { whole(0) } else { free_after(over) };
        Answer {
            fits: fits || gives,
            reading: Reading {
                remaining: integer((&burst - &used).max(whole(0))),
                retry_after_us: Some(integer(retry)),
                reset_after_us: if used == whole(0) { 0 } else { integer(free_after(used)) },
            },
            returned: integer(returned),
        }
    }
}

fn returnable(
    now: &Now,
    receipt: Option<Receipt>,
    unused: u64,
    token: &Number,
    burst: &Number,
    at: &Number,
) -> Number {
    let (Some((name, charged_at, amount, before)), Some(life)) = (receipt, &now.life) else {
        return whole(0);
    };
    if life.name != name || at < &charged_at {
        return whole(0);
    }
    let left = (&amount - (at - &charged_at) / token).max(whole(0));
    let (low, floor) = if charged_at >= life.span {
        (life.low.clone(), life.floor.clone())
    } else if &charged_at + (burst * token).ceil() >= life.span {
        let floor = life.floor.clone().min(life.floor_before.clone());
        (life.low.clone().min(life.low_before.clone()), floor)
    } else {
        (whole(0), whole(0))
    };
    let since = (&life.returned - before).max(whole(0));
    let low = low.max(floor - since).max(whole(0));
    whole(unused).min(amount).min(left.max(low))
}

fn note_low(now: &mut Now, token: &Number, burst: &Number, at: &Number) {
    let span = (burst * token).ceil();
    let level = now.level.clone();
    let Some(life) = &mut now.life else { return };
    let since = at - &life.span;
    if since < span {
        life.low = life.low.clone().min(level.clone());
        life.floor = life.floor.clone().min(level);
    } else if since < &span * whole(2) {
        life.low_before = std::mem::replace(&mut life.low, level.clone());
        life.floor_before = std::mem::replace(&mut life.floor, level);
        life.span += span;
    } else {
        life.low_before = level.clone();
        life.low = level.clone();
        life.floor_before = level.clone();
        life.floor = level;
        life.span = at.clone();
    }
}

fn token_us(count: u32, period_us: u64) -> Number {
    Number::new(BigInt::from(period_us), BigInt::from(count))
}

fn whole(number: impl Into<BigInt>) -> Number {
    Number::from_integer(number.into())
}

fn integer(number: Number) -> u64 {
    assert!(number.is_integer(), "{number} is no whole number");
    number.to_integer().try_into().expect("fits 64 bits")
}
