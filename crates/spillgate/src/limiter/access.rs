//! Other credentials for the store, while the limiter is in use.

use super::{Limiter, LimiterBuilder};
use crate::engine::Engine;
use crate::error::BuildError;

impl Limiter {
    /// Uses the users, passwords and certificates of `builder` from the next connection on. Open connections stay. The
    /// builder names the same store; whatever else it says means nothing here.
    ///
    /// # Errors
    /// [`BuildError::OtherStore`] if it names other servers or another database, and what
    /// [`build`](LimiterBuilder::build) says of addresses and certificates that are none. Nothing has changed then.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use spillgate::Limiter;
    /// let limiter = Limiter::builder().redis("redis://:old@127.0.0.1:1").build().await.unwrap();
    /// let renewed = Limiter::builder().redis("redis://:new@127.0.0.1:1");
    /// assert!(limiter.set_store_access(&renewed).is_ok());
    /// # });
    /// ```
    pub fn set_store_access(&self, builder: &LimiterBuilder) -> Result<(), BuildError> {
        match (&self.inner.engine, &builder.store) {
            (Engine::Redis(redis), Some(store)) => redis.set_access(store, builder.tls.as_ref()),
            (Engine::Memory(_), None) => Ok(()),
            _ => Err(BuildError::OtherStore),
        }
    }
}
