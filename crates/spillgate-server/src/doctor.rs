//! Finds problems in a probe of the store: for the service at its start and in `/readyz`, and for the command
//! `spillgate doctor`.

mod checks;
mod finding;
mod instances;
mod store;

pub use checks::CHECKS_OF_SERVER;
pub use finding::{Finding, Level};
pub use instances::instance_findings;
pub(crate) use instances::mismatches;
pub use store::{findings, ms, percentile, without_map};
