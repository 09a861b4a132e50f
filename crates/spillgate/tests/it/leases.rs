//! Leases: every short history of holders and a pure ledger, the ledger in Redis against the pure one, decisions of a
//! limiter with leases, and fleets of real processes.

mod deciding;
mod ledger;
mod model;
mod processes;
mod pure_ledger;
