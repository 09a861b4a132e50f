//! Reservations: what each call is answered, and that none ever mints.

mod contract;
mod outage;
mod sequences;
mod short;
mod usefulness;
