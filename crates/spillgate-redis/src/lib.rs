//! Counter state in Redis or Valkey: one script, one round trip for any number of decisions at one location.
//!
//! Applications use the crate `spillgate`, which depends on this one. The API of this crate serves
//! that one and may change with every version.
//!
//! - `calls` is what goes over the wire to the scripts.
//! - `connecting` finds the server of a counter, and sends calls to it.
//! - `fleet` keeps the record that the instances of a fleet share, and examines servers.
//! - `deciding` makes decisions from these: leases, remembered denials, servers, local fallback.
//!
//! Each of them uses only those before it. The other modules serve all of them.

use spillgate_core::{
    algorithm, counter, decision, error, limit, memory, plan, policy, reservation, subject,
};

mod calls;
mod connecting;
mod deciding;
mod fleet;
pub mod jitter;
pub mod meter;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod store;
pub mod time;

pub use calls::script::text as script_text;
pub use connecting::{acl, ring};
pub use deciding::engine::Redis;
pub use deciding::{denial_cache, fallback, lease, redis_store, spread};
pub use fleet::{control, denials, history, instances, probe};
