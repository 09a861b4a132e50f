//! Reservations: what each call is answered, and that none ever mints.

mod contract;
mod ended;
mod outage;
mod room;
mod sequences;
mod short;
mod usefulness;
