//! Encodes calls of `lease.lua`, and decodes its replies. The header of that file documents the layout.

use super::reply::{FIRST, Reply};
use super::{Call, keys};
use crate::error::StoreError;
use crate::lease::{Exchange, Granted};

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
