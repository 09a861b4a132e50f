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

impl RedisStore {
    pub(crate) async fn evaluate<'p>(
        &self,
        _: impl IntoIterator<Item = (Box<Plan>, Option<&'p Policy>)>,
        _: Option<Duration>,
    ) -> Vec<Evaluated> {
        match *self {}
    }

    pub(crate) async fn reserve(
        &self,
        _: Box<Plan>,
        _: &Opening,
        _: Option<&Policy>,
    ) -> Result<Evaluated, ReservationError> {
        match *self {}
    }

    pub(crate) async fn end(
        &self,
        _: &Contents,
        _: &Ending<'_>,
    ) -> Result<EndResult, ReservationError> {
        match *self {}
    }

    pub(crate) async fn read(&self, _: &Transaction) -> Result<TransactionReply, StoreError> {
        match *self {}
    }

    pub(crate) async fn change(
        &self,
        _: &PlannedCharge,
        _: Change,
    ) -> Result<(u64, ChargeReply), StoreError> {
        match *self {}
    }

    pub(crate) async fn reset(&self, _: SubjectKey, _: &[NamedLimit]) -> Result<(), StoreError> {
        match *self {}
    }

    pub(crate) fn remembered(&self, _: Box<Plan>) -> Option<CounterOutcomes> {
        match *self {}
    }

    pub(crate) fn would_pay(&self, _: Box<Plan>, _: Option<&Policy>) -> Option<CounterOutcomes> {
        match *self {}
    }

    pub(crate) async fn poll_turn(&self, _: u128) {
        match *self {}
    }

    pub(crate) fn note_room(&self) {
        match *self {}
    }
}
