//! Runtime changes by operators: overrides, blocks and rule modes, without an edit of the policy.
//!
//! [`Limiter::set_override`](crate::Limiter::set_override) and
//! [`Limiter::set_mode`](crate::Limiter::set_mode) make them, and return a [`WriteReport`].
//! [`Limiter::overrides`](crate::Limiter::overrides), [`Limiter::modes`](crate::Limiter::modes) and
//! [`Limiter::audit_log`](crate::Limiter::audit_log) list them.

// This module has the data: entries and their merge, the fleet's record of them, their seal, and the
// lists that operators see. The limiter's `control` module stamps entries, puts them in force and
// exchanges them with the record.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

mod audit;
mod error;
mod listing;
mod note;
#[cfg(feature = "redis")]
mod record;
mod rule_mode;
#[cfg(feature = "redis")]
pub(crate) mod sealed;
mod table;

pub(crate) use audit::{Audit, SubjectsInLog};
pub use audit::{AuditLog, AuditRecord, AuditedAction};
pub use error::ControlError;
pub use listing::{Override, WriteReport};
pub use note::ChangeNote;
#[cfg(feature = "redis")]
pub(crate) use record::Record;
pub use rule_mode::RuleMode;
#[cfg(feature = "redis")]
pub(crate) use sealed::AuditSeal;
#[cfg(all(test, feature = "redis"))]
pub(crate) use sealed::EntrySeal;
#[cfg(feature = "redis")]
pub(crate) use sealed::Parts;
pub(crate) use table::{Effect, Entry, EntryId, Stamp, Table, id_of};

/// Returns a random number below 2^48 that cannot be guessed from earlier ones.
pub(crate) fn random() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(number) = spillgate_redis::simulation::random() {
        return number >> 16;
    }
    spillgate_core::random::random() >> 16
}

/// Returns the instant of a time in microseconds since the epoch.
pub(crate) fn system_time(us: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(us)
}

/// The longest subject and limits of one entry. An instance reads up to ten thousand entries when
/// it starts.
pub(crate) const SUBJECT_BYTES_MAX: usize = 8_192;
