//! The request of one decision to a store, with all its counters, and the store's reply.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::Intent;
use crate::counter::{ChargeReply, LimitHandle};
use crate::limit::NamedLimit;
use crate::reservation::{Closed, Closing, Opened, Opening};

/// The charges of one decision. Those of all enforced rules are group 0 and come first. Each shadow
/// rule and each post-paid limit follows as a group of its own.
#[derive(Clone, Debug)]
pub struct Transaction<L: LimitHandle = NamedLimit> {
    /// Whether counters with room are charged or only read.
    pub intent: Intent,
    /// The change to a reservation record in the same call.
    pub record: RecordAction,
    /// The charges. No two have the same key and limit.
    pub charges: SmallVec<L::Inline>,
}

/// The change to a reservation record. The record is stored beside the first counter of the
/// transaction.
#[derive(Clone, Debug, Default)]
pub enum RecordAction {
    /// No record.
    #[default]
    None,
    /// Opens a record if the decision allows. If the record is open already, nothing is charged.
    Open(Arc<Opening>),
    /// Ends or renews a record without a decision. Each counter is corrected to the cost of its
    /// charge, or left as it is (`AS_CHARGED`).
    Close(Arc<Closing>),
}

/// The result of the change to a reservation record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordReply {
    /// There was none.
    #[default]
    None,
    /// Of opening it.
    Opened(Opened),
    /// Of ending or renewing it.
    Closed(Closed),
}

/// The store's reply to a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionReply {
    /// Whether every enforced counter had room.
    pub allowed: bool,
    /// The replies, in the order of the charges.
    pub replies: SmallVec<[ChargeReply; 1]>,
    /// The result of the change to a record.
    pub record: RecordReply,
    /// Whether the call was sent a second time. A record that existed before may then be its own.
    pub is_resent: bool,
}

impl TransactionReply {
    /// Turns the reply into an admission, because an earlier call has already charged it. The quota
    /// left now does not matter.
    pub fn admit(&mut self) {
        self.allowed = true;
        for counter in &mut self.replies {
            counter.fits = true;
            counter.reading.retry_after_us = Some(0);
        }
    }
}
