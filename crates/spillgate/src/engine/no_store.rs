//! Without the feature `redis` no limiter has a shared store. Its type has no value, so none of its methods is called.

use std::sync::Arc;
use std::time::Duration;

use crate::counter::{Change, ChargeReply, PlannedCharge};
use crate::decision::CounterOutcomes;
use crate::error::{BuildError, StoreError};
use crate::limit::NamedLimit;
use crate::limiter::Inner;
use crate::plan::{Evaluated, Plan, Transaction, TransactionReply};
use crate::policy::Policy;
use crate::reservation::{Contents, EndResult, Ending, Opening, ReservationError};
use crate::subject::{Secret, SubjectKey};
use crate::time::Clock;
use crate::waiting::Waiting;

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

/// The settings of a store that there is not.
#[derive(Debug, Default)]
pub(crate) struct StoreSettings {
    pub(crate) required_within: Option<Duration>,
}

impl StoreSettings {
    pub(crate) async fn engine(
        &self,
        _: Option<Duration>,
        _: usize,
        _: &Secret,
        _: &Clock,
        _: &Waiting,
    ) -> Result<Option<Arc<RedisStore>>, BuildError> {
        Ok(None)
    }
}

impl Inner {
    pub(crate) async fn begin(self: &Arc<Self>) {}
}

impl crate::Limiter {
    pub(crate) async fn wait_for_store(&self, _: Duration) -> Result<(), BuildError> {
        Ok(())
    }
}
