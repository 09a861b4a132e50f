//! The data that receipts need of a bucket: the life that they belong to, and the lowest level since.
//!
//! A refund may reach the lowest level since the charge, as if refunds in between had never been charged. No
//! history of levels is kept. Two bounds of that level are known, and the better one counts.

use super::{Charge, Level, Params};

/// The life of a bucket, from its first receipt on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracked {
    /// The name of this life.
    pub incarnation: u64,
    /// The burst at its beginning.
    pub burst: u32,
    /// When the current span began. A span is the time of one full refill.
    pub span_us: u64,
    /// The lowest level of the current span, less all refunds in it.
    pub low: Level,
    /// The lowest level of the span before, less all refunds in it.
    pub low_before: Level,
    /// The lowest level of the current span, without regard to refunds.
    pub floor: Level,
    /// The lowest level of the span before, without regard to refunds.
    pub floor_before: Level,
    /// All refunds of this life, in whole tokens rounded up.
    pub returned: u64,
}

impl Tracked {
    /// Begins a life at a level.
    pub(super) fn begun(nonce: u64, burst: u32, level: Level, now_us: u64) -> Tracked {
        Tracked {
            incarnation: nonce,
            burst,
            span_us: now_us,
            low: level,
            low_before: level,
            floor: level,
            floor_before: level,
            returned: 0,
        }
    }

    /// Records the level just before a write.
    pub(super) fn note(&mut self, level: Level, span_us: u64, now_us: u64) {
        let since_us = now_us.saturating_sub(self.span_us);
        if since_us < span_us {
            self.low = self.low.min(level);
            self.floor = self.floor.min(level);
            return;
        }
        if since_us < 2 * span_us {
            (self.low_before, self.floor_before) = (self.low, self.floor);
            self.span_us += span_us;
        } else {
            (self.low_before, self.floor_before) = (level, level);
            self.span_us = now_us;
        }
        (self.low, self.floor) = (level, level);
    }

    /// Records a refund.
    pub(super) fn lower(&mut self, by: Level, n: u64) {
        self.low = self.low.less(by, n);
        self.low_before = self.low_before.less(by, n);
        self.returned += by.tokens;
    }

    /// Returns a lower bound of the level since a charge, as if refunds since then had never been charged.
    ///
    /// Bounds are the lows of whole spans less all refunds in them, and the plain lows less the refunds since
    /// the charge.
    pub(super) fn low_since(&self, charge: &Charge, params: &Params) -> Level {
        let (low, floor) = if charge.at_us >= self.span_us {
            (self.low, self.floor)
        } else if charge.at_us + params.refill_us() >= self.span_us {
            (self.low.min(self.low_before), self.floor.min(self.floor_before))
        } else {
            // The charge is older than a full refill, so it has drained completely.
            return Level::default();
        };
        let since = Level { tokens: self.returned.saturating_sub(charge.mark), drained: 0 };
        low.max(floor.less(since, params.n))
    }
}
