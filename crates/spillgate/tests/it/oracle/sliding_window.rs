//! Two counts and the position of now between them, in big integers.

use num_bigint::BigInt;
use spillgate_core::algorithm::{LimitParams, sliding_window};

use super::{Counter, number};

#[derive(Clone)]
pub(super) struct Stored {
    start: BigInt,
    period: BigInt,
    prev: BigInt,
    curr: BigInt,
    life: Option<usize>,
}

pub(super) struct Windows {
    limit: sliding_window::Params,
    now: BigInt,
    current: Stored,
    is_rebased: bool,
}

impl Stored {
    fn afresh(period: &BigInt, at: &BigInt, curr: BigInt) -> Stored {
        let start = at / period * period;
        Stored { start, period: period.clone(), prev: BigInt::ZERO, curr, life: None }
    }

    /// Returns the usage at an instant, rounded up; a window ahead of it has not begun.
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

    fn is_used(&self) -> bool {
        self.curr > BigInt::ZERO || self.prev > BigInt::ZERO
    }
}

impl Windows {
    fn usage(&self) -> BigInt {
        self.current.used(&self.now)
    }

    fn reset_after(&self) -> BigInt {
        let ends = &self.current.start + &self.current.period;
        if self.current.curr > BigInt::ZERO {
            ends + &self.current.period - &self.now
        } else if self.current.prev > BigInt::ZERO {
            ends - &self.now
        } else {
            BigInt::ZERO
        }
    }
}

impl Counter for Windows {
    type Stored = Option<Stored>;
    /// Life, instant and units.
    type Receipt = (usize, BigInt, u64);

    fn at(stored: &Option<Stored>, params: &LimitParams, now_us: u64) -> Windows {
        let LimitParams::SlidingWindow(limit) = params else { panic!("no sliding window") };
        let (now, period) = (BigInt::from(now_us), BigInt::from(limit.period_us));
        let tolerated = (2 * limit.period_us).min(1_000_000);
        let mut is_rebased = false;
        let mut current = stored.clone();
        if let Some(stored) = &mut current
            && &stored.start - &now > BigInt::from(tolerated)
        {
            let used = stored.used(&stored.start.clone());
            *stored = Stored::afresh(&period, &now, used);
            is_rebased = true;
        }
        // The window that holds now becomes the current one.
        if let Some(stored) = &mut current {
            while &stored.start + &stored.period <= now && stored.is_used() {
                stored.start += stored.period.clone();
                stored.prev = std::mem::take(&mut stored.curr);
            }
        }
        let current = current
            .filter(Stored::is_used)
            .unwrap_or_else(|| Stored::afresh(&period, &now, BigInt::ZERO));
        Windows { limit: *limit, now, current, is_rebased }
    }

    fn stored(&self) -> Option<Stored> {
        Some(self.current.clone()).filter(Stored::is_used)
    }

    fn used(&self) -> u64 {
        number(self.usage())
    }

    fn capacity(&self) -> u64 {
        self.limit.count.into()
    }

    fn is_rebased(&self) -> bool {
        self.is_rebased
    }

    fn charge(&mut self, units: u64) {
        let period = BigInt::from(self.limit.period_us);
        if self.current.period != period {
            let at = self.now.clone().max(self.current.start.clone());
            self.current = Stored::afresh(&period, &at, self.usage());
        }
        self.current.curr += units;
    }

    fn receipt(&mut self, units: u64, number: usize) -> Self::Receipt {
        (*self.current.life.get_or_insert(number), self.now.clone(), units)
    }

    fn refund(&mut self, (life, at, units): &Self::Receipt, unused: u64) -> Option<u64> {
        let (before, current) = (self.usage(), &mut self.current);
        if current.life != Some(*life) || *at > self.now {
            return None;
        }
        let from = if *at >= current.start {
            &mut current.curr
        } else if *at >= &current.start - &current.period {
            &mut current.prev
        } else {
            return None;
        };
        let back = BigInt::from(unused.min(*units)).min(from.clone());
        *from -= &back;
        (back > BigInt::ZERO).then(|| number(before - self.usage()))
    }

    /// Keeps the largest counts whose usage is lower by `units`; the current window is lowered first.
    fn lower(&mut self, units: u64) -> Option<u64> {
        let before = self.usage();
        let goal = (&before - BigInt::from(units)).max(BigInt::ZERO);
        let from_curr = self.current.curr.clone().min(BigInt::from(units));
        self.current.curr -= &from_curr;
        let is_above = self.usage() > goal;
        if is_above {
            self.current.prev = largest_below(&self.current, &self.now, &goal);
        }
        let changed = is_above || from_curr > BigInt::ZERO;
        changed.then(|| number(before - self.usage()))
    }

    /// By bisection: the usage only falls.
    fn retry_after_us(&self, units: u64) -> u64 {
        let room = BigInt::from(self.limit.count) - units;
        let fits = |wait: &BigInt| self.current.used(&(&self.now + wait)) <= room;
        number(bisect(BigInt::ZERO, self.reset_after(), fits))
    }

    fn reset_after_us(&self) -> u64 {
        number(self.reset_after())
    }
}

/// Returns the largest count of the window before that leaves no more than `goal` used.
fn largest_below(windows: &Stored, now: &BigInt, goal: &BigInt) -> BigInt {
    let prev = windows.prev.clone();
    let less = bisect(BigInt::ZERO, prev.clone(), |less| {
        let windows = Stored { prev: &prev - less, ..windows.clone() };
        &windows.used(now) <= goal
    });
    prev - less
}

/// Returns the least number from `low` to `high` that `holds`, which `high` does.
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
