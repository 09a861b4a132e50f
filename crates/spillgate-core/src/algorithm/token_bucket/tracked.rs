//! What receipts need of a bucket: which life of it they belong to, and how empty it has been since.
//!
//! What may come back of a charge ends at the lowest level since, had what came back meanwhile never been
//! charged. Nobody keeps each level; two bounds of it are known, and the better counts.

use super::{Charge, Level, Params};

/// Kept from the first receipt on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracked {
    /// This life's name.
    pub incarnation: u64,
    /// The burst that it began under.
    pub burst: u32,
    /// When the current span of one full refill began.
    pub span_us: u64,
    /// The lowest level of the current span, less all that came back in it.
    pub low: Level,
    /// The same of the span before.
    pub low_before: Level,
    /// The lowest level of the current span as it was.
    pub floor: Level,
    /// The same of the span before.
    pub floor_before: Level,
    /// All that ever came back, in whole tokens rounded up.
    pub returned: u64,
}

impl Tracked {
    /// A life that begins at a level.
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

    /// Notes the level just before a write.
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

    /// Notes what comes back.
    pub(super) fn lower(&mut self, by: Level, n: u64) {
        self.low = self.low.less(by, n);
        self.low_before = self.low_before.less(by, n);
        self.returned += by.tokens;
    }

    /// The lowest that the level would have been since a charge: the lows of whole spans less all that
    /// came back in them, or the levels as they were less what came back since the charge.
    pub(super) fn low_since(&self, charge: &Charge, params: &Params) -> Level {
        let (low, floor) = if charge.at_us >= self.span_us {
            (self.low, self.floor)
        } else if charge.at_us + params.refill_us() >= self.span_us {
            (self.low.min(self.low_before), self.floor.min(self.floor_before))
        } else {
            return Level::default();
        };
        let since = Level { tokens: self.returned.saturating_sub(charge.slot), drained: 0 };
        low.max(floor.less(since, params.n))
    }
}
