//! Windows and a count, in big integers.

use num_bigint::BigInt;
use spillgate::internals::algorithm::{Numbers, Reading, fixed_window};
use spillgate::internals::limit::NamedLimit;

use crate::support::target::{Act, Answer, Target, cost_of, numbers};

#[derive(Clone)]
struct Used {
    start: BigInt,
    end: BigInt,
    used: BigInt,
    life: Option<usize>,
}

#[derive(Default)]
pub struct Oracle {
    stored: Option<Used>,
    receipts: Vec<Option<(usize, u64, u64)>>,
    lives: usize,
}

impl Target for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn act(&mut self, act: Act, limit: &NamedLimit, now_us: u64) -> Answer {
        let Numbers::FixedWindow(limit) = numbers(limit) else { panic!("no fixed window") };
        let now = BigInt::from(now_us);
        let count = BigInt::from(limit.count);
        let window = |at: &BigInt| window_of(limit, at);
        let tolerated = limit.longest_wait_us().min(1_000_000);
        let mut rebased = false;
        let mut standing = self.stored.clone().filter(|stored| now < stored.end);
        if let Some(stored) = &mut standing
            && &stored.start - &now > BigInt::from(tolerated)
        {
            let (start, end) = window(&now);
            *stored = Used { start, end, used: stored.used.clone(), life: None };
            rebased = true;
        }
        let used = standing.as_ref().map_or(BigInt::ZERO, |stored| stored.used.clone());
        let cost = cost_of(act).max(1);
        let fits = &used + cost <= count;
        let charge = |more: BigInt, standing: &mut Option<Used>| {
            let at =
                standing.as_ref().map_or(now.clone(), |s: &Used| s.start.clone().max(now.clone()));
            let (start, end) = window(&at);
            let same = standing.as_ref().filter(|s| (&s.start, &s.end) == (&start, &end));
            let life = same.and_then(|s| s.life);
            *standing = Some(Used { start, end, used: &used + more, life });
        };
        let mut returned = BigInt::ZERO;
        let mut write = false;
        match act {
            Act::Check(cost) | Act::Reserve(cost) if cost > 0 && fits => {
                charge(BigInt::from(cost), &mut standing);
                write = true;
                if let (Act::Reserve(_), Some(stored)) = (act, &mut standing) {
                    self.lives += 1;
                    let life = *stored.life.get_or_insert(self.lives);
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
                let more = room.min(BigInt::from(cost)).max(BigInt::ZERO);
                if more > BigInt::ZERO {
                    charge(more, &mut standing);
                }
                write = true;
            }
            Act::Return { .. } | Act::Lower(_) => {
                let wanted = match act {
                    Act::Return { receipt, unused } => {
                        let place = receipt as usize % self.receipts.len().max(1);
                        let receipt = self.receipts.get(place).copied().flatten();
                        let life = standing.as_ref().and_then(|stored| stored.life);
                        receipt
                            .filter(|(named, at, _)| Some(*named) == life && *at <= now_us)
                            .map_or(0, |(_, _, amount)| unused.min(amount))
                    }
                    _ => match act {
                        Act::Lower(amount) => amount,
                        _ => 0,
                    },
                };
                returned = used.clone().min(BigInt::from(wanted));
                if returned > BigInt::ZERO {
                    write = true;
                    if let Some(stored) = &mut standing {
                        stored.used -= &returned;
                    }
                }
            }
        }
        standing = standing.filter(|stored| stored.used > BigInt::ZERO);
        if write {
            self.stored = standing.clone();
        }
        let used = standing.as_ref().map_or(BigInt::ZERO, |stored| stored.used.clone());
        let left = standing.as_ref().map_or(BigInt::ZERO, |stored| &stored.end - &now);
        let judges = matches!(act, Act::Check(_) | Act::Reserve(_) | Act::Look(_));
        let waits = if judges { !fits } else { &used + 1 > count };
        Answer {
            fits: fits || !judges,
            reading: Reading {
                remaining: number(BigInt::max(&count - &used, BigInt::ZERO)),
                retry_after_us: Some(if waits { number(left.clone()) } else { 0 }),
                reset_after_us: number(left),
            },
            returned: number(returned),
        }
    }
}

fn window_of(limit: &fixed_window::Numbers, at: &BigInt) -> (BigInt, BigInt) {
    match &limit.window {
        fixed_window::Window::Every { period_us } => {
            let start = at / period_us * period_us;
            (start.clone(), start + period_us)
        }
        // The calendar has vectors of its own.
        fixed_window::Window::Calendar(calendar) => {
            let [_, start, end, _] = calendar.around(number(at.clone()));
            (start.into(), end.into())
        }
    }
}

fn number(number: BigInt) -> u64 {
    number.try_into().expect("fits 64 bits")
}
