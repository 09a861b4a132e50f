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

use spillgate_core::{algorithm, calendar, counter, limit, request, subject};

pub mod control;
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

pub use decision::{Decision, Denial, LimitDecision, Reason, Source};
pub use error::{BuildError, StoreError};
pub use limiter::{AtomicDecision, Limiter, LimiterBuilder, Stats};
#[cfg(feature = "metrics")]
pub use metrics::{Counts, Durations, RuleCounts, ShardCounts, Top, TopOfRule, TopSubject};
#[cfg(feature = "redis")]
pub use probe::acl_rules;
pub use probe::{ServerFacts, ServerProbe, StoreProbe};
pub use reservation::{Ended, Outcome, Receipt, ReceiptError, ReservationError, Reserve, Usage};
pub use spillgate_core::{
    Algorithm, Cost, Limit, LimitError, LimitSpec, Mode, OnOutage, Policy, PolicyError, Request,
    Rule, Value,
};
#[cfg(feature = "redis")]
pub use store::{InstanceMismatch, OnStateLoss, Ring, ShardStatus, Tls};
pub use subject::SHARED_SECRET;

/// Rules built in code, and what a policy shows of its rules.
///
/// [`Policy`] and [`Rule`] are at the root of the crate.
pub mod policy {
    pub use spillgate_core::ip::Network;
    pub(crate) use spillgate_core::policy::*;
    pub use spillgate_core::policy::{
        DenialBody, DenialSpec, Glob, InvalidChange, LeaseSpec, LeaseTerms, NotMatched, Pattern,
        PolicyBuilder, RuleDenial, RuleSpec, Subject,
    };
}

/// The parts of an [`Explanation`](explain::Explanation), which [`Limiter::explain`] returns.
pub mod explain {
    pub use crate::limiter::{ExplainedLimit, ExplainedRule, Explanation, OverriddenBy, Raise};
}

/// What HTTP services need without a framework: the client's address, header fields and denials.
///
/// The module [`tower`] has layers that use it.
#[cfg(feature = "http")]
pub mod http {
    pub use spillgate_core::path::{normalised_host, normalised_path};

    pub use crate::headers::HeaderStyle;
    pub use crate::identity::{ByIp, CidrError};
    pub use crate::refusal::Refusal;
}

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
        pub use spillgate_core::policy::first_dot_too_many;
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
