//! Leases: every short history of the pure ones, the ledger in a real Redis against the pure ledger, the
//! decisions of a limiter with leases, and fleets of real processes.

mod deciding;
mod ledger;
mod model;
mod processes;
