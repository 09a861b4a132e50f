//! The clock of tests.

use std::time::Duration;

use nix::time::ClockId;

/// Returns the time by `CLOCK_MONOTONIC`, which the program sends to a service manager.
pub(crate) fn monotonic_us() -> u64 {
    let now = ClockId::CLOCK_MONOTONIC.now().unwrap();
    Duration::from(now).as_micros().try_into().unwrap()
}
