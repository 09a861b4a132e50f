//! Leases: every short history of the pure model, the ledger in Redis against the pure ledger, decisions of a
//! limiter with leases, and fleets of real processes.

mod deciding;
mod ledger;
mod model;
mod processes;
