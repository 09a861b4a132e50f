//! Token bucket: in any interval L, admitted ≤ burst + floor(L × rate).
//!
//! State: whole tokens in use, and the boundary at which the first of them began to drain. A token drains in `n/d` µs,
//! the period over the count in lowest terms. Instants are kept in parts of 1/d µs, so nothing is ever rounded.
//!
//! State of other parameters keeps its whole tokens and its boundary, and drains at the new rate from there.
//! It is gone at the latest when it would have been under its own parameters, which is also when the store
//! deletes it. No write marks the change, so every call computes the same.

use std::fmt;

use super::passing::{Passing, Shape};
use super::period::QuotaPeriod;
use super::{
    COUNT_MAX, Charge, Counting, EXACT_MAX, FORCED_TIMES, Footprint, LimitError, LimitParams,
    OwnField, Profile, Rate, Reading, Refund, Share, gcd, tolerated_us,
};

mod level;

pub use level::Level;

/// `count` tokens every `period`, at most `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Tokens per period.
    pub count: u32,
    /// The period.
    pub period_us: u64,
    /// The capacity.
    pub burst: u32,
    /// A token drains in `n / d` µs.
    pub n: u64,
    /// Instants are kept in parts of 1/d µs.
    pub d: u32,
    /// The most that force may reach: twice the burst, if that drains within 2^53 µs.
    pub forced_max: u64,
}

/// Whole tokens used at the boundary, and the parameters that they were charged under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Whole tokens used at the boundary; never 0.
    pub used: u32,
    /// When the first of them began to drain: whole µs …
    pub boundary_us: u64,
    /// … and parts of 1/d µs.
    pub boundary_part: u32,
    /// The count that the state was written under.
    pub count: u32,
    /// The period that the state was written under.
    pub period_us: u64,
    /// Set from the first receipt on. Boxed, because few buckets have one and every decision moves its states.
    pub receipts: Option<Box<Receipts>>,
}

/// The data that receipts need of a bucket.
///
/// Had part of a charge never been made, at most that part would be free now, and at most the fewest tokens in use
/// since then, as if refunds in between had never been charged. No history is kept: one low stands for all charges
/// since it began. Where it proves too little the refund is smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipts {
    /// Names the bucket from its first receipt until it is empty.
    pub incarnation: u64,
    /// The sum of all refunds, and of the lows that were given up. A receipt carries its value.
    pub mark: u64,
    /// The fewest whole tokens in use since it began.
    pub low: u64,
}

/// The bucket at an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View<'n> {
    params: &'n Params,
    /// The tokens in use.
    pub level: Level,
    /// How long until the state is gone under its own parameters, if those differ from the ones in force.
    pub gone_after_us: Option<u64>,
    /// The boundary of the level.
    boundary: (u64, u32),
    receipts: Option<Box<Receipts>>,
    rebased: bool,
}

impl Params {
    /// Computes the parameters in lowest terms. An error names the wrong field, and the nearest value that fits.
    pub fn new(count: u32, period_us: u64, burst: u64) -> Result<Params, LimitError> {
        let Some(burst) = u32::try_from(burst).ok().filter(|b| (1..=COUNT_MAX).contains(b)) else {
            let nearest = if burst == 0 { 1 } else { COUNT_MAX };
            return Err(LimitError::new(
                "burst",
                format!(
                    "a burst must be from 1 to {COUNT_MAX}, got {burst}; the nearest that fits is {nearest}"
                ),
            ));
        };
        let divisor = gcd(period_us, u64::from(count));
        let (n, d) = (period_us / divisor, count / divisor as u32);
        let burst_max = u128::from(EXACT_MAX) * u128::from(d) / u128::from(n);
        if u128::from(burst) > burst_max {
            return Err(LimitError::new(
                "burst",
                format!(
                    "a full bucket of {burst} would take longer than 2^53 µs to refill at this rate; the largest burst that fits is {burst_max}"
                ),
            ));
        }
        let forced_max = burst_max.min(u128::from(FORCED_TIMES * u64::from(burst))) as u64;
        Ok(Params { count, period_us, burst, n, d, forced_max })
    }

    /// Returns how long a full bucket takes to drain.
    #[inline]
    pub fn refill_us(&self) -> u64 {
        self.drain_us(u64::from(self.burst), 0)
    }

    /// Returns how long `tokens` take to drain, rounded down; `None` if that does not fit.
    pub fn drain_floor_us(&self, tokens: u64) -> Option<u64> {
        u64::try_from(u128::from(tokens) * u128::from(self.n) / u128::from(self.d)).ok()
    }

    /// Returns the whole tokens that drain in `elapsed_us` less `part` of 1/d µs, and the parts that the next
    /// token has drained by then. `elapsed_us` must be more than `part`.
    #[inline]
    fn drained_in(&self, elapsed_us: u64, part: u32) -> (u64, u64) {
        let (n, d, part) = (self.n, u64::from(self.d), u64::from(part));
        // A division of one word is several times as fast as one of two words, and nearly all numbers fit one.
        if let Some(parts) = elapsed_us.checked_mul(d) {
            return ((parts - part) / n, (parts - part) % n);
        }
        let parts = u128::from(elapsed_us) * u128::from(d) - u128::from(part);
        let n = u128::from(n);
        (u64::try_from(parts / n).unwrap_or(u64::MAX), (parts % n) as u64)
    }

    /// Returns how long `tokens` take to drain, if the first has drained by `drained` parts; rounded up.
    #[inline]
    fn drain_us(&self, tokens: u64, drained: i64) -> u64 {
        let parts = tokens.checked_mul(self.n).and_then(|all| all.checked_add_signed(-drained));
        match (parts, u64::from(self.d)) {
            // Most rates take whole µs for a token, and a division by 1 takes as long as any other.
            (Some(parts), 1) => parts,
            (Some(parts), d) => parts.div_ceil(d),
            (None, _) => {
                let parts = i128::from(tokens) * i128::from(self.n) - i128::from(drained);
                ceil_us(u128::try_from(parts).unwrap_or(0), self.d)
            }
        }
    }
}

/// What sets token buckets apart.
pub static PROFILE: Profile = Profile {
    name: "token-bucket",
    own_field: Some(OwnField::Burst),
    own_key: None,
    is_leasable: true,
    lease_ends_with_window: false,
    has_calendar: false,
    counts_permits: false,
    charge_us: 3,
    unit_us: 0,
    bytes: Footprint { memory: 0, memory_unit: 0, redis_unit: 0 },
    build: |fields| {
        let (count, length) = fields.rate(COUNT_MAX)?;
        let burst = fields.burst.unwrap_or(u64::from(count));
        Params::new(count, length.us(), burst).map(LimitParams::TokenBucket)
    },
    decode: |count, period_us, rest| {
        let burst = u32::from_be_bytes(rest.take()?);
        // The period divides.
        let period_us = Some(period_us).filter(|us| *us > 0)?;
        Params::new(count, period_us, burst.into()).ok().map(LimitParams::TokenBucket)
    },
};

impl Counting for Params {
    fn capacity(&self) -> u32 {
        self.burst
    }

    fn period(&self) -> u64 {
        self.period_us
    }

    fn longest_wait_us(&self) -> u64 {
        self.refill_us()
    }

    fn spaced_us(&self, first: u64, total: u64) -> u64 {
        self.drain_floor_us(total.saturating_sub(first)).unwrap_or(u64::MAX)
    }

    fn one_more_after_us(&self, used: u64, reset_after_us: u64) -> Option<u64> {
        // The other `used - 1` units drain after the first one.
        let later_us = self.drain_floor_us(used - 1)?;
        Some(reset_after_us.saturating_sub(later_us))
    }

    fn own_value(&self) -> Option<String> {
        (self.burst != self.count).then(|| self.burst.to_string())
    }

    fn rate(&self) -> Option<Rate> {
        Some(Rate { count: self.count, period_us: self.period_us, burst: self.burst })
    }

    fn replaced_by(&self, asked: &Rate) -> Option<LimitParams> {
        let Rate { count, period_us, burst } = asked.at_most(COUNT_MAX);
        Params::new(count, period_us, burst.into()).ok().map(LimitParams::TokenBucket)
    }

    fn narrowed_to(&self, asked: &Rate) -> Option<LimitParams> {
        let burst = self.burst.min(asked.burst);
        let lower = self.rate()?.lower(asked.at_most(COUNT_MAX));
        self.replaced_by(&Rate { burst, ..lower })
    }

    fn doubled(&self) -> Option<LimitParams> {
        let twice = |count: u32| count.checked_mul(2).filter(|count| *count <= COUNT_MAX);
        let (count, burst) = (twice(self.count)?, twice(self.burst)?);
        Params::new(count, self.period_us, burst.into()).ok().map(LimitParams::TokenBucket)
    }

    /// The rate is exact if a bucket can have it, else slower by less than 1 µs for each token.
    fn share(&self, share: Share) -> LimitParams {
        let burst = share.part_of(self.burst.into()).max(1);
        let exactly = share.of_rate(self.count, self.period_us);
        let exactly = exactly.and_then(|(count, us)| Params::new(count, us, burst).ok());
        LimitParams::TokenBucket(exactly.unwrap_or_else(|| {
            let token_us = share.time_for_one(self.count, self.period_us).min(EXACT_MAX);
            let burst = burst.min(EXACT_MAX / token_us);
            Params::new(1, token_us, burst).unwrap_or(*self)
        }))
    }

    fn passing(&self) -> Option<Passing> {
        Some(Passing {
            burst: self.burst.into(),
            count: self.count.into(),
            period_us: self.period_us.into(),
            shape: Shape::Evenly,
        })
    }

    fn has_room_for(&self, other: &LimitParams) -> bool {
        let Some(passing) = other.counting().passing() else { return false };
        let (count, period_us) = (u128::from(self.count), u128::from(self.period_us));
        passing.burst <= u128::from(self.burst)
            && passing.count * period_us <= count * passing.period_us
    }

    fn used_after(&self, used: u64, left_us: u64, whole_us: u64) -> u64 {
        // At most `used`, so it fits.
        (u128::from(used) * u128::from(left_us)).div_ceil(u128::from(whole_us)) as u64
    }

    fn surely_counted(&self, amount: u64, at_us: u64, now_us: u64, _margin_us: u64) -> u64 {
        let age_us = now_us.saturating_sub(at_us);
        let drained = u128::from(self.burst) * u128::from(age_us);
        let drained = drained.div_ceil(u128::from(self.refill_us().max(1)));
        amount.saturating_sub(drained.try_into().unwrap_or(u64::MAX))
    }

    fn words(&self, out: &mut Vec<u64>, _estimate_us: u64) {
        let code = PERIOD_SECONDS.iter().position(|s| s * 1_000_000 == self.period_us);
        out.extend([
            u64::from(self.burst),
            self.forced_max,
            self.n,
            u64::from(self.d),
            u64::from(self.count),
            self.period_us,
            code.map_or(0, |code| code as u64 + 1),
        ]);
    }

    fn reply_width(&self) -> usize {
        3
    }

    fn reading(&self, reply: &[i64], cost: u64, since: i64) -> Option<Reading> {
        let &[used, drained, gone_after_us] = reply else { return None };
        let level = Level { tokens: (used + since).max(0) as u64, drained };
        Some(level.reading(self, cost, u64::try_from(gone_after_us).ok()))
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.count.to_be_bytes());
        bytes.extend(self.period_us.to_be_bytes());
        bytes.extend(self.burst.to_be_bytes());
    }
}

impl fmt::Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, QuotaPeriod(self.period_us))?;
        if self.burst != self.count {
            write!(f, " burst {}", self.burst)?;
        }
        Ok(())
    }
}

impl<'n> View<'n> {
    /// Computes the stored bucket at `now_us` under `params`.
    #[inline(always)]
    pub fn new(state: Option<&State>, params: &'n Params, now_us: u64) -> View<'n> {
        let Some(state) = state else { return View::unused(params, now_us) };
        if (state.count, state.period_us) == (params.count, params.period_us) {
            return View::drained_by(state, params, now_us);
        }
        View::under_other_params(state, params, now_us)
    }

    #[cold]
    fn under_other_params(state: &State, params: &'n Params, now_us: u64) -> View<'n> {
        let gone_us = state.gone_us();
        // The boundary is rounded up to a whole µs: parts of 1/d mean another time under another d.
        let converted = State {
            boundary_us: state.boundary_us + u64::from(state.boundary_part > 0),
            boundary_part: 0,
            receipts: None,
            ..state.clone()
        };
        let mut view = View::drained_by(&converted, params, now_us);
        if gone_us <= now_us {
            return View::unused(params, now_us);
        }
        if !view.rebased && view.level.tokens > 0 {
            view.gone_after_us = Some(gone_us - now_us);
        }
        view
    }

    /// Returns whether `cost` more tokens fit now.
    #[inline]
    pub fn has_room(&self, cost: u64) -> bool {
        self.level.tokens + cost <= u64::from(self.params.burst)
    }

    /// Returns the numbers that clients see, for `cost`.
    #[inline]
    pub fn reading(&self, cost: u64) -> Reading {
        self.level.reading(self.params, cost, self.gone_after_us)
    }

    /// Returns whether the stored boundary was too far ahead of now, so that the use was moved to now.
    pub fn rebased(&self) -> bool {
        self.rebased
    }

    /// Uses `cost` tokens.
    #[inline]
    pub fn charge(&mut self, cost: u64) {
        if let Some(receipts) = &mut self.receipts {
            // Since the last write the level has only fallen.
            receipts.low = receipts.low.min(self.level.whole());
        }
        self.gone_after_us = None;
        self.level.tokens += cost;
    }

    /// Uses up to `cost` tokens even without room, up to the limit of force.
    pub fn force(&mut self, cost: u64) {
        let forced = self.level.tokens.saturating_add(cost).min(self.params.forced_max);
        self.charge(forced.saturating_sub(self.level.tokens));
    }

    /// Creates a receipt for `amount` tokens charged just now. The first one names the bucket `nonce`.
    pub fn receipt(&mut self, amount: u64, now_us: u64, nonce: u64) -> Charge {
        let tokens = self.level.whole();
        let new = || Box::new(Receipts { incarnation: nonce, mark: 0, low: 0 });
        let receipts = self.receipts.get_or_insert_with(new);
        // Above five quarters of the low, it begins again. For earlier charges it then proves nothing.
        if 4 * tokens > 5 * receipts.low {
            receipts.mark += tokens;
            receipts.low = tokens;
        }
        Charge { incarnation: receipts.incarnation, at_us: now_us, amount, mark: receipts.mark }
    }

    /// Refunds. Returns the whole tokens refunded, or `None` if nothing changed.
    pub fn refund(&mut self, what: Refund, now_us: u64) -> Option<u64> {
        let back = match what {
            Refund::Unused { charge, unused } => self.returnable(&charge, unused, now_us),
            Refund::Amount(amount) => Level::of_tokens(amount),
        };
        let back = back.min(self.level);
        // While the boundary lies ahead of now no token has begun to drain, so only whole tokens can be refunded.
        let back = if self.level.drained < 0 { Level::of_tokens(back.whole()) } else { back };
        if back == Level::default() {
            return None;
        }
        self.gone_after_us = None;
        self.lower(back, now_us);
        Some(back.whole())
    }

    /// Returns the tokens that would surely be free now had `unused` tokens of `charge` never been charged.
    fn returnable(&self, charge: &Charge, unused: u64, now_us: u64) -> Level {
        let Some(receipts) = &self.receipts else { return Level::default() };
        if receipts.incarnation != charge.incarnation || now_us < charge.at_us {
            return Level::default();
        }
        let elapsed = u128::from(now_us - charge.at_us) * u128::from(self.params.d);
        let charged = u128::from(charge.amount) * u128::from(self.params.n);
        // Two amounts are safe to refund: the rest of the charge by its age, and what the low proves.
        let left = Level::of_parts(charged.saturating_sub(elapsed), self.params.n);
        let since = receipts.mark.checked_sub(charge.mark);
        let proven = since.map_or(0, |since| receipts.low.saturating_sub(since));
        Level::of_tokens(unused).min(left.max(Level::of_tokens(proven)))
    }

    /// Returns the state to store, or `None` for an empty bucket.
    #[inline]
    pub fn state(&self) -> Option<State> {
        (self.level.tokens > 0).then(|| State {
            // Fits: forced charges reach at most twice the largest burst.
            used: u32::try_from(self.level.tokens).unwrap_or(u32::MAX),
            boundary_us: self.boundary.0,
            boundary_part: self.boundary.1,
            count: self.params.count,
            period_us: self.params.period_us,
            receipts: self.receipts.clone(),
        })
    }

    #[inline]
    fn unused(params: &'n Params, now_us: u64) -> View<'n> {
        View {
            params,
            level: Level::default(),
            gone_after_us: None,
            boundary: (now_us, 0),
            receipts: None,
            rebased: false,
        }
    }

    #[inline(always)]
    fn drained_by(state: &State, params: &'n Params, now_us: u64) -> View<'n> {
        // A smaller burst binds at once, but must not lock clients out for tokens that a larger burst admitted.
        let used = u64::from(state.used).min(params.forced_max);
        // Where use is cut off, nothing is certain about the charges that it contains.
        let receipts = state.receipts.as_ref().filter(|_| used == u64::from(state.used)).cloned();
        let boundary = (state.boundary_us, state.boundary_part);
        if now_us <= state.boundary_us {
            let ahead_us = state.boundary_us - now_us;
            if ahead_us > tolerated_us(params.refill_us()) {
                // The clock stepped back: the whole use counts from now on, and drains from now on.
                let level = Level::of_tokens(used);
                return View { level, rebased: true, ..View::unused(params, now_us) };
            }
            let ahead = u128::from(ahead_us) * u128::from(params.d) + u128::from(boundary.1);
            let level = Level { tokens: used, drained: -(ahead as i64) };
            return View { level, boundary, receipts, ..View::unused(params, now_us) };
        }
        let (drained, part) = params.drained_in(now_us - boundary.0, boundary.1);
        if drained >= used {
            return View::unused(params, now_us);
        }
        let level = Level { tokens: used - drained, drained: part as i64 };
        let boundary = before(now_us, part, params.d);
        View { level, boundary, receipts, ..View::unused(params, now_us) }
    }

    fn lower(&mut self, by: Level, now_us: u64) {
        self.level = self.level.less(by, self.params.n);
        if self.level.tokens == 0 {
            *self = View { rebased: self.rebased, ..View::unused(self.params, now_us) };
            return;
        }
        if self.level.drained >= 0 {
            self.boundary = before(now_us, self.level.drained as u64, self.params.d);
        }
        if let Some(receipts) = &mut self.receipts {
            receipts.mark += by.tokens;
        }
    }
}

impl State {
    /// Returns when the state has drained completely, at the rate that it was written under.
    #[inline]
    pub fn gone_us(&self) -> u64 {
        let drain = u128::from(self.used) * u128::from(self.period_us);
        self.boundary_us + u64::from(self.boundary_part > 0) + ceil_us(drain, self.count)
    }

    /// Returns the bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.receipts.as_ref().map_or(0, |_| size_of::<Receipts>())
    }
}

/// Returns the instant `parts` of 1/d µs before `now_us`.
#[inline]
fn before(now_us: u64, parts: u64, d: u32) -> (u64, u32) {
    if d == 1 {
        return (now_us - parts, 0);
    }
    let whole = parts.div_ceil(u64::from(d));
    (now_us - whole, (whole * u64::from(d) - parts) as u32)
}

fn ceil_us(parts: u128, d: u32) -> u64 {
    match u64::try_from(parts) {
        Ok(parts) => parts.div_ceil(u64::from(d)),
        Err(_) => parts.div_ceil(u128::from(d)) as u64,
    }
}

/// Periods that fit a short record in Redis, by code. `PERIOD_SECONDS` in the Lua file has the same list.
const PERIOD_SECONDS: [u64; 13] =
    [1, 10, 30, 60, 300, 600, 900, 3_600, 43_200, 86_400, 604_800, 2_592_000, 31_536_000];
