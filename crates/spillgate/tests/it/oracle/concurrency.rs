//! Permits in a list.

use spillgate_core::algorithm::{LimitParams, concurrency};

use super::{Counter, number};

#[derive(Clone)]
struct Permit {
    /// When it ends, by a clock that never goes back.
    end: i128,
    weight: i128,
    number: usize,
}

#[derive(Clone, Default)]
pub(super) struct Stored {
    permits: Vec<Permit>,
    /// How far that clock is ahead of the store's, and when it last took a permit.
    shift: i128,
    last: i128,
    taken: usize,
}

pub(super) struct Permits {
    limit: concurrency::Params,
    /// Permits that have ended, and are stored until a permit is taken or returned.
    ended: Vec<Permit>,
    held: Vec<Permit>,
    shift: i128,
    last: i128,
    taken: usize,
    clock: i128,
    ahead: i128,
    is_rebased: bool,
}

impl Permits {
    fn weight(&self) -> i128 {
        self.held.iter().map(|permit| permit.weight).sum()
    }

    /// Returns the wait until no more than `room` is held.
    fn until_below(&self, room: i128) -> u64 {
        let mut held = self.held.clone();
        held.sort_by_key(|permit| permit.end);
        let mut left = self.weight();
        let ends = held.iter().find(|permit| {
            left -= permit.weight;
            left <= room
        });
        number(ends.map_or(0, |permit| permit.end - self.clock + self.ahead))
    }

    /// Drops permits without weight. Returns the difference to `before`.
    fn returned(&mut self, before: i128) -> Option<u64> {
        self.held.retain(|permit| permit.weight > 0);
        let returned = before - self.weight();
        (returned > 0).then(|| number(returned))
    }
}

impl Counter for Permits {
    type Stored = Stored;
    type Receipt = usize;

    fn at(stored: &Stored, params: &LimitParams, now_us: u64) -> Permits {
        let LimitParams::Concurrency(limit) = params else { panic!("no permits") };
        let now = i128::from(now_us);
        let (mut shift, mut last) = (stored.shift, stored.last);
        let mut ahead = (last - (now + shift)).max(0);
        let mut is_rebased = false;
        if ahead > i128::from(limit.max_hold_us).min(1_000_000) {
            shift += ahead;
            ahead = 0;
            is_rebased = true;
        }
        let mut clock = now + shift + ahead;
        let held: Vec<_> = stored.permits.iter().filter(|it| it.end > clock).cloned().collect();
        if held.is_empty() {
            (shift, last, ahead, is_rebased, clock) = (0, 0, 0, false, now);
        }
        let ended = stored.permits.iter().filter(|it| it.end <= clock).cloned().collect();
        let taken = stored.taken;
        Permits { limit: *limit, ended, held, shift, last, taken, clock, ahead, is_rebased }
    }

    fn stored(&self) -> Stored {
        let Permits { held, taken, .. } = self;
        if held.is_empty() {
            return Stored { taken: *taken, ..Stored::default() };
        }
        // Only taking a permit moves the clock past permits that have ended for good.
        let permits = self.ended.iter().chain(held).cloned().collect();
        Stored { permits, shift: self.shift, last: self.last, taken: *taken }
    }

    fn used(&self) -> u64 {
        number(self.weight())
    }

    fn capacity(&self) -> u64 {
        self.limit.count.into()
    }

    fn is_rebased(&self) -> bool {
        self.is_rebased
    }

    fn charge(&mut self, units: u64) {
        self.taken += 1;
        let end = self.clock + i128::from(self.limit.max_hold_us);
        self.held.push(Permit { end, weight: units.into(), number: self.taken });
        self.last = self.clock;
    }

    fn receipt(&mut self, _units: u64, _number: usize) -> usize {
        self.taken
    }

    fn refund(&mut self, receipt: &usize, unused: u64) -> Option<u64> {
        let before = self.weight();
        if let Some(permit) = self.held.iter_mut().find(|permit| permit.number == *receipt) {
            permit.weight -= i128::from(unused).min(permit.weight);
        }
        self.returned(before)
    }

    fn lower(&mut self, units: u64) -> Option<u64> {
        let before = self.weight();
        let mut left = i128::from(units);
        self.held.sort_by_key(|permit| (permit.end, permit.number));
        for permit in &mut self.held {
            let by = left.min(permit.weight);
            permit.weight -= by;
            left -= by;
        }
        self.returned(before)
    }

    fn retry_after_us(&self, units: u64) -> u64 {
        self.until_below(i128::from(self.limit.count) - i128::from(units))
    }

    fn reset_after_us(&self) -> u64 {
        if self.weight() == 0 { 0 } else { self.until_below(0) }
    }
}
