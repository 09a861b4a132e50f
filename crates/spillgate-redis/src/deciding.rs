//! Decisions: what the leases, remembered denials, servers and the local fallback each contribute.
//!
//! [`redis_store`] puts them in order, and [`engine`] calls the servers.

pub mod denial_cache;
pub mod engine;
pub mod fallback;
pub mod lease;
pub mod leasing;
pub mod records;
pub mod redis_store;
pub mod spread;
