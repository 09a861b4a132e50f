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
#[cfg(feature = "redis")]
use spillgate_redis::{denial_cache, fallback, lease, store};

pub mod control;
#[cfg(feature = "http")]
mod denial_response;
mod engine;
#[cfg(all(any(test, fuzzing), feature = "http", feature = "redis"))]
#[doc(hidden)]
pub mod fuzzed;
#[cfg(feature = "http")]
mod headers;
#[cfg(feature = "http")]
mod identity;
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
mod reservation;
pub mod testing;
#[cfg(feature = "tower")]
pub mod tower;
mod waiting;

pub use limiter::{AtomicDecision, Limiter, LimiterBuilder, MemoryStats, Stats};
#[cfg(feature = "redis")]
pub use limiter::{Script, Scripts};
#[cfg(feature = "metrics")]
pub use metrics::{Counts, Durations, RuleCounts, ShardCounts, Top, TopOfRule, TopSubject};
pub use reservation::Reserve;
pub use spillgate_core::{
    Algorithm, BuildError, Cost, Decision, Denial, EndResult, Ended, Limit, LimitDecision,
    LimitError, LimitSpec, Mode, OnOutage, Policy, PolicyError, Reason, Receipt, ReceiptError,
    Request, ReservationError, Rule, Source, StoreError, Usage, Value,
};
#[cfg(feature = "redis")]
pub use spillgate_redis::{
    acl::acl_rules,
    probe::{ServerFacts, ServerProbe, StoreProbe},
    store::{InstanceMismatch, OnStateLoss, Ring, ShardStatus, Tls},
};
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

    pub use crate::denial_response::DenialResponse;
    pub use crate::headers::HeaderStyle;
    pub use crate::identity::{ByIp, CidrError};
}
