//! Replaces the credentials for the store while the limiter is in use.

use super::{Limiter, LimiterBuilder};
use crate::error::BuildError;

impl Limiter {
    /// Replaces the users, passwords and certificates for the store with those of `builder`.
    ///
    /// New connections use them; open connections stay as they are. The builder must name the same
    /// store. Its other settings are ignored.
    ///
    /// Returns [`BuildError::OtherStore`] if the builder names other servers or another database.
    /// Returns the errors of [`build`](LimiterBuilder::build) for invalid addresses and
    /// certificates. After an error nothing has changed.
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
        match (self.inner.engine.store(), &builder.store.address) {
            (Some(store), Some(address)) => {
                store.servers.set_access(address, builder.store.tls.as_ref())
            }
            (None, None) => Ok(()),
            _ => Err(BuildError::OtherStore),
        }
    }
}
