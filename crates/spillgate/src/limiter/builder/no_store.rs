//! Without the feature `redis` there are no settings of a store, and nothing of it begins.

use std::sync::Arc;
use std::time::Duration;

use super::super::{Inner, Limiter};
use crate::engine::RedisStore;
use crate::error::BuildError;
use crate::subject::Secret;
use crate::time::Clock;
use crate::waiting::Waiting;

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

impl Limiter {
    pub(crate) async fn wait_for_store(&self, _: Duration) -> Result<(), BuildError> {
        Ok(())
    }
}
