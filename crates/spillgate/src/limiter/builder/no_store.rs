//! Without the feature `redis` there are no settings of a store, and nothing of it begins.

use std::sync::Arc;

use super::super::Limiter;
use super::LimiterBuilder;
use crate::engine::RedisStore;
use crate::error::BuildError;
use crate::subject::Secret;
use crate::waiting::Waiting;

/// The settings of a store that there is not.
#[derive(Debug, Default)]
pub(crate) struct StoreSettings;

impl StoreSettings {
    pub(crate) fn names_a_store(&self) -> bool {
        false
    }

    pub(crate) fn secret(&self, secret: Secret) -> Result<Secret, BuildError> {
        Ok(secret)
    }
}

impl LimiterBuilder {
    pub(crate) async fn open_store(
        &self,
        _: usize,
        _: &Secret,
        _: &Waiting,
    ) -> Result<Option<Arc<RedisStore>>, BuildError> {
        Ok(None)
    }
}

impl Limiter {
    pub(crate) async fn begin(&self, _: &StoreSettings) -> Result<(), BuildError> {
        Ok(())
    }
}
