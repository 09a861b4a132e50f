//! Levels of a bucket: tokens in use, of which the first has drained in part.

use super::{Params, Reading};

/// A level: `tokens` whole tokens, of which the first has drained by `drained` parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Level {
    /// Tokens in use, the partly drained one included.
    pub tokens: u64,
    /// Parts (1/d µs) that the first token has drained; below n. Negative while the boundary lies ahead of now.
    pub drained: i64,
}

impl Level {
    /// Returns the numbers that clients see, for `cost`.
    #[inline(always)]
    pub fn reading(self, params: &Params, cost: u64, gone_after_us: Option<u64>) -> Reading {
        let burst = u64::from(params.burst);
        let wait = |tokens: u64| {
            params.drain_us(tokens, self.drained).min(gone_after_us.unwrap_or(u64::MAX))
        };
        let over = (self.tokens + cost).saturating_sub(burst);
        Reading {
            remaining: burst.saturating_sub(self.tokens),
            retry_after_us: Some(if over == 0 { 0 } else { wait(over) }),
            reset_after_us: if self.tokens == 0 { 0 } else { wait(self.tokens) },
        }
    }

    pub(crate) fn of_parts(parts: u128, n: u64) -> Level {
        let n = u128::from(n);
        let tokens = parts.div_ceil(n);
        Level { tokens: tokens as u64, drained: (tokens * n - parts) as i64 }
    }

    /// Returns the lower level: fewer tokens, or as many of which more has drained.
    pub(crate) fn min(self, other: Level) -> Level {
        let key = |level: Level| (level.tokens, -level.drained);
        if key(self) <= key(other) { self } else { other }
    }

    pub(crate) fn max(self, other: Level) -> Level {
        if self.min(other) == self { other } else { self }
    }

    pub(crate) fn of_tokens(tokens: u64) -> Level {
        Level { tokens, drained: 0 }
    }

    /// Returns the tokens that are whole.
    pub(crate) fn whole(self) -> u64 {
        self.tokens - u64::from(self.drained > 0)
    }

    pub(crate) fn less(self, by: Level, n: u64) -> Level {
        if self.min(by) == self {
            return Level::default();
        }
        let level = Level { tokens: self.tokens - by.tokens, drained: self.drained - by.drained };
        // A boundary ahead of now stays ahead. Otherwise the rest began to drain a token earlier.
        if self.drained >= 0 && level.drained < 0 {
            return Level { tokens: level.tokens + 1, drained: level.drained + n as i64 };
        }
        level
    }
}
