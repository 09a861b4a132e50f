//! Reservations: the answer to each call, and that no call mints quota.

mod contract;
mod ended;
mod fast_path;
mod memory_bound;
mod outage;
mod sequences;
mod utilisation;
