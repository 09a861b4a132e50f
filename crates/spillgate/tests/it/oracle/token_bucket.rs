//! A bucket in rational numbers.

use num_bigint::BigInt;
use num_rational::BigRational;
use spillgate_core::algorithm::{LimitParams, token_bucket};

use super::Counter;

type Number = BigRational;

/// Whole tokens used at an instant, the drain rate when they were charged, and the data that receipts need.
#[derive(Clone)]
pub(super) struct Stored {
    used: Number,
    boundary: Number,
    count: u32,
    period_us: u64,
    life: Option<Life>,
}

/// A bucket from its first receipt until it is empty.
#[derive(Clone)]
struct Life {
    name: usize,
    /// The fewest whole tokens in use since the low began.
    low: Number,
    /// The sum of all refunds, and of the lows that were given up.
    mark: Number,
}

/// The charge of one receipt.
#[derive(Clone)]
pub(super) struct Charge {
    life: usize,
    at: Number,
    amount: Number,
    /// The mark of the life at that time.
    mark: Number,
}

pub(super) struct Bucket {
    limit: token_bucket::Params,
    now: Number,
    /// How long one token takes to drain.
    token: Number,
    burst: Number,
    /// Tokens in use; a partly drained token counts by its part.
    level: Number,
    /// When the first of the whole used tokens began to drain.
    boundary: Number,
    life: Option<Life>,
    is_rebased: bool,
    /// When everything has drained, if it was charged under another drain rate.
    gone: Option<Number>,
}

impl Bucket {
    /// Returns how many tokens of a charge may be refunded.
    fn returnable(&self, charge: &Charge, unused: u64) -> Number {
        let Some(life) = &self.life else { return whole(0) };
        if life.name != charge.life || self.now < charge.at {
            return whole(0);
        }
        let left = &charge.amount - (&self.now - &charge.at) / &self.token;
        let proven = &life.low - (&life.mark - &charge.mark);
        whole(unused).min(charge.amount.clone()).min(left.max(proven).max(whole(0)))
    }

    /// Takes as many of the wanted tokens out as are in use. Returns whole tokens, or `None` if nothing was
    /// taken.
    fn take_out(&mut self, wanted: Number) -> Option<u64> {
        let mut back = wanted.min(self.level.clone());
        if self.boundary > self.now {
            back = back.floor();
        }
        if back <= whole(0) {
            return None;
        }
        self.gone = None;
        self.level -= &back;
        // Less of the first token is left: it began to drain earlier.
        if self.boundary <= self.now {
            let part = self.level.ceil() - &self.level;
            self.boundary = &self.now - part * &self.token;
        }
        if let Some(life) = &mut self.life {
            life.mark += back.ceil();
        }
        Some(integer(back.floor()))
    }

    /// Returns the wait until `tokens` of the used tokens are free.
    fn free_after(&self, tokens: Number) -> u64 {
        let wait = (&self.boundary + tokens * &self.token - &self.now).ceil();
        integer(match &self.gone {
            Some(gone) => wait.min(gone - &self.now),
            None => wait,
        })
    }
}

impl Counter for Bucket {
    type Stored = Option<Stored>;
    type Receipt = Charge;

    fn at(stored: &Option<Stored>, params: &LimitParams, now_us: u64) -> Bucket {
        let LimitParams::TokenBucket(limit) = params else { panic!("no bucket") };
        let now = whole(now_us);
        let (token, burst) = (token_us(limit.count, limit.period_us), whole(limit.burst));
        let full_bucket = Bucket {
            limit: *limit,
            boundary: now.clone(),
            now,
            token,
            burst,
            level: whole(0),
            life: None,
            is_rebased: false,
            gone: None,
        };
        let Some(bucket) = stored else { return full_bucket };
        let (now, token) = (&full_bucket.now, &full_bucket.token);
        let same = (bucket.count, bucket.period_us) == (limit.count, limit.period_us);
        let boundary = if same { bucket.boundary.clone() } else { bucket.boundary.ceil() };
        let gone =
            boundary.clone() + (&bucket.used * token_us(bucket.count, bucket.period_us)).ceil();
        if !same && &gone <= now {
            return full_bucket;
        }
        let used = bucket.used.clone().min(whole(limit.forced_max));
        let life = bucket.life.clone().filter(|_| same && used == bucket.used);
        let gone = (!same).then_some(gone);
        if now <= &boundary {
            let full = (&full_bucket.burst * token).ceil();
            if boundary.floor() - now > full.min(whole(1_000_000)) {
                return Bucket { level: used, is_rebased: true, ..full_bucket };
            }
            return Bucket { level: used, boundary, life, gone, ..full_bucket };
        }
        let drained = (now - &boundary) / token;
        if drained >= used {
            return full_bucket;
        }
        let boundary = boundary + drained.floor() * token;
        Bucket { level: used - drained, boundary, life, gone, ..full_bucket }
    }

    fn stored(&self) -> Option<Stored> {
        (self.level > whole(0)).then(|| Stored {
            used: self.level.ceil(),
            boundary: self.boundary.clone(),
            count: self.limit.count,
            period_us: self.limit.period_us,
            life: self.life.clone(),
        })
    }

    fn used(&self) -> u64 {
        integer(self.level.ceil())
    }

    fn capacity(&self) -> u64 {
        self.limit.burst.into()
    }

    fn forced_max(&self) -> u64 {
        self.limit.forced_max
    }

    fn is_rebased(&self) -> bool {
        self.is_rebased
    }

    fn charge(&mut self, units: u64) {
        if let Some(life) = &mut self.life {
            life.low = life.low.clone().min(self.level.floor());
        }
        self.gone = None;
        self.level += whole(units);
    }

    /// A charge of zero records the level as well.
    fn force(&mut self, units: u64) {
        self.charge(units);
    }

    fn receipt(&mut self, units: u64, number: usize) -> Charge {
        let tokens = self.level.floor();
        let new = || Life { name: number, low: whole(0), mark: whole(0) };
        let life = self.life.get_or_insert_with(new);
        if whole(4) * &tokens > whole(5) * &life.low {
            life.mark += tokens.clone();
            life.low = tokens;
        }
        Charge {
            life: life.name,
            at: self.now.clone(),
            amount: whole(units),
            mark: life.mark.clone(),
        }
    }

    fn refund(&mut self, receipt: &Charge, unused: u64) -> Option<u64> {
        self.take_out(self.returnable(receipt, unused))
    }

    fn lower(&mut self, units: u64) -> Option<u64> {
        self.take_out(whole(units))
    }

    fn retry_after_us(&self, units: u64) -> u64 {
        self.free_after(self.level.ceil() + whole(units) - &self.burst)
    }

    fn reset_after_us(&self) -> u64 {
        if self.level > whole(0) { self.free_after(self.level.ceil()) } else { 0 }
    }
}

fn token_us(count: u32, period_us: u64) -> Number {
    Number::new(BigInt::from(period_us), BigInt::from(count))
}

fn whole(number: impl Into<BigInt>) -> Number {
    Number::from_integer(number.into())
}

fn integer(number: Number) -> u64 {
    assert!(number.is_integer(), "{number} is not a whole number");
    super::number(number.to_integer())
}
