#![doc = include_str!("lib.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod algorithm;
mod calendar;
mod decision;
mod engine;
mod error;
mod fallback;
mod limit;
mod limiter;
mod plan;
mod policy;
mod request;
mod subject;
mod time;

pub use decision::{Decision, Source, TierDecision, Verdict};
pub use engine::StoreError;
pub use error::BuildError;
pub use limit::{Algorithm, Limit, LimitError, LimitSpec};
pub use limiter::{Limiter, LimiterBuilder, Question, ResetError, Stats};
pub use policy::{Mode, OnOutage, Policy, PolicyError, Rule};
pub use request::{Cost, Request, Value};

/// What the integration tests and benches reach into. No promise of stability.
#[doc(hidden)]
#[allow(missing_docs, reason = "each is documented where it stands")]
pub mod internals {
    pub mod algorithm {
        pub use crate::algorithm::*;
    }
    pub mod calendar {
        pub use crate::calendar::*;
    }
    pub mod engine {
        pub use crate::engine::*;
    }
    pub mod limit {
        pub use crate::limit::{NamedLimit, RecordName};
    }
    pub mod subject {
        pub use crate::subject::*;
    }
    pub mod time {
        pub use crate::time::*;
    }
}
