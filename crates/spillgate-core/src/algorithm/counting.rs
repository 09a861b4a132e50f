//! What sets the algorithms apart outside their arithmetic.
//!
//! Each algorithm's own file has its [`Profile`] and implements [`Counting`] for its parameters, so that the rest of
//! the code asks what a limit does instead of which algorithm it has.

use super::bytes::Bytes;
use super::passing::Passing;
use super::quota::Length;
use super::{COUNT_MAX, LimitError, LimitParams, Rate, Reading, Share, WINDOW_COUNT_MAX};

/// The fixed properties of an algorithm.
pub struct Profile {
    /// The name in a policy: `token-bucket`.
    pub name: &'static str,
    /// The field of a limit that this algorithm has and others have not.
    pub own_field: Option<OwnField>,
    /// The letter in the name of its key in Redis, if it has one beside the key of the subject's other counters.
    pub own_key: Option<u8>,
    /// Whether a part of a limit can be taken ahead, and the rest refunded.
    pub is_leasable: bool,
    /// Whether a lease ends with the window that it was taken from, so that it never adds to what a limit admits.
    pub lease_ends_with_window: bool,
    /// Whether its windows can be those of a calendar.
    pub has_calendar: bool,
    /// Whether it counts permits, which are held and released, instead of requests over time.
    pub counts_permits: bool,
    /// The time of one charge inside a large call to Redis, in estimated microseconds. It was measured on server
    /// version 8 and doubled for slower servers, and includes parsing and the reply.
    pub charge_us: u64,
    /// The time of each further unit of such a charge, in estimated microseconds.
    pub unit_us: u64,
    /// The bytes of a counter in memory and in Redis.
    pub bytes: Footprint,
    /// Makes the parameters from the fields of a limit, or says which of them is wrong and what would fit.
    pub build: fn(&Fields<'_>) -> Result<LimitParams, LimitError>,
    /// Makes parameters from a count above 0, a length of time, and the bytes that [`Counting::encode`] wrote after them.
    /// Returns `None` if an arithmetic could not work with them, such as a period of 0.
    pub decode: fn(u32, u64, &mut Bytes<'_>) -> Option<LimitParams>,
}

/// A field of a limit that only one algorithm has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnField {
    /// `burst`.
    Burst,
    /// `time_zone`.
    TimeZone,
    /// `max_hold`.
    MaxHold,
}

/// The bytes that a counter takes beyond those which every counter takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Footprint {
    /// In memory, for the counter.
    pub memory: u64,
    /// In memory, for each unit or permit in use.
    pub memory_unit: u64,
    /// In the own key in Redis, for each unit or permit in use.
    pub redis_unit: u64,
}

/// The fields of a limit that make its parameters, as they were written.
pub struct Fields<'f> {
    /// The count of the quota.
    pub count: u64,
    /// The period of the quota. Permits have none.
    pub length: Option<Length>,
    /// The most that is allowed at once.
    pub burst: Option<u64>,
    /// The time zone of calendar windows.
    pub time_zone: Option<&'f str>,
    /// The longest time that a permit may be held.
    pub max_hold: Option<&'f str>,
}

impl Fields<'_> {
    /// Returns the count, which must be at most `most`, and the period, which must be there.
    pub fn rate(&self, most: u32) -> Result<(u32, Length), LimitError> {
        let Some(length) = self.length else {
            let count = self.count;
            let message = format!("{count} has no period; write for example \"{count}/second\"");
            return Err(LimitError::new("quota", message));
        };
        Ok((checked_count(most, self.count)?, length))
    }
}

/// Returns a count from 1 to `most`, or an error that names the nearest.
pub fn checked_count(most: u32, count: u64) -> Result<u32, LimitError> {
    match u32::try_from(count) {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        Ok(0) => Err(LimitError::new(
            "quota",
            "a count of 0 allows nothing; write \"block\" if you mean that, or \"unlimited\" for the opposite",
        )),
        _ => Err(LimitError::new(
            "quota",
            match most {
                COUNT_MAX => format!(
                    "{count} is above {COUNT_MAX}, the nearest count that fits; windows count up to {WINDOW_COUNT_MAX}"
                ),
                _ => format!("{count} is above {most}, the nearest count that fits"),
            },
        )),
    }
}

/// Returns the least time until `total` units are admitted by windows of `count`: each admits no more, so there are at
/// least this many whole periods between the first unit and the last.
pub fn whole_periods_us(total: u64, count: u32, period_us: u64) -> u64 {
    (total.saturating_sub(1) / u64::from(count)).saturating_mul(period_us)
}

/// How the parameters of one algorithm count.
pub trait Counting {
    /// Returns the most that can be used at once.
    fn capacity(&self) -> u32;

    /// Returns a number that differs whenever the periods differ, since state of one period has no meaning for
    /// another. Limits without a period have 0.
    fn period(&self) -> u64;

    /// Returns the longest time that a cost within capacity may have to wait, if no other request is charged and nothing
    /// was charged by force.
    fn longest_wait_us(&self) -> u64;

    /// Returns the time in which the capacity comes back by itself, or `None` if no time brings it back.
    fn window_us(&self) -> Option<u64> {
        Some(self.longest_wait_us())
    }

    /// Returns the least time from when `first` has room until all of `total`, which includes it, is admitted.
    fn spaced_us(&self, first: u64, total: u64) -> u64;

    /// Returns how long until one more of `used` units, of which there is at least one, is free, if all are free after `reset_after_us`. `None` if that
    /// is not known.
    fn one_more_after_us(&self, _used: u64, _reset_after_us: u64) -> Option<u64> {
        None
    }

    /// Returns the longest time that a permit is held, or `None` if there are no permits.
    fn max_hold_us(&self) -> Option<u64> {
        None
    }

    /// Returns the value of the algorithm's own field, to be written in a limit; `None` if it is the default.
    fn own_value(&self) -> Option<String> {
        None
    }

    /// Returns the rate that these parameters ask for in place of another limit's. `None` if they have none.
    fn rate(&self) -> Option<Rate> {
        None
    }

    /// Returns the parameters that `asked` makes in place of these. A count above the maximum becomes the maximum.
    /// `None` if these have no rate.
    fn replaced_by(&self, asked: &Rate) -> Option<LimitParams>;

    /// Returns the parameters that allow no more than these and no more than `asked`, at once and in the long run.
    /// `None` if these have no rate, or if no such parameters exist.
    fn narrowed_to(&self, asked: &Rate) -> Option<LimitParams>;

    /// Returns the parameters with twice the quota, or `None` if that does not fit.
    fn doubled(&self) -> Option<LimitParams>;

    /// Returns the parameters of one instance's local share. The rate is exact; counts and bursts are rounded down,
    /// to at least 1.
    fn share(&self, share: Share) -> LimitParams;

    /// Returns the most that these parameters let pass, or `None` if time does not bound it.
    fn passing(&self) -> Option<Passing> {
        None
    }

    /// Returns whether there is always room for what `other` allows. `false` may also mean that the bounds are too
    /// close to decide.
    fn has_room_for(&self, other: &LimitParams) -> bool;

    /// Returns how many of `used` units are still in use `left_us` before all of them are free again, if that takes
    /// `whole_us`, above 0, in all. They may all return at the end only.
    fn used_after(&self, used: u64, _left_us: u64, _whole_us: u64) -> u64 {
        used
    }

    /// Returns how much of `amount`, which was charged at `at_us`, a store whose clock differs by less than
    /// `margin_us` surely still counts at `now_us`.
    fn surely_counted(&self, _amount: u64, _at_us: u64, _now_us: u64, _margin_us: u64) -> u64 {
        0
    }

    /// Appends the parameters as the Lua file of the algorithm reads them. `estimate_us` estimates the store's time.
    fn words(&self, out: &mut Vec<u64>, estimate_us: u64);

    /// Returns the number of words in the reply of the algorithm's Lua file.
    fn reply_width(&self) -> usize;

    /// Converts such a reply to the numbers that clients see, as they are after `since` more was charged. Returns
    /// `None` if the reply has another width.
    fn reading(&self, reply: &[i64], cost: u64, since: i64) -> Option<Reading>;

    /// Appends the parameters to a reservation's record: a count of four bytes, a length of time in µs of eight, the
    /// highest byte first, and what [`Profile::decode`] reads after them.
    fn encode(&self, bytes: &mut Vec<u8>);
}
