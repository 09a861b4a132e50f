//! Two counts and the place of now between them, in big integers.

use num_bigint::BigInt;
use spillgate::internals::algorithm::{Numbers, Reading};
use spillgate::internals::limit::NamedLimit;

use crate::support::target::{Act, Answer, Target, cost_of, numbers};

#[derive(Clone)]
struct Windows {
    start: BigInt,
    period: BigInt,
    prev: BigInt,
    curr: BigInt,
    life: Option<usize>,
}

impl Windows {
    fn afresh(period: &BigInt, at: &BigInt, curr: BigInt) -> Windows {
        let start = at / period * period;
        Windows { start, period: period.clone(), prev: BigInt::ZERO, curr, life: None }
    }

    /// What is used at an instant, rounded up; a window ahead of it has not begun.
    fn used(&self, at: &BigInt) -> BigInt {
        let elapsed = (at - &self.start).max(BigInt::ZERO);
        let windows = &elapsed / &self.period;
        let part = elapsed - &windows * &self.period;
        let (prev, curr) = match windows {
            w if w == BigInt::ZERO => (self.prev.clone(), self.curr.clone()),
            w if w == BigInt::from(1) => (self.curr.clone(), BigInt::ZERO),
            _ => return BigInt::ZERO,
        };
        curr + (prev * (&self.period - part) + &self.period - 1) / &self.period
    }
}

#[derive(Default)]
pub struct Oracle {
    stored: Option<Windows>,
    receipts: Vec<Option<(usize, u64, u64)>>,
    lives: usize,
}

impl Target for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn act(&mut self, act: Act, limit: &NamedLimit, now_us: u64) -> Answer {
        let Numbers::SlidingWindow(limit) = numbers(limit) else { panic!("no sliding window") };
        let now = BigInt::from(now_us);
        let (count, period) = (BigInt::from(limit.count), BigInt::from(limit.period_us));
        let tolerated = (2 * limit.period_us).min(1_000_000);
        let mut rebased = false;
        let mut standing = self.stored.clone();
        if let Some(stored) = &mut standing
            && &stored.start - &now > BigInt::from(tolerated)
        {
            let used = stored.used(&stored.start.clone());
            *stored = Windows::afresh(&period, &now, used);
            rebased = true;
        }
        // The window that holds now becomes the current one.
        if let Some(stored) = &mut standing {
            while &stored.start + &stored.period <= now
                && (stored.curr > BigInt::ZERO || stored.prev > BigInt::ZERO)
            {
                stored.start += stored.period.clone();
                stored.prev = std::mem::take(&mut stored.curr);
            }
        }
        let touched = |w: &Windows| w.curr > BigInt::ZERO || w.prev > BigInt::ZERO;
        let mut standing = standing
            .filter(touched)
            .unwrap_or_else(|| Windows::afresh(&period, &now, BigInt::ZERO));
        let cost = cost_of(act).max(1);
        let used = standing.used(&now);
        let fits = &used + cost <= count;
        let charge = |more: BigInt, standing: &mut Windows| {
            if standing.period != period {
                let at = now.clone().max(standing.start.clone());
                *standing = Windows::afresh(&period, &at, used.clone());
            }
            standing.curr += more;
        };
        let mut returned = BigInt::ZERO;
        let mut write = false;
        match act {
            Act::Check(cost) | Act::Reserve(cost) if cost > 0 && fits => {
                charge(BigInt::from(cost), &mut standing);
                write = true;
                if let Act::Reserve(_) = act {
                    self.lives += 1;
                    let life = *standing.life.get_or_insert(self.lives);
                    self.receipts.push(Some((life, now_us, cost)));
                }
            }
            Act::Check(cost) | Act::Reserve(cost) => {
                write = cost > 0 && rebased;
                if let Act::Reserve(_) = act {
                    self.receipts.push(None);
                }
            }
            Act::Look(_) => {}
            Act::Force(cost) => {
                let room: BigInt = &count * 2 - &used;
                let more = room.min(BigInt::from(cost));
                if more > BigInt::ZERO {
                    charge(more, &mut standing);
                }
                write = true;
            }
            Act::Return { receipt, unused } => {
                let place = receipt as usize % self.receipts.len().max(1);
                let receipt = self.receipts.get(place).copied().flatten();
                let named =
                    receipt.filter(|(life, at, _)| Some(*life) == standing.life && *at <= now_us);
                if let Some((_, at, amount)) = named {
                    let (at, back) = (BigInt::from(at), BigInt::from(unused.min(amount)));
                    let from = if at >= standing.start {
                        Some(&mut standing.curr)
                    } else if at >= &standing.start - &standing.period {
                        Some(&mut standing.prev)
                    } else {
                        None
                    };
                    if let Some(from) = from {
                        let back = back.min(from.clone());
                        write = back > BigInt::ZERO;
                        *from -= back;
                    }
                }
                returned = &used - standing.used(&now);
            }
            Act::Lower(amount) => {
                // The largest counts that leave so much less: of the current window first.
                let goal = (&used - BigInt::from(amount)).max(BigInt::ZERO);
                let from_curr = standing.curr.clone().min(BigInt::from(amount));
                write = from_curr > BigInt::ZERO;
                standing.curr -= from_curr;
                if standing.used(&now) > goal {
                    write = true;
                    standing.prev = largest_below(&standing, &now, &goal);
                }
                returned = &used - standing.used(&now);
            }
        }
        if !touched(&standing) {
            standing = Windows::afresh(&period, &now, BigInt::ZERO);
        }
        if write {
            self.stored = Some(standing.clone()).filter(touched);
        }
        let used = standing.used(&now);
        let judges = matches!(act, Act::Check(_) | Act::Reserve(_) | Act::Look(_));
        let judged = if judges { cost } else { 1 };
        let waits = if judges { !fits } else { &used + 1 > count };
        let ends = &standing.start + &standing.period;
        let reset = if standing.curr > BigInt::ZERO {
            ends + &standing.period - &now
        } else if standing.prev > BigInt::ZERO {
            ends - &now
        } else {
            BigInt::ZERO
        };
        let retry = if waits {
            first_fit(&standing, &now, &(&count - judged), &reset)
        } else {
            BigInt::ZERO
        };
        Answer {
            fits: fits || !judges,
            reading: Reading {
                remaining: number(BigInt::max(&count - &used, BigInt::ZERO)),
                retry_after_us: Some(number(retry)),
                reset_after_us: number(reset),
            },
            returned: number(returned),
        }
    }
}

/// The first wait after which no more than `room` is used, by bisection: usage only falls.
fn first_fit(windows: &Windows, now: &BigInt, room: &BigInt, reset: &BigInt) -> BigInt {
    bisect(BigInt::ZERO, reset.clone(), |wait| &windows.used(&(now + wait)) <= room)
}

/// The largest count of the window before that leaves no more than `goal` used.
fn largest_below(windows: &Windows, now: &BigInt, goal: &BigInt) -> BigInt {
    let prev = windows.prev.clone();
    let less = bisect(BigInt::ZERO, prev.clone(), |less| {
        let windows = Windows { prev: &prev - less, ..windows.clone() };
        &windows.used(now) <= goal
    });
    prev - less
}

/// The least number from `low` to `high` that `holds`, which `high` does.
fn bisect(mut low: BigInt, mut high: BigInt, holds: impl Fn(&BigInt) -> bool) -> BigInt {
    while low < high {
        let middle: BigInt = (&low + &high) / 2;
        if holds(&middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

fn number(number: BigInt) -> u64 {
    number.try_into().expect("fits 64 bits")
}
