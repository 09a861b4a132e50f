//! The bounds of a request, the same on every listener.

use std::time::Duration;

/// The most attributes, or units, that a request may have.
pub const ATTRIBUTES_MAX: usize = 32;

/// The most entries of a descriptor of Envoy, which are its attributes, and the most descriptors of a request. Envoy
/// Gateway allows 256 rules in a policy and 128 header matches in a rule.
pub const ENTRIES_MAX: usize = 256;

/// The most bytes in the name of an attribute, a unit or a domain.
pub(crate) const NAME_MAX: usize = 64;

/// The most bytes in the name of an attribute or a domain at the admin API, which shows what Envoy sends.
pub(crate) const LONG_NAME_MAX: usize = 1024;

/// The most bytes in an attribute's value or in a key: longer than the paths and tokens of real requests.
pub(crate) const VALUE_MAX: usize = 4 * 1024;

/// The most bytes in the id of a reservation: a UUID with a prefix has room.
pub(crate) const RESERVATION_NAME_MAX: usize = 128;

/// The message of a reservation that is refused as `overloaded`.
pub(crate) const NO_ROOM: &str = "there is no room for another record, or the store is too busy; \
     try again, and settle or cancel reservations that are finished";

/// The message to a client whose reservation is ended in part. The log names the server that is out of reach, which
/// clients need not know.
pub(crate) const PART_DOWN: &str =
    "a part of the store is down, and the rest is done; repeat the same call";

/// The most requests in one batch. Their answer has some 400 KB if each meets one limit, and 11 MB if each meets 64.
pub(crate) const BATCH_MAX: usize = 1_000;

/// The longest that a request may wait for its limits: proxies and clients give up at about that time.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// The domain of requests that name none. Every listener uses the same, so that one key has one counter.
pub(crate) const DOMAIN: &str = "default";
