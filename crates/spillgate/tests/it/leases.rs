//! Leases: every short history of the pure ones, the ledger in a real Redis against the pure one, what a limiter does with
//! them, and fleets of real processes.

mod deciding;
mod ledger;
mod model;
mod processes;
