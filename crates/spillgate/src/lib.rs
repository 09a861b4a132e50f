#![doc = include_str!("lib.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(feature = "redis"),
    allow(
        dead_code,
        unused_imports,
        unused_variables,
        reason = "code that only a store needs is compiled without one too"
    )
)]

use spillgate_core::{algorithm, calendar, counter, limit, policy, request, subject};

mod control;
mod decision;
#[cfg(feature = "redis")]
mod denial_cache;
mod engine;
mod error;
#[cfg(feature = "redis")]
mod fallback;
#[cfg(all(any(test, fuzzing), feature = "http", feature = "redis"))]
#[doc(hidden)]
pub mod fuzzed;
#[cfg(feature = "http")]
mod headers;
#[cfg(feature = "http")]
mod identity;
#[cfg(feature = "redis")]
mod lease;
mod limiter;
#[cfg_attr(
    not(feature = "metrics"),
    allow(
        dead_code,
        unused_imports,
        unreachable_pub,
        reason = "without the feature nothing reads the counts"
    )
)]
mod metrics;
mod plan;
mod probe;
#[cfg(feature = "http")]
mod refusal;
mod reservation;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;
#[cfg(feature = "redis")]
mod store;
pub mod testing;
mod time;
#[cfg(feature = "tower")]
pub mod tower;
mod waiting;

pub use control::{
    AuditRecord, AuditedAction, ChangeNote, ControlError, Override, PendingShard, RuleMode,
    WriteReport,
};
pub use decision::{Decision, Denial, LimitDecision, Reason, Source};
pub use error::{BuildError, StoreError};
#[cfg(feature = "http")]
pub use headers::HeaderStyle;
#[cfg(feature = "http")]
pub use identity::{ByIp, CidrError};
pub use limiter::{
    AtomicDecision, ExplainedLimit, ExplainedRule, Explanation, Limiter, LimiterBuilder,
    OverriddenBy, Raise, Stats,
};
#[cfg(feature = "metrics")]
pub use metrics::{Top, TopOfRule, TopSubject};
#[cfg(feature = "redis")]
pub use probe::acl_rules;
pub use probe::{ServerFacts, ServerProbe, StoreProbe};
#[cfg(feature = "http")]
pub use refusal::Refusal;
pub use reservation::{Ended, Outcome, Receipt, ReceiptError, ReservationError, Reserve, Usage};
#[cfg(feature = "http")]
pub use spillgate_core::path::{normalised_host, normalised_path};
pub use spillgate_core::{
    Algorithm, Cost, InvalidChange, LeaseSpec, LeaseTerms, Limit, LimitError, LimitSpec, Mode,
    NotMatched, OnOutage, Pattern, Policy, PolicyBuilder, PolicyError, Request, Rule, RuleSpec,
    Value,
};
#[cfg(feature = "redis")]
pub use store::{InstanceMismatch, OnStateLoss, Ring, ShardStatus, Tls};
pub use subject::SHARED_SECRET;

/// Items for the integration tests and benches. They are not stable.
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
    pub mod explain {
        pub use crate::limiter::explain::wait::Wait;
    }
    #[cfg(feature = "redis")]
    pub mod lease {
        pub use crate::lease::{ALL, Asked, Close, Exchange, Granted, Holder, Ledger};
    }
    pub mod limit {
        pub use crate::limit::{NamedLimit, RecordName};
    }
    pub mod policy {
        pub use crate::policy::first_dot_too_many;
    }
    #[cfg(feature = "redis")]
    pub mod store {
        pub use crate::store::{Presence, Store, StoreOptions};
    }
    pub mod subject {
        pub use crate::subject::*;
    }
    pub mod time {
        pub use crate::time::*;
    }
}
