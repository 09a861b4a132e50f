//! The pure core of Spillgate: everything that needs no store, no socket and no async runtime.
//!
//! Applications use the crate `spillgate`, which depends on this one. The API of this crate serves
//! the other crates of Spillgate and may change with every version.

pub mod algorithm;
pub mod calendar;
pub mod counter;
pub mod decision;
pub mod error;
pub mod histogram;
pub mod ip;
pub mod limit;
pub mod memory;
pub mod path;
pub mod plan;
pub mod policy;
pub mod random;
pub mod request;
pub mod reservation;
#[cfg(feature = "serde")]
mod serialize;
pub mod subject;
pub mod time;

pub use decision::{Decision, Denial, LimitDecision, Reason, Source};
pub use error::{BuildError, StoreError, Why};
pub use ip::Network;
pub use limit::{Algorithm, Limit, LimitError, LimitSpec};
pub use policy::{
    DenialBody, DenialSpec, Glob, InvalidChange, LeaseSpec, LeaseTerms, Mode, NotMatched, OnOutage,
    Pattern, Policy, PolicyBuilder, PolicyError, RequestLimit, Rule, RuleDenial, RuleSpec, Subject,
};
pub use request::{Cost, Request, Value};
pub use reservation::{EndResult, Ended, Receipt, ReceiptError, ReservationError, Usage};
