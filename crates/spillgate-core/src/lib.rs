//! The pure core of Spillgate: everything that needs no store, no socket and no async runtime.
//!
//! Applications use the crate `spillgate`, which depends on this one. The API of this crate serves
//! the other crates of Spillgate and may change with every version.

pub mod algorithm;
pub mod calendar;
pub mod counter;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
pub mod ip;
pub mod limit;
pub mod path;
pub mod policy;
pub mod request;
pub mod subject;
pub mod time;

pub use ip::Network;
pub use limit::{Algorithm, Limit, LimitError, LimitSpec};
pub use policy::{
    DenialBody, DenialSpec, Glob, InvalidChange, LeaseSpec, LeaseTerms, Mode, NotMatched, OnOutage,
    Pattern, Policy, PolicyBuilder, PolicyError, Rule, RuleDenial, RuleSpec, Subject,
};
pub use request::{Cost, Request, Value};
