//! What a decision does to its counters, and what a refund returns.

use super::Charge;

/// What a decision does if there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Charges.
    Charge,
    /// Charges and returns receipts, as reservations and provisional charges need them. The nonce
    /// names new incarnations and permits.
    Reserve {
        /// Random, below 2^48.
        nonce: u64,
    },
    /// Changes nothing, and returns what would happen.
    Peek,
}

/// A refund to one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refund {
    /// A part of a receipt's charge.
    Unused {
        /// The receipt for this counter.
        charge: Charge,
        /// The part that was not used.
        unused: u64,
    },
    /// An amount, no matter which request charged it. It may free more than was charged by the caller.
    Amount(u64),
}
