//! What a question may hold at most, through whichever door it comes.

use std::time::Duration;

/// How many attributes, or units, a request may have.
pub const ATTRIBUTES_MAX: usize = 32;

/// Bytes of the name of an attribute, a unit or a domain.
pub(crate) const NAME_MAX: usize = 64;

/// Bytes of an attribute's value or of a key: the longest path or token that is still told whole.
pub(crate) const VALUE_MAX: usize = 4 * 1024;

/// Bytes of what a caller calls a reservation: a UUID and what goes with it.
pub(crate) const RESERVATION_NAME_MAX: usize = 128;

/// What a reservation is answered that is refused as `overloaded`.
pub(crate) const NO_ROOM: &str = "there is no room for another record, or the store is too busy; \
     try again, and settle or cancel what is finished";

/// Questions judged together: one call to the store, and an answer of less than a megabyte.
pub(crate) const BATCH_MAX: usize = 1_000;

/// How long a question may wait for room: proxies and clients give up at about that time.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// The domain of questions that name none: the same at every door, so that one key is one state.
pub(crate) const DOMAIN: &str = "default";
