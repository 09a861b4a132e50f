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

use spillgate_core::{algorithm, counter, decision, error, limit, plan, request, subject, time};

pub mod control;
#[cfg(feature = "http")]
mod denial_response;
pub mod denials;
mod engine;
#[cfg(feature = "http")]
mod headers;
#[cfg(feature = "redis")]
pub mod history;
#[cfg(feature = "http")]
mod identity;
mod limiter;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(not(feature = "metrics"))]
#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "without the feature nothing reads the counts"
)]
mod metrics;
pub mod reservation;
mod tally;
pub mod testing;
#[cfg(feature = "tower")]
pub mod tower;
mod waiting;

pub use limiter::{AtomicDecision, Limiter, LimiterBuilder, MemoryStats, Stats};
pub use spillgate_core::{
    Algorithm, BuildError, Cost, Decision, Denial, Limit, LimitDecision, LimitError, LimitSpec,
    Mode, OnOutage, Policy, PolicyError, Reason, Request, Rule, Source, StoreError, Value, Why,
};

/// Rules built in code, and what a policy shows of its rules.
///
/// [`Policy`] and [`Rule`] are at the root of the crate.
pub mod policy {
    pub use spillgate_core::ip::Network;
    pub(crate) use spillgate_core::policy::*;
    pub use spillgate_core::policy::{
        DenialBody, DenialSpec, Glob, InvalidChange, LeaseSpec, LeaseTerms, NotMatched, Pattern,
        PolicyBuilder, RequestLimit, RuleDenial, RuleSpec, Subject,
    };
    // For the service, which reads its own settings from the same file.
    #[doc(hidden)]
    pub use spillgate_core::policy::{FileSetting, NameKind, nearest};
}

/// The parts of an [`Explanation`](explain::Explanation), which [`Limiter::explain`] returns.
pub mod explain {
    pub use crate::limiter::explain::wait::Wait;
    pub use crate::limiter::{ExplainedLimit, ExplainedRule, Explanation, OverriddenBy, Raise};
}

/// Settings of a store that instances share, and the state of its servers.
#[cfg(feature = "redis")]
pub mod store {
    pub use spillgate_redis::acl::acl_rules;
    pub use spillgate_redis::instances::{FleetInstance, Report};
    pub use spillgate_redis::probe::{ServerFacts, ServerProbe, StoreProbe};
    pub use spillgate_redis::store::{
        Decided, InstanceMismatch, OnStateLoss, Ring, ShardStatus, Tls,
    };
    pub(crate) use spillgate_redis::store::{Presence, Store, StoreOptions};
}

/// For HTTP services without a framework: the client's address, header fields and denials.
///
/// The module [`tower`] has layers that use it.
#[cfg(feature = "http")]
pub mod http {
    pub use spillgate_core::path::{normalised_host, normalised_path, path_with_slashes_decoded};

    pub use crate::denial_response::DenialResponse;
    pub use crate::headers::HeaderStyle;
    pub use crate::identity::{ByIp, CidrError};
}
