//! Encodes calls of `lease.lua`, and decodes its replies. The header of that file documents the layout.

use smallvec::SmallVec;

use super::reply::{FIRST, Reply};
use super::{Call, keys};
use crate::algorithm::Reading;
use crate::counter::PlannedCharge;
use crate::error::StoreError;

/// A call of an instance to the ledger of a counter: the leases it closes, and the tokens it wants.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The counter. Its cost is ignored.
    pub counter: PlannedCharge,
    /// The instance: a random number that no other instance has.
    pub node: u64,
    /// The number of this call of the instance. With `node` it identifies the lease that is
    /// granted.
    pub seq: u32,
    /// The leases that the instance closes.
    pub closes: SmallVec<[Close; 4]>,
    /// The most tokens that all instances may hold together.
    pub share: u64,
    /// The tokens that the instance could use; 0 for none.
    pub wanted: u64,
    /// The duration of the lease in µs.
    pub ttl_us: u64,
}

/// A lease that its holder closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Close {
    /// The number of the call that got the lease.
    pub seq: u32,
    /// The tokens of it that were not spent, or [`ALL`] if the holder does not know how many there
    /// were.
    pub unused: u64,
}

/// The ledger's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The tokens granted. They are charged already.
    pub amount: u64,
    /// The time in µs for which they may be spent, from before the call was sent.
    pub lasts_us: u64,
    /// The state of the counter after the call.
    pub reading: Reading,
}

impl<'a> Call<'a> {
    /// Adds an exchange with the ledger of a counter: leases that this instance closes, and the lease that it wants.
    pub(crate) fn exchange(&mut self, exchange: &'a Exchange) {
        let Exchange { counter, node, seq, closes, share, wanted, ttl_us } = exchange;
        self.is_of_leases = true;
        let ledger = self.add_key(keys::ledger(counter.key, &counter.limit));
        self.operations.extend([EXCHANGE, ledger]);
        self.text(node.to_be_bytes().to_vec());
        self.operations.extend([u64::from(*seq), *share, *wanted, *ttl_us]);
        self.operations.push(closes.len() as u64);
        for close in closes {
            self.operations.extend([u64::from(close.seq), close.unused]);
        }
        self.place(counter);
    }
}

impl Reply {
    /// Returns the lease that was granted on a counter.
    pub(crate) fn granted(&self, exchange: &Exchange) -> Result<Granted, StoreError> {
        let words = self.after(FIRST);
        let ([amount, lasts_us], rest) = words
            .split_first_chunk::<2>()
            .ok_or_else(|| StoreError::Foreign("the script's reply is too short".into()))?;
        let reply = self.one_counter(rest, &exchange.counter)?;
        let number = |word: &i64| (*word).max(0).cast_unsigned();
        Ok(Granted { amount: number(amount), lasts_us: number(lasts_us), reading: reply.reading })
    }
}

const EXCHANGE: u64 = 6;

/// Larger than any grant.
pub const ALL: u64 = 1 << 40;
