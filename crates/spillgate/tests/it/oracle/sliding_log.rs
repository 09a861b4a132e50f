//! Every call that was admitted, in a list.

use spillgate::internals::algorithm::{Numbers, Reading};
use spillgate::internals::limit::NamedLimit;

use crate::support::target::{Act, Answer, Target, cost_of, numbers};

#[derive(Clone, Default)]
struct Log {
    /// Instants by a clock that never goes back, and units.
    entries: Vec<(i128, i128)>,
    /// How far that clock is ahead of the store's.
    shift: i128,
    count: u32,
    period: i128,
    life: Option<usize>,
}

impl Log {
    fn used(&self) -> i128 {
        self.entries.iter().map(|(_, units)| units).sum()
    }

    fn last(&self) -> Option<i128> {
        self.entries.last().map(|(at, _)| *at)
    }
}

#[derive(Default)]
pub struct Oracle {
    log: Log,
    receipts: Vec<Option<(usize, u64, i128, i128)>>,
    lives: usize,
}

impl Target for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }

    fn act(&mut self, act: Act, limit: &NamedLimit, now_us: u64) -> Answer {
        let Numbers::SlidingLog(limit) = numbers(limit) else { panic!("no log") };
        let (count, period) = (i128::from(limit.count), i128::from(limit.period_us));
        let now = i128::from(now_us);
        let untouched = Log { count: limit.count, period, ..Log::default() };
        let (mut log, mut ahead, mut rebased, mut gone) = (untouched.clone(), 0, false, None);
        if let Some(last) = self.log.last()
            && last + self.log.period.min(period) > now + self.log.shift
        {
            log = self.log.clone();
            ahead = (last - (now + log.shift)).max(0);
            if ahead > period.min(1_000_000) {
                log.shift += ahead;
                (ahead, rebased) = (0, true);
            }
            if rebased || (log.count, log.period) != (limit.count, period) {
                log.life = None;
            }
            let clock = now + log.shift + ahead;
            if !rebased && log.period != period {
                gone = Some(last + log.period - clock + ahead);
            }
            (log.count, log.period) = (limit.count, period);
            log.entries.retain(|(at, _)| at + period > clock);
        }
        let clock = now + log.shift + ahead;
        let used = log.used();
        let cost = i128::from(cost_of(act).max(1));
        let fits = used + cost <= count;
        let admit = |units: i128, log: &mut Log| match log.entries.last_mut() {
            Some((at, known)) if *at == clock => *known += units,
            _ => log.entries.push((clock, units)),
        };
        let mut write = false;
        match act {
            Act::Check(cost) | Act::Reserve(cost) if cost > 0 && fits => {
                admit(i128::from(cost), &mut log);
                (write, gone) = (true, None);
                if let Act::Reserve(_) = act {
                    self.lives += 1;
                    let life = *log.life.get_or_insert(self.lives);
                    self.receipts.push(Some((life, now_us, clock, i128::from(cost))));
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
                let more = i128::from(cost).min(2 * count - used);
                if more > 0 {
                    admit(more, &mut log);
                }
                (write, gone) = (true, None);
            }
            Act::Return { receipt, unused } => {
                let place = receipt as usize % self.receipts.len().max(1);
                let receipt = self.receipts.get(place).copied().flatten();
                if let Some((life, charged, at, amount)) = receipt
                    && log.life == Some(life)
                    && now_us >= charged
                    && let Some((_, units)) = log.entries.iter_mut().find(|(known, _)| *known == at)
                {
                    *units -= i128::from(unused).min(amount).min(*units);
                }
            }
            Act::Lower(amount) => {
                let mut left = i128::from(amount);
                for (_, units) in &mut log.entries {
                    let by = left.min(*units);
                    *units -= by;
                    left -= by;
                }
            }
        }
        log.entries.retain(|(_, units)| *units > 0);
        let returned = (used - log.used()).max(0);
        if returned > 0 {
            (write, gone) = (true, None);
        }
        if log.used() == 0 {
            (log, ahead) = (untouched, 0);
        }
        if write {
            self.log = log.clone();
        }
        let clock = now + log.shift + ahead;
        let used = log.used();
        let judges = matches!(act, Act::Check(_) | Act::Reserve(_) | Act::Look(_));
        let judged = if judges { cost } else { 1 };
        let waits = if judges { !fits } else { used + 1 > count };
        let expiry = |at: i128| {
            let wait = at + period - clock + ahead;
            gone.map_or(wait, |gone| wait.min(gone))
        };
        let mut over = used + judged - count;
        let freed = log.entries.iter().find(|(_, units)| {
            over -= units;
            over <= 0
        });
        let retry = if waits { freed.map_or(0, |(at, _)| expiry(*at)) } else { 0 };
        Answer {
            fits: fits || !judges,
            reading: Reading {
                remaining: number((count - used).max(0)),
                retry_after_us: Some(number(retry)),
                reset_after_us: number(log.last().map_or(0, expiry)),
            },
            returned: number(returned),
        }
    }
}

fn number(number: i128) -> u64 {
    number.try_into().expect("fits 64 bits")
}
