//! Reservations: the answer to each call, and that no call mints quota.

mod contract;
mod ended;
mod outage;
mod room;
mod sequences;
mod short;
mod usefulness;
