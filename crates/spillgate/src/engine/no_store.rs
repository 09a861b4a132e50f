//! Without the feature `redis` no limiter has a shared store. Its type has no value, so none of its methods is called.

use std::time::Duration;

use crate::counter::{Change, ChargeReply, PlannedCharge};
use crate::decision::CounterOutcomes;
use crate::error::StoreError;
use crate::limit::NamedLimit;
use crate::plan::{Evaluated, Plan, Transaction, TransactionReply};
use crate::policy::Policy;
use crate::reservation::{Contents, EndResult, Ending, Opening, ReservationError};
use crate::subject::SubjectKey;

#[derive(Debug)]
pub(crate) enum RedisStore {}

/// Declares methods of the store: first those that are async.
macro_rules! never_called {
    (async { $($slow:ident($($given:ty),*) -> $answer:ty;)* } $($fast:ident($($of:ty),*) -> $result:ty;)*) => {
        impl RedisStore {
            $(pub(crate) async fn $slow(&self, $(_: $given),*) -> $answer {
                match *self {}
            })*
            $(pub(crate) fn $fast(&self, $(_: $of),*) -> $result {
                match *self {}
            })*
        }
    };
}

never_called! {
    async {
        evaluate_one(Box<Plan>, Option<&Policy>, Option<Duration>) -> Evaluated;
        reserve(Box<Plan>, &Opening, Option<&Policy>) -> Result<Evaluated, ReservationError>;
        end(&Contents, &Ending<'_>) -> Result<EndResult, ReservationError>;
        read(&Transaction) -> Result<TransactionReply, StoreError>;
        change(&PlannedCharge, Change) -> Result<(u64, ChargeReply), StoreError>;
        reset(SubjectKey, &[NamedLimit]) -> Result<(), StoreError>;
        poll_turn(u128) -> ();
    }
    remembered(Box<Plan>) -> Option<CounterOutcomes>;
    would_pay(Box<Plan>, Option<&Policy>) -> Option<CounterOutcomes>;
    note_room() -> ();
}

impl RedisStore {
    pub(crate) async fn evaluate<'p>(
        &self,
        _: impl IntoIterator<Item = (Box<Plan>, Option<&'p Policy>)>,
    ) -> Vec<Evaluated> {
        match *self {}
    }
}
