//! What a store is asked to decide, and what it answers: all counters of one decision together.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::Intent;
use crate::counter::{ChargeReply, LimitHandle};
use crate::limit::NamedLimit;
#[cfg(feature = "redis")]
use crate::reservation::Closing;
use crate::reservation::Opening;

/// One decision to make: counters grouped by rule, the enforced ones (group 0) first.
#[derive(Clone, Debug)]
pub struct Transaction<L: LimitHandle = NamedLimit> {
    /// What to do where there is room.
    pub intent: Intent,
    /// What is done with a reservation's record in the same call.
    pub record: RecordAction,
    /// No two with the same key and limit.
    pub counters: SmallVec<L::Inline>,
}

/// What a call does with the record of a reservation, which lies beside the first of its counters.
#[derive(Clone, Debug, Default)]
pub enum RecordAction {
    /// There is none.
    #[default]
    None,
    /// Opens it, if the decision allows; where one is open already, nothing is charged.
    Open(Arc<Opening>),
    /// Ends or renews it: no decision is made, and each counter is corrected to the cost that is asked
    /// for, or left as it is (`AS_CHARGED`).
    #[cfg(feature = "redis")]
    Close(Arc<Closing>),
}

#[cfg(feature = "redis")]
impl RecordAction {
    /// Notes that the call is sent a second time, so that a record which is there may be its own.
    pub(crate) fn note_resent(&self) {
        if let RecordAction::Open(opening) = self {
            opening.note_resent();
        }
    }
}

/// What became of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionReply {
    /// Whether every enforced counter had room.
    pub allowed: bool,
    /// As asked, in order.
    pub counters: SmallVec<[ChargeReply; 1]>,
}

impl TransactionReply {
    /// It was admitted before, however things stand now.
    pub(crate) fn admit(&mut self) {
        self.allowed = true;
        for counter in &mut self.counters {
            counter.fits = true;
            counter.reading.retry_after_us = Some(0);
        }
    }
}
