//! Every admitted call, in a list.

use spillgate_core::algorithm::{LimitParams, sliding_log};

use super::{Counter, number};

#[derive(Clone, Default)]
pub(super) struct Stored {
    /// Instants by a clock that never goes back, and units.
    entries: Vec<(i128, i128)>,
    /// How far that clock is ahead of the store's.
    shift: i128,
    count: u32,
    period: i128,
    life: Option<usize>,
}

pub(super) struct Log {
    limit: sliding_log::Params,
    now: i128,
    log: Stored,
    ahead: i128,
    is_rebased: bool,
    /// The wait until all entries are dropped, if they were made under another period.
    gone: Option<i128>,
}

impl Stored {
    fn used(&self) -> i128 {
        self.entries.iter().map(|(_, units)| units).sum()
    }

    fn last(&self) -> Option<i128> {
        self.entries.last().map(|(at, _)| *at)
    }
}

impl Log {
    fn clock(&self) -> i128 {
        self.now + self.log.shift + self.ahead
    }

    /// Returns the wait until an entry has expired.
    fn expiry(&self, at: i128) -> i128 {
        let wait = at + i128::from(self.limit.period_us) - self.clock() + self.ahead;
        self.gone.map_or(wait, |gone| wait.min(gone))
    }

    /// Drops entries without units. Returns the difference to `before`.
    fn returned(&mut self, before: i128) -> Option<u64> {
        self.log.entries.retain(|(_, units)| *units > 0);
        let returned = before - self.log.used();
        if returned > 0 {
            self.gone = None;
        }
        (returned > 0).then(|| number(returned))
    }
}

impl Counter for Log {
    type Stored = Stored;
    /// Life, instant, instant by the log's clock, and units.
    type Receipt = (usize, i128, i128, i128);

    fn at(stored: &Stored, params: &LimitParams, now_us: u64) -> Log {
        let LimitParams::SlidingLog(limit) = params else { panic!("no log") };
        let (now, period) = (i128::from(now_us), i128::from(limit.period_us));
        let log = Stored { count: limit.count, period, ..Stored::default() };
        let full = Log { limit: *limit, now, log, ahead: 0, is_rebased: false, gone: None };
        let last = stored.last().filter(|at| at + stored.period.min(period) > now + stored.shift);
        let Some(last) = last else { return full };
        let mut log = Log { log: stored.clone(), ..full };
        log.ahead = (last - (now + stored.shift)).max(0);
        if log.ahead > period.min(1_000_000) {
            log.log.shift += log.ahead;
            (log.ahead, log.is_rebased) = (0, true);
        }
        if log.is_rebased || (stored.count, stored.period) != (limit.count, period) {
            log.log.life = None;
        }
        let clock = log.clock();
        if !log.is_rebased && stored.period != period {
            log.gone = Some(last + stored.period - clock + log.ahead);
        }
        (log.log.count, log.log.period) = (limit.count, period);
        log.log.entries.retain(|(at, _)| at + period > clock);
        log
    }

    fn stored(&self) -> Stored {
        if self.log.used() == 0 { Stored::default() } else { self.log.clone() }
    }

    fn used(&self) -> u64 {
        number(self.log.used())
    }

    fn capacity(&self) -> u64 {
        self.limit.count.into()
    }

    fn is_rebased(&self) -> bool {
        self.is_rebased
    }

    fn charge(&mut self, units: u64) {
        let (clock, units) = (self.clock(), i128::from(units));
        match self.log.entries.last_mut() {
            Some((at, known)) if *at == clock => *known += units,
            _ => self.log.entries.push((clock, units)),
        }
        self.gone = None;
    }

    fn force(&mut self, units: u64) {
        if units > 0 {
            self.charge(units);
        }
        self.gone = None;
    }

    fn receipt(&mut self, units: u64, number: usize) -> Self::Receipt {
        let life = *self.log.life.get_or_insert(number);
        (life, self.now, self.clock(), units.into())
    }

    fn refund(&mut self, receipt: &Self::Receipt, unused: u64) -> Option<u64> {
        let (life, charged, at, amount) = *receipt;
        let before = self.log.used();
        if self.log.life == Some(life)
            && self.now >= charged
            && let Some((_, units)) = self.log.entries.iter_mut().find(|(known, _)| *known == at)
        {
            *units -= i128::from(unused).min(amount).min(*units);
        }
        self.returned(before)
    }

    fn lower(&mut self, units: u64) -> Option<u64> {
        let before = self.log.used();
        let mut left = i128::from(units);
        for (_, units) in &mut self.log.entries {
            let by = left.min(*units);
            *units -= by;
            left -= by;
        }
        self.returned(before)
    }

    fn retry_after_us(&self, units: u64) -> u64 {
        let mut over = self.log.used() + i128::from(units) - i128::from(self.limit.count);
        let freed = self.log.entries.iter().find(|(_, units)| {
            over -= units;
            over <= 0
        });
        number(freed.map_or(0, |(at, _)| self.expiry(*at)))
    }

    fn reset_after_us(&self) -> u64 {
        number(self.log.last().map_or(0, |last| self.expiry(last)))
    }
}
